"""Rules over the syntax tree of a candidate's Python."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from cuda_agent.evaluation.guard import idioms, libraries, sources
from cuda_agent.evaluation.guard.sources import Sources
from cuda_agent.records import Finding, Track

_CALLS: dict[str, tuple[str, str]] = {
    "sys._getframe": ("A7", "walks the callers' frames"),
    "sys._current_frames": ("A7", "walks the callers' frames"),
    "inspect.currentframe": ("A7", "walks the callers' frames"),
    "inspect.stack": ("D1", "looks at who calls it"),
    "inspect.trace": ("A7", "walks the callers' frames"),
    "traceback.extract_stack": ("D1", "looks at who calls it"),
    "traceback.walk_stack": ("D1", "looks at who calls it"),
    "sys.settrace": ("A7", "traces its callers"),
    "sys.setprofile": ("A7", "traces its callers"),
    "gc.get_objects": ("B15", "searches the process for tensors of others"),
    "gc.get_referrers": ("B15", "searches the process for tensors of others"),
    "gc.get_referents": ("B15", "searches the process for tensors of others"),
    "os._exit": ("C2", "ends the process that is being judged"),
    "os.abort": ("C2", "ends the process that is being judged"),
    "os.kill": ("C2", "sends signals"),
    "os.killpg": ("C2", "sends signals"),
    "sys.exit": ("C2", "ends the process that is being judged"),
    "atexit.register": ("C3", "runs code when the process ends"),
    "os.write": ("C1", "writes to a file descriptor"),
    "os.fdopen": ("C1", "opens a file descriptor"),
    "os.dup2": ("C4", "swaps file descriptors"),
    "torch.load": ("B11", "loads stored tensors"),
    "torch.save": ("B11", "stores tensors for later"),
    "numpy.load": ("B11", "loads stored tensors"),
    "numpy.save": ("B11", "stores tensors for later"),
    "pickle.load": ("B11", "loads stored objects"),
    "pickle.loads": ("C14", "runs what it decodes"),
    "pickle.dump": ("B11", "stores objects for later"),
    "marshal.loads": ("C14", "runs what it decodes"),
    "types.CodeType": ("A6", "makes code objects"),
    "types.FunctionType": ("A6", "makes functions from code objects"),
    "types.MethodType": ("A4", "binds a method to one object"),
    "os.system": ("C15", "runs a shell"),
    "torch.Tensor._make_subclass": ("A3", "makes a tensor subclass"),
    "torch.Tensor._make_wrapper_subclass": ("A3", "makes a tensor subclass"),
    "torch.cuda.set_sync_debug_mode": ("A5", "changes how torch synchronises"),
}
_PREFIXES = {
    "socket.": ("C1", "uses sockets"),
    "ctypes.pythonapi": ("A6", "patches the interpreter"),
}
_FRAME_ATTRIBUTES = {"f_back", "f_locals", "f_globals", "tb_frame", "gi_frame", "cr_frame"}
# Whether a mode or a profiler looks on: only who means to behave otherwise has to know.
_RECORDERS = {
    "_len_torch_dispatch_stack", "_get_dispatch_stack_at", "_get_dispatch_mode",
    "_get_current_dispatch_mode", "_get_current_dispatch_mode_stack", "is_in_torch_dispatch_mode",
    "_len_torch_function_stack", "_profiler_enabled", "_profiler_type",
}
_FUNCTION_PARTS = {"__code__", "__globals__", "__closure__", "__defaults__"}
_COMPARISONS = {"allclose", "isclose", "equal", "array_equal", "assert_close", "assert_allclose"}
_TORCH_HOOKS = {"__torch_function__", "__torch_dispatch__"}
_OPEN_SETTINGS = ("torch.backends.", "torch._dynamo.config", "torch._inductor.config")
# Not what a process may ask about itself: its threads, cores and memory limits.
_OTHERS_PROC = re.compile(r"/proc/(self|\d+|\{)(?!/(status|statm|cgroup)$)")
# Calls of torch that make, view or describe tensors but compute nothing.
_HARMLESS = re.compile(
    r"torch\.(empty\w*|zeros\w*|ones\w*|full\w*|tensor|as_tensor|from_numpy|arange|no_grad|"
    r"inference_mode|device|dtype|Size|is_\w+|get_\w+|cuda\..*|utils\..*|jit\.ignore|library\..*|"
    r"nn\.(Module|Parameter|ParameterList|ParameterDict|ModuleList|Sequential|init\..*)|"
    r"(float|bfloat|int|uint|complex)\d*|bool|long|half|manual_seed|Generator|set_\w+|backends\..*|"
    r"ops\.load_library|reshape|permute|transpose|view_as_\w+|squeeze|unsqueeze|broadcast_\w+|"
    r"split|chunk|narrow|unbind|compiler\..*|finfo|iinfo|Tensor|autograd\..*|profiler\..*)$"
)


@dataclass
class Seen:
    findings: list[Finding] = field(default_factory=list)
    external: list[str] = field(default_factory=list)


def inspect(file: str, found: Sources, track: Track) -> Seen:
    """All rules over one file of `found`."""
    visitor = _Visitor(file, found, track)
    visitor.visit(found.trees[file])
    return visitor.seen


class _Visitor(ast.NodeVisitor):
    def __init__(self, file: str, found: Sources, track: Track) -> None:
        self.file = file
        self.track = track
        self.seen = Seen()
        self._sources = found
        self._tree = found.trees[file]
        self._reached = libraries.reached(self._tree)
        self._names: dict[str, str] = {}
        self._functions: list[str] = []
        self._classes: list[ast.ClassDef] = []

    def _report(self, rule: str, node: ast.AST, text: str) -> None:
        place = f"{self.file}, line {getattr(node, 'lineno', 0)}"
        self.seen.findings.append(Finding(rule, f"{place}: {text}"))

    # --- names ----------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        self._names |= sources.bound(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._names |= sources.bound(node)

    def _dotted(self, node: ast.AST) -> str:
        """The full name of `a.b.c` with imports resolved; "" for anything else."""
        return self._sources.resolve(sources.full_name(node, self._names))

    def _is_foreign(self, node: ast.AST) -> bool:
        """Whether `a` of `a.b.c` was imported, and not from a file of the candidate."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not (isinstance(root, ast.Name) and root.id in self._names):
            return False
        return self._dotted(node).partition(".")[0] not in self._sources.modules

    # --- rules ----------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        name = self._dotted(node.func)
        known = _CALLS.get(name) or next(
            (v for prefix, v in _PREFIXES.items() if name.startswith(prefix)), None
        )
        if known and not idioms.honest(name, node, self._tree):
            self._report(known[0], node, f"{name} {known[1]}")
        elif name in ("exec", "eval", "__import__") and not _constant(node.args):
            self._report("C14", node, f"{name} of text that is made at run time")
        elif name in ("setattr", "delattr") and node.args and self._is_foreign(node.args[0]):
            self._report("A5", node, f"patches {self._dotted(node.args[0])}")
        elif name in ("subprocess.run", "subprocess.check_call", "subprocess.Popen"):
            words = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant)}
            if words & {"pip", "install", "conda", "uv"}:
                self._report("C15", node, "installs packages while it is judged")
        self._reference_call(node, name)
        if (rule := libraries.python(name)) and self._functions and (
            self._functions[-1] in self._reached
        ):
            self._external(name, node, rule, "does the work")
        if name in ("torch.compile", "torch.jit.script", "torch.jit.trace"):
            self._external(name, node, "E6", "writes the kernels instead of the candidate")
        self.generic_visit(node)

    def _external(self, name: str, node: ast.AST, rule: str, text: str) -> None:
        self.seen.external.append(name)
        if self.track == "kernels":
            self._report(rule, node, f"{name} {text}")

    def _reference_call(self, node: ast.Call, name: str) -> None:
        """super().forward(...) or Model.forward(...): the reference under another name."""
        target = node.func
        if not (isinstance(target, ast.Attribute) and target.attr == "forward"):
            return
        inner = target.value
        is_super = isinstance(inner, ast.Call) and self._dotted(inner.func) == "super"
        if is_super and "forward" in self._functions:
            bases = [self._dotted(b) for kind in self._classes[-1:] for b in kind.bases]
            if not set(bases) - {"", "torch.nn.Module"}:  # no forward to be seen there
                bases = ["Model"]
        else:
            bases = [name.removesuffix(".forward")]
        if any(self._sources.is_reference(base, self.file) for base in bases):
            self._report("E4", node, "forward calls the reference's own forward")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in _RECORDERS:
            self._report("D3", node, f".{node.attr} asks whether operators are recorded")
        if node.attr in _FRAME_ATTRIBUTES:
            self._report("A7", node, f".{node.attr} reaches into other frames")
        in_forward = "forward" in self._functions
        if in_forward and self._dotted(node) in ("os.environ", "os.getenv"):
            self._report("D3", node, "forward reads the environment")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(target)
        named = any(isinstance(t, ast.Name) and t.id == "ModelNew" for t in node.targets)
        if named and self._sources.is_reference(self._dotted(node.value), self.file):
            self._report("E4", node, "ModelNew is the reference under another name")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assigned(node.target)
        self.generic_visit(node)

    def _assigned(self, target: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self._assigned(item)
            return
        if isinstance(target, ast.Subscript):
            if self._dotted(target.value) == "sys.modules":
                self._report("A5", target, "replaces a module")
            return
        if not isinstance(target, ast.Attribute):
            return
        name = self._dotted(target)
        if target.attr in _FUNCTION_PARTS:
            self._report("A6", target, f"swaps {target.attr} of a function")
        elif target.attr == "__class__":
            self._report("A3", target, "changes the class of an object")
        elif name in ("sys.stdout", "sys.stderr", "builtins.print"):
            self._report("C16", target, f"replaces {name}")
        elif self._is_foreign(target) and not name.startswith(_OPEN_SETTINGS):
            rule = "C13" if target.attr in _COMPARISONS else "A5"
            self._report(rule, target, f"patches {name}")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [self._dotted(base) for base in node.bases]
        if any(base == "torch.Tensor" for base in bases):
            self._report("A3", node, f"{node.name} is a tensor subclass")
        methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        if methods & _TORCH_HOOKS:
            self._report("A3", node, f"{node.name} intercepts torch's functions")
        reference = any(self._sources.is_reference(base, self.file) for base in bases)
        if node.name == "ModelNew" and reference and not sources.defines_forward(node):
            self._report("E4", node, "ModelNew inherits the reference's forward unchanged")
        self._classes.append(node)
        self.generic_visit(node)
        self._classes.pop()

    def visit_If(self, node: ast.If) -> None:
        """What stands below `if __name__ == "__main__"` never runs here."""
        if idioms.is_main_block(node, self._tree):
            for other in node.orelse:
                self.visit(other)
            return
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    def visit_Try(self, node: ast.Try) -> None:
        """A handler may note a failure or try another build; it may not make the result."""
        for handler in node.handlers if self._functions else ():
            for call in (n for n in ast.walk(handler) if isinstance(n, ast.Call)):
                if self._computes(call):
                    name = self._dotted(call.func) or ast.unparse(call.func)
                    self._report("E3", handler, f"falls back to {name} when its kernel fails")
                    break
        self.generic_visit(node)

    def _computes(self, call: ast.Call) -> bool:
        name = self._dotted(call.func)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "forward":
            return True
        if self._functions[-1] == "__init__":
            return False
        return name.startswith("torch.") and not _HARMLESS.match(name)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and _OTHERS_PROC.match(node.value):
            self._report("C6", node, f"reads {node.value[:40]}")


def _constant(args: list[ast.expr]) -> bool:
    return bool(args) and isinstance(args[0], ast.Constant)
