"""The body of the C++ function of a row program."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

NAN_MINMAX = """
// NaN wins, as in torch. Branch-free, so that loops vectorise.
template <typename T>
static inline __attribute__((always_inline)) T nan_max(T a, T b) {
    return (a > b) | (a != a) ? a : b;
}

template <typename T>
static inline __attribute__((always_inline)) T nan_min(T a, T b) {
    return (a < b) | (a != a) ? a : b;
}"""

INF = "__builtin_inff()"
ONLINE = ("max_expsum", "mean_m2")


def extreme(ctype: str, *, largest: bool) -> str:
    if ctype == "bool":
        return "true" if largest else "false"
    if ctype == "long long":
        return "9223372036854775807LL" if largest else "(-9223372036854775807LL - 1)"
    text = INF if ctype == "float" else "__builtin_inf()"
    return text if largest else f"-{text}"


def identity(kind: str, ctype: str) -> str:
    if kind in ("max", "argmax", "max_expsum"):
        return extreme(ctype, largest=False)
    if kind in ("min", "argmin"):
        return extreme(ctype, largest=True)
    return {"sum": "0", "mean_m2": "0", "prod": "1", "any": "false", "all": "true"}[kind]


def merged(kind: str, into: str, value: str) -> str:
    """One statement that takes `value` into a running result."""
    if kind in ("max", "min"):
        return f"{into} = nan_{kind}({into}, {value});"
    sign = {"sum": "+=", "prod": "*=", "any": "|=", "all": "&="}[kind]
    return f"{into} {sign} {value};"


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
                    for s in (*p.loads, *p.stores)]
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
                if not isinstance(step, (Store, Reduce)):
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
        for step in (*work.loads, *work.maps):
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
        here = {s.value for s in (*work.loads, *work.maps)}
        names = [n for m in work.maps for n in m.refs]
        names += [s.source for s in (*work.reduces, *work.stores)]
        return [n for n in dict.fromkeys(names) if n in self.plan.kept and n not in here]


class RowPass:
    """One pass along a row: lanes of accumulators within a tile, totals across tiles."""

    def __init__(self, body: CppBody, work: Pass, index: int) -> None:
        self.body, self.work, self.index, self.out = body, work, index, body.out
        self.chunked = body.schedule.layout == "chunks"
        self.inner = body.axes[-1]
        self.tiled = self.inner > body.schedule.tile
        self.names = {r: c_name(r.values[0]) for r in work.reduces}

    def write(self) -> None:
        body, out = self.body, self.out
        if not self.work.reduces:
            self._map_only()
            return
        if self.chunked:
            for name, ctype, _ in self._totals():
                out.add(f"{ctype} {name}_part[CHUNKS];")
            self._open_chunks()
        for name, ctype, start in self._totals():
            out.add(f"{ctype} {name}_all = {start};")
        depth = self._open_axes()
        if depth == 0:
            out.open("{")
        self._tile()
        for _ in range(max(depth, 1)):
            out.close()
        if self.chunked:
            for name, _, _ in self._totals():
                out.add(f"{name}_part[chunk] = {name}_all;")
            out.close()
            for name, ctype, start in self._totals():
                out.add(f"{ctype} {name}_all = {start};")
            out.open("for (long chunk = 0; chunk < CHUNKS; ++chunk) {")
            for reduce in self.work.reduces:
                self._merge_totals(reduce, lambda n: f"{n}_part[chunk]")
            out.close()
        for reduce in self.work.reduces:
            for value in reduce.values:
                name, ctype = c_name(value), body.ctype(value)
                cast = f"({ctype})" if ctype != self._type_of(name) else ""
                out.add(f"const {ctype} {name} = {cast}{name}_all;")
                body.scope[value] = name

    def _totals(self) -> list[tuple[str, str, str]]:
        """(name, type, start) of every running result."""
        rows: list[tuple[str, str, str]] = []
        for reduce, name in self.names.items():
            ctype = self.body.ctype(reduce.values[0])
            if reduce.kind == "mean_m2":
                rows.append((f"{name}_count", "double", "0"))
                rows += [(c_name(v), "double", "0") for v in reduce.values]
            else:
                rows.append((name, self.body.total_type(reduce), identity(reduce.kind, ctype)))
                if reduce.kind == "max_expsum":
                    rows.append((c_name(reduce.values[1]), "double", "0"))
                elif reduce.kind.startswith("arg"):
                    rows.append((c_name(reduce.values[1]), "long long", "0x7fffffffffffffffLL"))
        return rows

    def _type_of(self, name: str) -> str:
        return next(ctype for n, ctype, _ in self._totals() if n == name)

    # --- loops -----------------------------------------------------------------------------------

    def _open_chunks(self) -> None:
        if self.body.schedule.parallel:
            self.out.add("#pragma omp parallel for schedule(static)")
        self.out.open("for (long chunk = 0; chunk < CHUNKS; ++chunk) {")
        size = self.body.axes[0]
        self.out.add(f"const long begin = {size} * chunk / CHUNKS;",
                     f"const long end = {size} * (chunk + 1) / CHUNKS;")

    def _open_axes(self) -> int:
        """Loops over all column axes but the innermost, then over tiles; returns how many."""
        body, out = self.body, self.out
        depth = 0
        for position, index in enumerate(body.indices[:-1]):
            low, high = ("begin", "end") if self.chunked and position == 0 else (
                "0", str(body.axes[position]))
            out.open(f"for (long {index} = {low}; {index} < {high}; ++{index}) {{")
            depth += 1
        whole = not (self.chunked and len(body.axes) == 1)
        low, high = ("0", str(self.inner)) if whole else ("begin", "end")
        if self.tiled or not whole:
            out.open(f"for (long first = {low}; first < {high}; first += TILE) {{")
            out.add(f"const long last = first + TILE < {high} ? first + TILE : {high};")
            self.low, self.high = "first", "last"
            return depth + 1
        self.low, self.high = low, high
        return depth

    def _map_only(self) -> None:
        body, out = self.body, self.out
        if self.chunked:
            self._open_chunks()
        depth = 0
        for position, index in enumerate(body.indices[:-1]):
            low, high = ("begin", "end") if self.chunked and position == 0 else (
                "0", str(body.axes[position]))
            out.open(f"for (long {index} = {low}; {index} < {high}; ++{index}) {{")
            depth += 1
        flat = self.chunked and len(body.axes) == 1
        low, high = ("begin", "end") if flat else ("0", str(self.inner))
        out.add("#pragma omp simd")
        out.open(f"for (long col = {low}; col < {high}; ++col) {{")
        body.elements(self.work, dict(body.scope))
        for _ in range(depth + 1 + self.chunked):
            out.close()

    def _tile(self) -> None:
        """Reduce the columns low..high into lanes, then into the totals."""
        online = [r for r in self.work.reduces if r.kind in ONLINE]
        self._lanes([(self._lane_kind(r), self.names[r], r.source) for r in self.work.reduces],
                    effects=True)
        for reduce in self.work.reduces:
            name = self.names[reduce]
            if reduce.kind in ("argmax", "argmin"):
                self._find(reduce, name)
            elif reduce not in online:
                self.out.add(merged(reduce.kind, f"{name}_all", f"{name}_rest"))
        for reduce in online:
            self._online(reduce)

    def _lane_kind(self, reduce: Reduce) -> str:
        return {"argmax": "max", "argmin": "min", "max_expsum": "max",
                "mean_m2": "sum"}.get(reduce.kind, reduce.kind)

    def _lanes(
        self, results: list[tuple[str, str, str]], *, effects: bool, terms: dict[str, str] | None =
        None
    ) -> None:
        """Accumulate (kind, name, source) over the tile; `NAME_rest` holds each result after.

        `terms` maps a name to the text of what is accumulated, with `{}` for the source."""
        body, out = self.body, self.out
        lanes = self.lanes
        parameters = ""
        for kind, name, source in results:
            ctype = body.ctype(source)
            start = identity(kind, ctype)
            out.add(f"{ctype} {name}_rest = {start};")
            if lanes > 1:
                out.add(f"{ctype} {name}_lane[LANES];",
                        f"for (long lane = 0; lane < LANES; ++lane) {name}_lane[lane] = {start};")
            parameters += f", {ctype}& {name}_into"
        out.open(f"const auto take = [&](long col{parameters}) "
                 "__attribute__((always_inline)) {")
        scope = dict(body.scope)
        body.elements(self.work, scope, effects=effects)
        for kind, name, source in results:
            value = (terms or {}).get(name, "{}").format(scope[source])
            out.add(merged(kind, f"{name}_into", value))
        out.close("};")
        if lanes == 1:
            rest = "".join(f", {name}_rest" for _, name, _ in results)
            out.add(f"for (long col = {self.low}; col < {self.high}; ++col) take(col{rest});")
            return
        into = "".join(f", {name}_lane[lane]" for _, name, _ in results)
        rest = "".join(f", {name}_rest" for _, name, _ in results)
        out.add(f"long col = {self.low};")
        out.open(f"for (; col + LANES <= {self.high}; col += LANES) {{")
        out.add("#pragma omp simd",
                f"for (long lane = 0; lane < LANES; ++lane) take(col + lane{into});")
        out.close()
        if not (self.low == "0" and self.inner % lanes == 0):
            out.add(f"for (; col < {self.high}; ++col) take(col{rest});")
        out.add("#pragma GCC unroll 8",
                "for (long half = LANES / 2; half > 0; half /= 2)")
        out.open("    for (long lane = 0; lane < half; ++lane) {")
        for kind, name, _ in results:
            out.add(merged(kind, f"{name}_lane[lane]", f"{name}_lane[lane + half]"))
        out.close("    }")
        for kind, name, _ in results:
            out.add(merged(kind, f"{name}_rest", f"{name}_lane[0]"))

    @property
    def lanes(self) -> int:
        return self.body.schedule.width

    # --- results that need more than one accumulator ------------------------------------------------

    def _find(self, reduce: Reduce, name: str) -> None:
        """The first column of a tile that holds its extreme, when that beats the one so far."""
        body, out = self.body, self.out
        sign = ">" if reduce.kind == "argmax" else "<"
        index = c_name(reduce.values[1])
        out.open(f"if ({name}_rest {sign} {name}_all || ({name}_rest != {name}_rest && "
                 f"{name}_all == {name}_all) || {index}_all == 0x7fffffffffffffffLL) {{")
        out.add(f"{name}_all = {name}_rest;")
        out.open(f"for (long col = {self.low}; col < {self.high}; ++col) {{")
        scope = dict(body.scope)
        body.elements(self.work, scope, effects=False)
        value = scope[reduce.source]
        out.add(f"if ({value} == {name}_all || {value} != {value}) {{",
                f"    {index}_all = {body.flat_column()};", "    break;", "}")
        out.close()
        out.close()

    def _online(self, reduce: Reduce) -> None:
        """A second run over the tile, which lies in cache, relative to its own max or mean."""
        out, name = self.out, self.names[reduce]
        second = c_name(reduce.values[1])
        out.open("{")
        if reduce.kind == "max_expsum":
            self.body.helpers.add("exp_f32")
            out.add(f"const float top = nan_max({name}_all, {name}_rest);",
                    f"const float base = __builtin_fabsf(top) == {INF} ? 0.0f : top;")
            self._lanes([("sum", second, reduce.source)], effects=False,
                        terms={second: "exp_f32({} - base)"})
            out.add(f"{second}_all = {second}_all * exp_f32({name}_all - base) + {second}_rest;",
                    f"{name}_all = top;")
        else:
            out.add(f"const double count = {self._tile_count()};",
                    f"const float center = (float)({name}_rest / count);")
            self._lanes([("sum", second, reduce.source)], effects=False,
                        terms={second: "({0} - center) * ({0} - center)"})
            self._chan(name, second, "count", "center", f"{second}_rest")
        out.close()

    def _tile_count(self) -> str:
        return str(self.inner) if (self.low, self.high) == ("0", str(self.inner)) else (
            f"{self.high} - {self.low}")

    def _chan(self, mean: str, m2: str, count: str, other_mean: str, other_m2: str) -> None:
        """Chan, Golub and LeVeque, 1979."""
        self.out.add(
            f"const double gap = {other_mean} - {mean}_all;",
            f"const double both = {mean}_count_all + {count};",
            f"const double share = both > 0 ? {count} / both : 0;",
            f"{m2}_all += {other_m2} + gap * gap * {mean}_count_all * share;",
            f"{mean}_all += gap * share;",
            f"{mean}_count_all = both;")

    def _merge_totals(self, reduce: Reduce, part: object) -> None:
        """Merge the result of one chunk into the totals, in order."""
        out, name = self.out, self.names[reduce]
        at = lambda n: f"{n}_part[chunk]"  # noqa: E731
        if reduce.kind == "mean_m2":
            out.open("{")
            self._chan(name, c_name(reduce.values[1]), at(f"{name}_count"), at(name),
                       at(c_name(reduce.values[1])))
            out.close()
        elif reduce.kind == "max_expsum":
            second = c_name(reduce.values[1])
            out.open("{")
            out.add(f"const float top = nan_max({name}_all, {at(name)});",
                    f"const float base = __builtin_fabsf(top) == {INF} ? 0.0f : top;",
                    f"{second}_all = {second}_all * exp_f32({name}_all - base)",
                    f"    + {at(second)} * exp_f32({at(name)} - base);",
                    f"{name}_all = top;")
            out.close()
        elif reduce.kind.startswith("arg"):
            sign, index = ">" if reduce.kind == "argmax" else "<", c_name(reduce.values[1])
            found = f"{at(index)} != 0x7fffffffffffffffLL"
            out.open(f"if ({found} && ({at(name)} {sign} {name}_all || ({at(name)} != {at(name)} && "
                     f"{name}_all == {name}_all) || {index}_all == 0x7fffffffffffffffLL)) {{")
            out.add(f"{name}_all = {at(name)};", f"{index}_all = {at(index)};")
            out.close()
        else:
            out.add(merged(reduce.kind, f"{name}_all", at(name)))


class ColumnPass:
    """One pass over the columns of WIDTH neighbouring rows."""

    FLUSH = 256  # columns that are summed up in float before they join a double

    def __init__(self, body: CppBody, work: Pass, index: int) -> None:
        self.body, self.work, self.index, self.out = body, work, index, body.out

    def write(self) -> None:
        body, out = self.body, self.out
        wide = [r for r in self.work.reduces if body.total_type(r) != body.ctype(r.values[0])]
        for reduce in self.work.reduces:
            ctype, name = body.ctype(reduce.values[0]), c_name(reduce.values[0])
            out.add(f"{body.total_type(reduce)} {name}_all[WIDTH];")
            self._fill(f"{name}_all", identity(reduce.kind, ctype))
            if reduce.kind.startswith("arg"):
                out.add(f"long long {c_name(reduce.values[1])}_all[WIDTH];")
                self._fill(f"{c_name(reduce.values[1])}_all", "0")
        for index, size in zip(body.indices[:-1], body.axes[:-1]):
            out.open(f"for (long {index} = 0; {index} < {size}; ++{index}) {{")
        inner = body.axes[-1]
        flush = wide and inner > self.FLUSH
        if flush:
            out.open(f"for (long begin = 0; begin < {inner}; begin += {self.FLUSH}) {{")
            out.add(f"const long end = begin + {self.FLUSH} < {inner} ? begin + {self.FLUSH} : "
                    f"{inner};")
        for reduce in wide:
            name = c_name(reduce.values[0])
            out.add(f"{body.ctype(reduce.values[0])} {name}_part[WIDTH];")
            self._fill(f"{name}_part", identity(reduce.kind, body.ctype(reduce.values[0])))
        out.open("for (long col = begin; col < end; ++col) {" if flush else
                 f"for (long col = 0; col < {inner}; ++col) {{")
        self._element(wide)
        out.close()
        for reduce in wide:
            name = c_name(reduce.values[0])
            out.add(f"for (long i = 0; i < width; ++i) "
                    f"{merged(reduce.kind, f'{name}_all[i]', f'{name}_part[i]')}")
        for _ in range(len(body.indices) - 1 + bool(flush)):
            out.close()
        for reduce in self.work.reduces:
            for value in reduce.values:
                cast = "(float)" if reduce in wide else ""
                body.scope[value] = f"{cast}{c_name(value)}_all[i]"

    def _fill(self, name: str, value: str) -> None:
        self.out.add(f"for (long i = 0; i < WIDTH; ++i) {name}[i] = {value};")

    def _element(self, wide: list[Reduce]) -> None:
        body, out = self.body, self.out
        out.add("#pragma omp simd")
        out.open("for (long i = 0; i < width; ++i) {")
        scope = dict(body.scope)
        body.elements(self.work, scope)
        for reduce in self.work.reduces:
            name, value = c_name(reduce.values[0]), scope[reduce.source]
            if reduce.kind.startswith("arg"):
                sign, index = ">" if reduce.kind == "argmax" else "<", c_name(reduce.values[1])
                column = body.flat_column()
                out.add(f"const bool better_{name} = ({value} {sign} {name}_all[i]) | "
                        f"(({value} != {value}) & ({name}_all[i] == {name}_all[i]));",
                        f"{index}_all[i] = better_{name} ? {column} : {index}_all[i];",
                        f"{name}_all[i] = better_{name} ? {value} : {name}_all[i];")
            else:
                part = "part" if reduce in wide else "all"
                out.add(merged(reduce.kind, f"{name}_{part}[i]", value))
        out.close()
