"""CUDA for elementwise programs: a thread takes a few vectors, all loads before the first use."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.skills.emit import expressions
from cuda_agent.skills.emit.elementwise import Program, describe
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.indexing import Operand, coordinates, offset
from cuda_agent.skills.pointwise.cuda_tile import tile_kernel

WORD_BYTES = 16
_STREAM = """
// Past the caches' reuse: what is streamed is not kept in L2 for later.
template <typename T> __device__ __forceinline__ void stream(T* p, const Lanes<T>& v) {
    const int4* words = reinterpret_cast<const int4*>(&v);
    #pragma unroll
    for (int w = 0; w < (int)sizeof(v) / 16; ++w) __stcs(reinterpret_cast<int4*>(p) + w, words[w]);
}
"""
_LANES = """
// VECTOR neighbouring elements, loaded and stored in words of up to 16 bytes.
template <typename T> struct alignas(sizeof(T) * VECTOR < 16 ? sizeof(T) * VECTOR : 16) Lanes {
    T lane[VECTOR];
};
template <typename T> __device__ __forceinline__ Lanes<T> load(const T* p) {
    return *reinterpret_cast<const Lanes<T>*>(p);
}
template <typename T> __device__ __forceinline__ void store(T* p, const Lanes<T>& v) {
    *reinterpret_cast<Lanes<T>*>(p) = v;
}
"""
_PARTIAL = """
// The last vector is cut short: only its first `valid` lanes exist.
template <typename T> __device__ __forceinline__ Lanes<T> load(const T* p, long long valid) {
    if (valid >= VECTOR) return load(p);
    Lanes<T> v{};
    #pragma unroll
    for (int lane = 0; lane < VECTOR; ++lane) if (lane < valid) v.lane[lane] = p[lane];
    return v;
}
template <typename T>
__device__ __forceinline__ void store(T* p, const Lanes<T>& v, long long valid) {
    if (valid >= VECTOR) return store(p, v);
    #pragma unroll
    for (int lane = 0; lane < VECTOR; ++lane) if (lane < valid) p[lane] = v.lane[lane];
}
"""


@dataclass(frozen=True)
class Schedule:
    """`vector` elements per access, `unroll` accesses per operand in flight, `threads` per block.
    `tile`: permuted inputs go through shared memory. `stream`: stores bypass L2 reuse."""

    vector: int = 4
    unroll: int = 2
    threads: int = 256
    tile: bool = False
    stream: bool = False


@dataclass(frozen=True)
class CudaKernel:
    """A source, and how to launch it. `aligned`: bytes to which an input's start must align."""

    source: str
    name: str
    grid: int
    block: int
    arguments: tuple[str, ...]
    aligned: dict[str, int]


def write(program: Program, schedule: Schedule, name: str) -> CudaKernel:
    """The kernel `name` for `program`."""
    if schedule.tile:
        source, grid = tile_kernel(program, name)
        return CudaKernel(source, name, grid, 256, tuple(program.arguments()), {})
    return _Flat(program, schedule, name).kernel()


