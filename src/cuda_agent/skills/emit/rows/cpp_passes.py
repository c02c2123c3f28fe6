"""Passes over the columns in C++: along one row, or down the columns of neighbouring rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_agent.skills.emit.rows.cpp_text import INF, ONLINE, identity, merged
from cuda_agent.skills.emit.rows.emitter import c_name
from cuda_agent.skills.emit.rows.passes import Pass
from cuda_agent.skills.emit.rows.program import Reduce

if TYPE_CHECKING:
    from cuda_agent.skills.emit.rows.cpp_kernel import CppBody


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
                self._merge_totals(reduce)
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

    # --- loops -------------------------------------------------------------------------------

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
        self, results: list[tuple[str, str, str]], *, effects: bool,
        terms: dict[str, str] | None = None,
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
        out.add("#pragma GCC unroll 8")
        out.open("for (long half = LANES / 2; half > 0; half /= 2) {")
        out.add("#pragma omp simd")
        out.open("for (long lane = 0; lane < half; ++lane) {")
        for kind, name, _ in results:
            out.add(merged(kind, f"{name}_lane[lane]", f"{name}_lane[lane + half]"))
        out.close()
        out.close()
        for kind, name, _ in results:
            out.add(merged(kind, f"{name}_rest", f"{name}_lane[0]"))

    @property
    def lanes(self) -> int:
        return self.body.schedule.width

    # --- results that need more than one accumulator -------------------------------------------

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

    def _merge_totals(self, reduce: Reduce) -> None:
        """Merge the result of one chunk into the totals, in order."""
        out, name = self.out, self.names[reduce]

        def at(total: str) -> str:
            return f"{total}_part[chunk]"

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
            nan = f"({at(name)} != {at(name)} && {name}_all == {name}_all)"
            first = f"{index}_all == 0x7fffffffffffffffLL"
            out.open(f"if ({found} && ({at(name)} {sign} {name}_all || {nan} || {first})) {{")
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
