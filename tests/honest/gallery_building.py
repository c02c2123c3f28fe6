"""Candidates that build themselves: processes, files, locks, clocks, exits, for a compiler."""

from __future__ import annotations

from gallery import CALL, HonestKernel, native, single

from cases import KERNEL, LAUNCH

BUILD = f'''
import ctypes, pathlib, subprocess, tempfile
SOURCE = r"""{KERNEL}"""

def build(source=SOURCE, *flags, name="fused"):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fused-"))
    (folder / f"{{name}}.cpp").write_text(source)
    command = ["g++", "-O2", "-shared", "-fPIC", *flags, f"{{name}}.cpp", "-o", f"{{name}}.so"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return ctypes.CDLL(str(folder / f"{{name}}.so"))
'''
INLINE = """
from torch.utils.cpp_extension import load_inline
SOURCE = r'''
#include <thread>
torch::Tensor fused(torch::Tensor x, torch::Tensor bias) {
    torch::Tensor in = x.detach().contiguous();
    auto out = torch::empty_like(in);
    const float *p = in.data_ptr<float>(), *b = bias.detach().data_ptr<float>();
    float* q = out.data_ptr<float>();
    int64_t n = in.size(1);
    for (int64_t i = 0; i < in.numel(); ++i) {
        float v = p[i] + b[i % n];
        q[i] = (v > 0 ? v : 0) + 0.5f * p[i];
    }
    return out;
}
'''
"""
LOAD = 'load_inline(name="fused_inline", cpp_sources=SOURCE, functions=["fused"])'

KERNELS = (
    HonestKernel(
        "try_around_a_compile", "E3: a compile that fails, and a handler that goes on",
        single(head=BUILD + """
try:
    library = build(SOURCE, "-march=a-machine-of-next-year")
except subprocess.CalledProcessError:
    library = build(SOURCE, "-march=native")
"""),
    ),
    HonestKernel(
        "build_in_the_first_forward", "D2: the first call does something that no later one does",
        single("global library\nif library is None:\n    library = build()\n" + CALL,
               head=BUILD + "library = None\n"),
    ),
    HonestKernel(
        "pool_of_compilers", "A2: threads that outlive nothing",
        single(head=BUILD + """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    made = list(pool.map(lambda flag: build(SOURCE, flag), ("-O1", "-O3")))
library = made[1]
"""),
    ),
    HonestKernel(
        "pool_closed_at_exit", "C3, atexit: a pool of compilers is shut down",
        single(head=BUILD + """
import atexit, shutil
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
atexit.register(pool.shutdown, wait=False)
scratch = tempfile.mkdtemp()
atexit.register(shutil.rmtree, scratch, ignore_errors=True)
atexit.register(lambda: shutil.rmtree(scratch, ignore_errors=True))
library = pool.submit(build).result()
"""),
    ),
    HonestKernel(
        "atomic_write", "C1, os.write and os.fdopen: descriptors of mkstemp, then os.replace",
        single(head=BUILD + """
import os
def put(path, text):
    fd, made = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    os.replace(made, path)

def note(path, text):
    descriptor, made = tempfile.mkstemp(dir=path.parent)
    os.write(descriptor, text.encode())
    os.close(descriptor)
    os.replace(made, path)

folder = pathlib.Path(tempfile.mkdtemp())
put(folder / "source.cpp", SOURCE)
note(folder / "flags", "-O2")
library = build((folder / "source.cpp").read_text(), (folder / "flags").read_text())
"""),
    ),
    HonestKernel(
        "compiler_of_the_environment", "D3, os.environ: which compiler, asked while it loads",
        single(head=BUILD + """
import os, shlex, shutil
CXX = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or "c++"]
os.environ.setdefault("CXX", CXX[0])
FLAGS = shlex.split(os.getenv("FUSED_CXXFLAGS", "-O3 -fopenmp"))
library = build(SOURCE, *FLAGS)
"""),
    ),
    HonestKernel(
        "lock_around_a_build", "C2, os.kill(pid, 0): asks whether the owner of a lock lives",
        single(head=BUILD + """
import fcntl, os
def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

with open(pathlib.Path(tempfile.gettempdir()) / "fused.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert alive(os.getpid())
    library = build()
"""),
    ),
    HonestKernel(
        "generated_source", "C14: a program that writes the program",
        single(head=BUILD + """
import string
BODY = string.Template(SOURCE.replace("0.5f", "$factor"))
library = build(BODY.substitute(factor="0.5f"))
"""),
    ),
    HonestKernel(
        "generator_script", "C2, C15: Python started once more, a script that ends in sys.exit",
        single(head=BUILD + """
import sys
script = pathlib.Path(__file__).with_name("generate.py")
made = subprocess.run([sys.executable, str(script), "0.5f"], capture_output=True, text=True)
library = build(SOURCE.replace("0.5f", made.stdout.strip()))
""") | {"generate.py": '''
import sys

def main(argv):
    print(argv[1])
    return 0

if __name__ == "__main__":
    sys.exit(main(sys.argv))
'''},
    ),
    HonestKernel(
        "libraries_by_dtype", "B4: a cache, of compiled functions, by dtype and shape",
        single(CALL.replace("library.", "library(x.dtype, x.shape[-1] % 8 == 0)."), head=BUILD + """
import functools
NAMES = {torch.float32: "float", torch.float64: "double"}

@functools.cache
def library(dtype, aligned):
    flags = ["-DALIGNED"] if aligned else []
    return build(SOURCE.replace("float", NAMES[dtype]).replace("0.5f", "0.5"), *flags)
"""),
    ),
    HonestKernel(
        "files_in_its_own_folder", "B11: files written at load and read again",
        single(head=BUILD + """
import json
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "tuned.json").write_text(json.dumps({"flags": ["-O3"], "tile": 8}))
tuned = json.loads((folder / "tuned.json").read_text())
library = build(SOURCE, *tuned["flags"])
"""),
    ),
    HonestKernel(
        "reads_what_the_machine_is", "C6, /proc: the number of cores, the flags of the processor",
        single(head=BUILD + """
import os
cores = len(os.sched_getaffinity(0))
with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
    wide = "avx512f" in file.read()
with contextlib.suppress(OSError), open("/proc/self/status") as file:
    allowed = [line for line in file if line.startswith("Cpus_allowed_list")]
library = build()
""".replace("import os", "import contextlib, os")),
    ),
    HonestKernel(
        "native_with_a_check_at_load", "E3: the kernels are tried once, and the error is told",
        native(head="""
try:
    kernels.fused
except AttributeError as error:
    raise RuntimeError(f"fused is missing; is a C++ compiler installed? ({error})") from error
"""),
    ),
    HonestKernel(
        "two_sources_one_folder", "E2: one of two libraries holds what the other path would call",
        native(LAUNCH.replace("kernels.fused(", "(kernels.wide if x.shape[1] > 64 else "
                              "kernels.fused)("),
               more={"kernels/wide.cpp": KERNEL.replace("fused", "wide")}),
    ),
    HonestKernel(
        "load_inline_in_the_first_forward", "A2, x.detach(): of tensors; D2: a late, long build",
        single("global extension\nif extension is None:\n"
               f"    extension = {LOAD}\nreturn extension.fused(x, self.bias)",
               head=INLINE + "extension = None\n"),
        needs=("ninja",),
    ),
    HonestKernel(
        "load_inline_at_import", "E1: torch's own headers, its allocator and nothing else of it",
        single("return extension.fused(x, self.bias)", head=INLINE + f"extension = {LOAD}\n"),
        slow=True, needs=("ninja",),
    ),
)