class _Flat:
    """Threads along the collapsed space, VECTOR elements of the innermost dim each time."""

    def __init__(self, program: Program, schedule: Schedule, name: str) -> None:
        self.program, self.name = program, name
        self.layout = program.layout
        self.vector = self.layout.vector_width(schedule.vector)
        self.unroll, self.threads = schedule.unroll, schedule.threads
        self.stream = schedule.stream
        self.vectors = -(-self.layout.count // self.vector)
        self.grid = -(-self.vectors // (self.threads * self.unroll))
        self.partial = self.layout.count % self.vector != 0
        slack = self.threads * self.unroll * self.vector
        self.index = "long long" if self.layout.wide(slack) else "int"
        self.exact = self.vectors == self.grid * self.threads * self.unroll
        self.names = [f"d{i}" for i in range(len(self.layout.sizes))]
        self.used_stream = False

    def kernel(self) -> CudaKernel:
        constants = {n: c for n in self.program.inputs if (c := self._constant(n))}
        helpers = set().union(*(h for _, h in constants.values())) if constants else set()
        compute, needed = self._compute(constants)
        lines = [line for text, _ in constants.values() for line in [text]]
        lines += [self._first()]
        moving = [n for n in self.program.inputs if n not in constants]
        lines += self._loads(moving) + compute
        preamble = expressions.preamble(helpers | needed, "cuda")
        aligned = {
            n: min(WORD_BYTES, self.vector * self.layout[n].item_bytes)
            for n in moving
            if self.layout[n].walk == "vector" and self.vector > 1
            and n not in self.program.in_place.values()
        }
        parts = [
            self._comment(),
            preamble,
            self._constants(),
            self._lanes(),
            f'extern "C" __global__ void __launch_bounds__(THREADS) {self.name}(\n    '
            + ",\n    ".join(self.program.parameters("cuda"))
            + ") {\n"
            + "\n".join(f"    {line}" if line else "" for line in lines)
            + "\n}\n",
        ]
        source = "\n\n".join(part.strip("\n") for part in parts if part) + "\n"
        return CudaKernel(source, self.name, self.grid, self.threads,
                          tuple(self.program.arguments()), aligned)

    # --- text around the kernel ---------------------------------------------------------------

    def _comment(self) -> str:
        sizes = "x".join(map(str, self.layout.sizes))
        megabytes = self.program.traffic_bytes / 1e6
        return (
            f"// {describe(self.program.ops)} over {sizes}"
            f"{' (all dims are one)' if self.layout.flat else ''}.\n"
            f"// Bound by memory: at least {megabytes:.4g} MB have to move. All loads of a thread\n"
            "// come before the first use, to keep many bytes in flight."
        )

    def _constants(self) -> str:
        width = self.vector * self.program.narrowest_bytes
        lines = [
            f"constexpr int THREADS = {self.threads};",
            f"constexpr int VECTOR = {self.vector};  // elements per access, {width} bytes or more",
            f"constexpr int UNROLL = {self.unroll};  // vectors per thread",
            f"constexpr {self.index} COUNT = {self.layout.count};",
            f"constexpr {self.index} VECTORS = {self.vectors};",
        ]
        if self.unroll == 1:
            lines.pop(2)
        if not self.partial:
            lines = [line for line in lines if " COUNT " not in line]
        if self.exact:
            lines.pop()
        return "\n".join(lines)

    def _lanes(self) -> str:
        stream = _STREAM.strip() + "\n" if self.used_stream else ""
        return _LANES.strip("\n") + "\n" + (_PARTIAL.strip("\n") + "\n" if self.partial else "") \
            + stream

    def _first(self) -> str:
        wide = "(long long)" if self.index == "long long" else ""
        step = "THREADS" if self.unroll == 1 else "(THREADS * UNROLL)"
        name = "vector" if self.unroll == 1 else "first"
        text = f"const {self.index} {name} = {wide}blockIdx.x * {step} + threadIdx.x;"
        if self.unroll == 1 and not self.exact:
            text += "\n    if (vector >= VECTORS) return;"
        return text

    # --- operands -----------------------------------------------------------------------------

    def _constant(self, name: str) -> tuple[str, frozenset[str]] | None:
        """A value that all elements share is read once per thread."""
        if self.layout[name].walk != "constant":
            return None
        code = self.program.load(f"{self.program.pointer(name)}[0]", name)
        kind = expressions.compute_type(self.program.values[name].dtype)
        return f"const {kind} {identifier(name)} = {code.text};", code.helpers

    def _coordinates(self, operands: list[Operand]) -> list[str]:
        """Lines that give the element coordinates of `vector`, for the dims that are walked."""
        step = "vector" if self.vector == 1 else "vector * VECTOR"
        if self.layout.flat:
            return [f"const {self.index} d0 = {step};"]
        rest = [o for o in operands if not self.layout.in_order(o)]
        element = [f"const {self.index} element = {step};"] if len(rest) < len(operands) else []
        positions = self.program.positions.values()
        used = [d in positions or any(o.strides[d] for o in rest) for d in range(len(self.names))]
        sizes = (*self.layout.sizes[:-1], self.layout.inner // self.vector)
        lines = coordinates(sizes, "vector", self.names, self.index, used)
        if self.vector > 1 and used[-1]:
            lines[-1] = lines[-1].replace(" = ", " = (").replace(";", ") * VECTOR;")
        return element + lines

    def _at(self, operand: Operand) -> str:
        if not self.layout.flat and self.layout.in_order(operand):
            return "element"
        return offset(operand.strides, self.names)

    def _valid(self) -> str:
        return ", COUNT - d0" if self.partial else ""

    def _load(self, name: str, place: str) -> list[str]:
        operand = self.layout[name]
        pointer = f"{self.program.pointer(name)} + {self._at(operand)}"
        if operand.walk == "vector":
            return [f"{place} = load({pointer}{self._valid()});"]
        if operand.walk == "uniform":
            return [f"{place} = {self.program.pointer(name)}"
                    f"[{self._at(operand)}];"]
        step = operand.strides[-1]
        lane = f"{self._at(operand)} + lane * {step}"
        guard = "if (d0 + lane < COUNT) " if self.partial else ""
        return ["#pragma unroll",
                "for (int lane = 0; lane < VECTOR; ++lane)",
                f"    {guard}{place}.lane[lane] = {self.program.pointer(name)}[{lane}];"]

    def _declared(self, name: str) -> str:
        kind = self.program.storage(name)
        if self.layout[name].walk != "uniform":
            kind = f"Lanes<{kind}>"
        suffix = "" if self.unroll == 1 else "[UNROLL]"
        return f"{kind} {identifier(name)}_in{suffix};"

    def _loads(self, names: list[str]) -> list[str]:
        if not names:
            return []
        operands = [self.layout[n] for n in names]
        lines = [self._declared(n) for n in names]
        place = "{}_in" if self.unroll == 1 else "{}_in[u]"
        inner = [line for n in names for line in self._load(n, place.format(identifier(n)))]
        return lines + self._per_vector(self._coordinates(operands) + inner, shared=True)

    def _per_vector(self, inner: list[str], *, shared: bool = False) -> list[str]:
        """`inner` for each of the thread's vectors that exist. `shared`: part of a kernel that
        defines the coordinates again later, so they get a scope."""
        if self.unroll == 1:
            return ["{", *(f"    {line}" for line in inner), "}"] if shared else inner
        guard = [] if self.exact else ["if (vector >= VECTORS) break;"]
        body = [f"const {self.index} vector = first + u * THREADS;", *guard, *inner]
        return ["#pragma unroll", "for (int u = 0; u < UNROLL; ++u) {",
                *(f"    {line}" for line in body), "}"]

    def _compute(self, constants: dict[str, tuple[str, frozenset[str]]]
                 ) -> tuple[list[str], set[str]]:  # fmt: skip
        """Lines that compute and store every vector, and the helpers they need."""
        program = self.program
        scope = {n: identifier(n) for n in program.inputs}
        scope |= program.position_scope(self.names, " + lane" if self.vector > 1 else "")
        helpers: set[str] = set()
        body: list[str] = []
        for name in program.inputs:
            if name in constants:
                continue
            lanes = f"{identifier(name)}_in{'' if self.unroll == 1 else '[u]'}"
            uniform = self.layout[name].walk == "uniform"
            code = program.load(lanes if uniform else f"{lanes}.lane[lane]", name)
            helpers |= code.helpers
            kind = expressions.compute_type(program.values[name].dtype)
            body.append(f"const {kind} {identifier(name)} = {code.text};")
        written = program.body(scope, "cuda")
        helpers |= written.helpers
        body += written.lines
        for name in program.outputs:
            code = program.store(written.scope[name], name)
            helpers |= code.helpers
            body.append(f"{identifier(name)}_out.lane[lane] = {code.text};")
        lines = self._coordinates([self.layout[n] for n in program.outputs])
        lines += [f"Lanes<{program.storage(n)}> {identifier(n)}_out;" for n in program.outputs]
        lines += ["#pragma unroll", "for (int lane = 0; lane < VECTOR; ++lane) {",
                  *(f"    {line}" for line in body), "}"]
        for name in program.outputs:
            lines += self._store(name)
        return self._per_vector(lines), helpers

    def _store(self, name: str) -> list[str]:
        operand = self.layout[name]
        at, pointer = self._at(operand), self.program.pointer(name)
        if operand.walk == "vector" or self.layout.inner == 1:
            whole = operand.item_bytes * self.vector % WORD_BYTES == 0 and not self.partial
            self.used_stream |= self.stream and whole
            call = "stream" if self.stream and whole else "store"
            return [f"{call}({pointer} + {at}, {identifier(name)}_out{self._valid()});"]
        lane = f"{at} + lane * {operand.strides[-1]}"
        return ["#pragma unroll",
                "for (int lane = 0; lane < VECTOR; ++lane)",
                f"    {pointer}[{lane}] = {identifier(name)}_out.lane[lane];"]

