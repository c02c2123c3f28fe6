"""The body of the C++ function of a row program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_agent.skills.emit.rows.cpp_passes import ColumnPass, RowPass
from cuda_agent.skills.emit.rows.emitter import Emitter, c_name, offset, scaled
from cuda_agent.skills.emit.rows.passes import Pass, Passes
from cuda_agent.skills.emit.rows.program import (
    Load,
    Map,
    Operand,
    Pick,
    Reduce,
    Step,
    Store,
    cone,
)
from cuda_agent.skills.emit.types import Language, storage_type

if TYPE_CHECKING:
    from cuda_agent.skills.emit.rows.cpp import CppSchedule


class CppBody(Emitter):
    language: Language = "cpp"

    def __init__(self, plan: Passes, schedule: CppSchedule) -> None:
        super().__init__(plan.program)
        self.plan, self.schedule = plan, schedule
        self.columns = schedule.layout == "columns"
        self.used: dict[str, Operand] = {}
        self.axes = self.program.col_axes or (1,)
        # Index variables of the column axes: a0, a1, ... and `col` along the innermost.
        self.indices = [f"a{i}" for i in range(len(self.axes) - 1)] + ["col"]
        self.wide_sums = self.program.columns > (256 if self.columns else schedule.tile)

    # --- addresses ---------------------------------------------------------------------------

    def pointer(self, name: str) -> str:
        return f"{c_name(name)}_ptr"

    def use(self, operand: Operand) -> Operand:
        self.used.setdefault(operand.name, operand)
        return operand

    def _base(self, operand: Operand) -> str:
        """Offset of this row, or of the first row of this tile."""
        axes, strides = self.program.row_axes, operand.row_strides
        if not self.columns:
            return offset("row", axes, strides)
        outer = offset("outer", axes[:-1], strides[:-1])
        inner = scaled("first", strides[-1]) if strides[-1] else ""
        return " + ".join(t for t in (outer, inner) if t)

    def declare_bases(self, operands: list[tuple[Operand, bool]]) -> None:
        for operand, is_store in dict(operands).items():
            self.use(operand)
            base, name = self._base(operand), c_name(operand.name)
            const = "" if is_store else "const "
            start = f"{self.pointer(operand.name)} + {base}" if base else self.pointer(operand.name)
            self.out.add(
                f"{const}{storage_type(operand.dtype)}* const __restrict__ {name}_row = {start};")

    def element(self, operand: Operand, flat: str = "") -> str:
        """An element at the current column indices, or at the column `flat`."""
        if flat:
            terms = [offset(flat, self.program.col_axes, operand.col_strides)]
        else:
            strides = operand.col_strides or (0,)
            terms = [scaled(i, s) for i, s in zip(self.indices, strides) if s]
        if self.columns and operand.row_strides[-1]:
            terms.append(scaled("i", operand.row_strides[-1]))
        return f"{c_name(operand.name)}_row[{' + '.join(t for t in terms if t) or 0}]"

    def row_element(self, operand: Operand) -> str:
        terms = [self._base(self.use(operand))]
        if self.columns and operand.row_strides[-1]:
            terms.append(scaled("i", operand.row_strides[-1]))
        return f"{self.pointer(operand.name)}[{' + '.join(t for t in terms if t) or 0}]"

    def flat_column(self) -> str:
        """The column as one number, for argmax and scratch rows."""
        terms, inner = [], 1
        for index, size in zip(reversed(self.indices), reversed(self.axes)):
            terms.append(scaled(index, inner))
            inner *= size
        return " + ".join(reversed(terms))

    # --- the whole function --------------------------------------------------------------------

    def write(self) -> None:
        program, schedule, out = self.program, self.schedule, self.out
        outer_loop = {
            "rows": "for (long row = 0; row < ROWS; ++row) {",
            "chunks": "for (long row = 0; row < ROWS; ++row) {",
            "columns": "for (long tile = 0; tile < (ROWS / INNER) * TILES; ++tile) {",
        }[schedule.layout]
        if schedule.parallel and schedule.layout != "chunks":
            out.add("#pragma omp parallel for schedule(static)")
        out.open(outer_loop)
        if self.columns:
            inner = program.row_axes[-1]
            if len(program.row_axes) > 1:
                out.add("const long outer = tile / TILES;")
            out.add("const long first = tile % TILES * WIDTH;")
            out.add("const long width = INNER - first < WIDTH ? INNER - first : WIDTH;"
                    if inner % schedule.width else "constexpr long width = WIDTH;")
        operands = [(s.operand, isinstance(s, Store)) for p in self.plan.passes
                    for s in p.memory]
        for pick in (s for s in program.steps if isinstance(s, Pick)):
            operands += [(s.operand, False) for s in cone(program, (pick.source,), frozenset())
                         if isinstance(s, Load)]
        self.declare_bases(operands)
        self._scratch()
        self.row_steps(self.plan.before)
        for index, work in enumerate(self.plan.passes):
            if work.over_columns:
                self._pass(work, index)
            self.row_steps(work.after)
        out.close()

    def _scratch(self) -> None:
        for value in self.plan.kept:
            size = "COLS * WIDTH" if self.columns else "COLS"
            self.out.add(f"alignas(64) {self.ctype(value)} {c_name(value)}_kept[{size}];")

    # --- row level -----------------------------------------------------------------------------

    def row_steps(self, steps: tuple[Step, ...]) -> None:
        if not steps:
            return
        out = self.out
        if self.columns:
            for step in steps:
                if isinstance(step, (Load, Map, Pick)):
                    out.add(f"{self.ctype(step.value)} {c_name(step.value)}[WIDTH];")
            out.add("#pragma omp simd")
            out.open("for (long i = 0; i < width; ++i) {")
        for step in steps:
            if isinstance(step, Store):
                value = self.stored(self.scope[step.source], step.source, step.operand.dtype)
                out.add(f"{self.row_element(step.operand)} = {value};")
                continue
            assert isinstance(step, (Load, Map, Pick))
            name, ctype = c_name(step.value), self.ctype(step.value)
            target = f"{name}[i]" if self.columns else f"const {ctype} {name}"
            if isinstance(step, Pick):
                self._pick(step, f"{name}[i]" if self.columns else name, ctype)
            elif isinstance(step, Load):
                text = self.loaded(self.row_element(step.operand), step.operand.dtype)
                out.add(f"{target} = {text};")
            else:
                out.add(f"{target} = {self.code(step, self.scope)};")
            self.scope[step.value] = f"{name}[i]" if self.columns else name
        if self.columns:
            out.close()

    def _pick(self, step: Pick, name: str, ctype: str) -> None:
        """Evaluate the source at one column; an index outside of the row gives NaN (or 0)."""
        index, out = self.scope[step.index], self.out
        if not self.columns:
            out.add(f"{ctype} {name};")
        out.open("{")
        out.add(f"const bool inside = {index} >= 0 && {index} < COLS;",
                f"const long here = inside ? {index} : 0;")
        scope = dict(self.scope)
        for inner in cone(self.program, (step.source,), frozenset()):
            assert isinstance(inner, (Load, Map))
            inner_name = f"at_{c_name(inner.value)}"
            text = (self.loaded(self.element(inner.operand, "here"), inner.operand.dtype)
                    if isinstance(inner, Load) else self.code(inner, scope))
            out.add(f"const {self.ctype(inner.value)} {inner_name} = {text};")
            scope[inner.value] = inner_name
        outside = {"float": '__builtin_nanf("")', "double": '__builtin_nan("")'}.get(ctype, "0")
        out.add(f"{name} = inside ? {scope[step.source]} : {outside};")
        out.close()

    # --- passes --------------------------------------------------------------------------------

    def _pass(self, work: Pass, index: int) -> None:
        if self.columns:
            ColumnPass(self, work, index).write()
        else:
            RowPass(self, work, index).write()

    def total_type(self, reduce: Reduce) -> str:
        """Type of a running result: double for float sums of several tiles."""
        ctype = self.ctype(reduce.values[0])
        wide = reduce.kind in ("sum", "prod") and ctype == "float" and self.wide_sums
        return "double" if wide else ctype

    def elements(self, work: Pass, scope: dict[str, str], *, effects: bool = True) -> None:
        """Values of one element in order; with `effects` also scratch writes and stores."""
        slot = self.flat_column()
        if self.columns:
            slot = f"({slot}) * WIDTH + i" if " " in slot else f"{slot} * WIDTH + i"
        for value in self._lent(work):
            scope[value] = f"{c_name(value)}_kept[{slot}]"
        for step in work.computed:
            name = c_name(step.value)
            text = (self.loaded(self.element(step.operand), step.operand.dtype)
                    if isinstance(step, Load) else self.code(step, scope))
            self.out.add(f"const {self.ctype(step.value)} {name} = {text};")
            scope[step.value] = name
            if effects and step.value in self.plan.kept:
                self.out.add(f"{name}_kept[{slot}] = {name};")
        if effects:
            for store in work.stores:
                value = self.stored(scope[store.source], store.source, store.operand.dtype)
                self.out.add(f"{self.element(store.operand)} = {value};")

    def _lent(self, work: Pass) -> list[str]:
        here = {s.value for s in work.computed}
        names = [n for m in work.maps for n in m.refs]
        names += [s.source for s in work.consumers]
        return [n for n in dict.fromkeys(names) if n in self.plan.kept and n not in here]
