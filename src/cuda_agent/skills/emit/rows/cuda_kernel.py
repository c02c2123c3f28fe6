"""The body of one CUDA kernel of a row program."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cuda_agent.skills.emit.rows import cuda_merge
from cuda_agent.skills.emit.rows.cuda_access import Access
from cuda_agent.skills.emit.rows.emitter import Emitter, c_name
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
from cuda_agent.skills.emit.rows.schedule import Schedule
from cuda_agent.skills.emit.types import Language

ONLINE = ("max_expsum", "mean_m2")
NAN = {"float": "__int_as_float(0x7fffffff)",
       "double": "__longlong_as_double(0x7ff8000000000000LL)"}


class KernelBody(Emitter):
    """Emits passes of a program under a schedule."""

    language: Language = "cuda"

    def __init__(self, plan: Passes, schedule: Schedule) -> None:
        super().__init__(plan.program)
        self.plan, self.schedule = plan, schedule
        self.used: dict[str, Access] = {}
        columns = self.program.columns
        self.chunks = schedule.chunks(columns)
        whole = schedule.storage == "register"
        self.batch = self.chunks if whole else min(schedule.unroll, self.chunks)
        self.looped = self.chunks > self.batch
        covered = -(-self.chunks // self.batch) * self.batch * schedule.step
        self.guarded = covered != columns
        # Whether elements of a chunk are looped over; row-level values are arrays of `i` as well.
        self.loops_lanes = schedule.vector > 1 or schedule.column_layout
        self.lane = "i" if self.loops_lanes else ""
        self.shared_bytes = 0
        self.tail = False

    # --- operands ----------------------------------------------------------------------------

    def access(self, operand: Operand, *, is_store: bool = False) -> Access:
        if operand.name not in self.used:
            self.used[operand.name] = Access(
                self.program, self.schedule, operand, is_store=is_store)
        return self.used[operand.name]

    def declare_bases(self, passes: Iterable[Pass]) -> None:
        """Pointers to this thread's row for every elem-level operand that the passes touch."""
        elem = [(s.operand, isinstance(s, Store)) for p in passes for s in p.memory]
        for step in self.program.steps:
            if isinstance(step, Pick):
                elem += [(s.operand, False) for s in cone(self.program, (step.source,), frozenset())
                         if isinstance(s, Load)]
        for operand, store in dict(elem).items():
            access = self.access(operand, is_store=store)
            self.tail = self.tail or access.has_tail
            self.out.add(access.declare_base())

    # --- row level ---------------------------------------------------------------------------

    def row_steps(self, steps: tuple[Step, ...], *, store: bool, writer: str) -> None:
        """Row-level steps; in the column layout once for each of the thread's rows."""
        work = [s for s in steps if isinstance(s, (Load, Map, Pick))]
        stores = [s for s in steps if isinstance(s, Store)] if store else []
        column = self.schedule.column_layout
        if column and work:
            for step in work:
                self.out.add(f"{self.ctype(step.value)} {c_name(step.value)}[VEC];")
            self._open_lanes()
        for step in work:
            name, ctype = c_name(step.value), self.ctype(step.value)
            target = f"{name}[i]" if column else f"const {ctype} {name}"
            if isinstance(step, Pick):
                self._pick(step, f"{name}[i]" if column else name, ctype)
            elif isinstance(step, Load):
                access = self.access(step.operand)
                text = self.loaded(access.row_element("i"), step.operand.dtype)
                self.out.add(f"{target} = {text};")
            else:
                self.out.add(f"{target} = {self.code(step, self.scope)};")
            self.scope[step.value] = f"{name}[i]" if column else name
        if column and work:
            self.out.close()
        if stores:
            self.out.open(f"if ({writer}) {{")
            if column:
                self._open_lanes()
            for result in stores:
                access = self.access(result.operand, is_store=True)
                value = self.stored(self.scope[result.source], result.source, result.operand.dtype)
                self.out.add(f"{access.row_element('i')} = {value};")
            if column:
                self.out.close()
            self.out.close()

    def _open_lanes(self) -> None:
        self.out.add("#pragma unroll")
        self.out.open("for (int i = 0; i < VEC; ++i) {")

    def _pick(self, step: Pick, name: str, ctype: str) -> None:
        """Evaluate the source at one column; an index outside of the row gives NaN (or 0)."""
        index = self.scope[step.index]
        column = self.schedule.column_layout
        if not column:
            self.out.add(f"{ctype} {name};")
        self.out.open("{")
        self.out.add(f"const bool inside = {index} >= 0 && {index} < (long long)COLS;",
                     f"const {self.col_type} here = inside ? {index} : 0;")
        scope = dict(self.scope)
        for inner in cone(self.program, (step.source,), frozenset()):
            assert isinstance(inner, (Load, Map))
            inner_name = c_name(inner.value)
            if isinstance(inner, Load):
                lane = "i" if column else ""
                element = self.access(inner.operand).element("here", lane)
                text = self.loaded(element, inner.operand.dtype)
            else:
                text = self.code(inner, scope)
            self.out.add(f"const {self.ctype(inner.value)} at_{inner_name} = {text};")
            scope[inner.value] = f"at_{inner_name}"
        self.out.add(f"{name} = inside ? {scope[step.source]} : {NAN.get(ctype, '0')};")
        self.out.close()

    # --- elem level --------------------------------------------------------------------------

    @property
    def col_type(self) -> str:
        """Columns and the offsets they lead to stay in 32 bits where they fit."""
        reach = max((sum((n - 1) * s for n, s in zip(self.program.col_axes, o.col_strides))
                     for o in self.program.operands), default=0)
        slack = (self.batch + 1) * self.schedule.step
        wide = max(reach, self.program.columns + slack) >= 2**31
        return "unsigned long long" if wide else "unsigned"

    @property
    def row_type(self) -> str:
        reach = max((sum((n - 1) * s for n, s in zip(self.program.row_axes, o.row_strides))
                     for o in self.program.operands), default=0)
        return "unsigned long long" if reach >= 2**31 else "unsigned"

    def kept_in(self, value: str, index: int) -> bool:
        return value in self.plan.kept and self.plan.kept[value][0] == index

    def elem_pass(self, index: int) -> None:
        """Loads, maps, reductions and elem-level stores of one pass over the columns."""
        work = self.plan.passes[index]
        sums = f"sums{index}"
        if work.reduces:
            self._declare_sums(sums, index)
        self._declare_kept(work, index)
        if not work.over_columns:
            return
        self.out.open(f"for (unsigned k = 0; k < {self.chunks}; k += {self.batch}) {{"
                      if self.looped else "{")
        for load in work.loads:
            access = self.access(load.operand)
            if not (self.kept_in(load.value, index) and self.schedule.storage == "register"):
                self.out.add(f"{access.type} {c_name(load.value)}_raw[{self.batch}];")
        if work.loads:
            self._open_chunks()
            for load in work.loads:
                self.out.add(*self.access(load.operand).load(
                    f"{c_name(load.value)}_raw[u]", "col"))
            self._close_chunks()
        online = [r for r in work.reduces if r.kind in ONLINE]
        for source in dict.fromkeys(r.source for r in online):
            self.out.add(f"float {c_name(source)}_batch[{self.batch}][VEC];")
        self._open_chunks()
        self._chunk(work, index, sums, online)
        self._close_chunks(online)
        for reduce in online:
            self._online(reduce, sums)
        self.out.close()

    def _declare_sums(self, sums: str, index: int) -> None:
        if not self.schedule.column_layout:
            self.out.add(f"Sums{index} {sums} = Sums{index}::identity();")
            return
        self.out.add(f"Sums{index} {sums}[VEC];")
        self._open_lanes()
        self.out.add(f"{sums}[i] = Sums{index}::identity();")
        self.out.close()

    def _declare_kept(self, work: Pass, index: int) -> None:
        """Room for what later passes read again."""
        chunks = -(-self.chunks // self.batch) * self.batch
        for step in work.computed:
            if not self.kept_in(step.value, index):
                continue
            name = c_name(step.value)
            if isinstance(step, Load):
                access = self.access(step.operand)
                ctype, size = access.type, step.operand.element_bytes
                size *= 1 if access.mode == "splat" else self.schedule.vector
            else:
                base = self.ctype(step.value)
                size = {"float": 4, "double": 8, "long long": 8, "bool": 1}[base]
                size *= self.schedule.vector
                ctype = f"Pack<{base}, VEC>" if self.schedule.vector > 1 else base
            if self.schedule.storage == "register":
                suffix = "raw" if isinstance(step, Load) else "kept"
                self.out.add(f"{ctype} {name}_{suffix}[{chunks}];")
            else:
                start = -(-self.shared_bytes // 16) * 16
                self.out.add(f"{ctype}* const {name}_kept = "
                             f"reinterpret_cast<{ctype}*>(shared + {start});")
                self.shared_bytes = start + chunks * self.schedule.threads * size

    def _open_chunks(self) -> None:
        """A loop over the chunks of a batch; `col` is the first column of the chunk."""
        self.out.add("#pragma unroll")
        self.out.open(f"for (int u = 0; u < {self.batch}; ++u) {{")
        chunk = "(k + u)" if self.looped else "u"
        times = "" if self.schedule.column_layout or self.schedule.vector == 1 else " * VEC"
        first = f"({chunk} * PARTS + thread)" if times else f"{chunk} * PARTS + thread"
        self._col_line = len(self.out.text)
        self.out.add(f"const {self.col_type} col = {first}{times};")
        if self.guarded:
            self.out.open("if (col < COLS) {")

    def _close_chunks(self, online: Iterable[Reduce] = ()) -> None:
        if self.guarded:
            fills = [r for r in online if r.kind == "max_expsum"]
            if fills:
                self.out.close("} else {")
                self.out.depth += 1
                for source in dict.fromkeys(r.source for r in fills):
                    self._each(f"{c_name(source)}_batch[u][i] = -{cuda_merge.INF};")
            self.out.close()
        self.out.close()
        if not any(re.search(r"\bcol\b", line) for line in self.out.text[self._col_line + 1 :]):
            del self.out.text[self._col_line]

    def _each(self, line: str) -> None:
        """`line` for each element `i` of a chunk."""
        if self.schedule.vector == 1:
            self.out.add(line.replace("[i]", "[0]"))
        else:
            self.out.add("#pragma unroll", f"for (int i = 0; i < VEC; ++i) {line}")

    def _chunk(self, work: Pass, index: int, sums: str, online: list[Reduce]) -> None:
        """What one chunk of every operand goes through."""
        vector = self.schedule.vector
        slot = "(k + u) * THREADS + threadIdx.x" if self.looped else "u * THREADS + threadIdx.x"
        shared = self.schedule.storage != "register"
        element = ".v[i]" if vector > 1 else ""
        packed = [s for s in work.stores if self.access(s.operand, is_store=True).mode == "vector"]
        kept_maps = [m for m in work.maps if self.kept_in(m.value, index)]
        lent = self._lent(work, index)
        if shared:
            for value in lent:
                self.out.add(f"const auto {c_name(value)}_here = {c_name(value)}_kept[{slot}];")
        for store in packed:
            access = self.access(store.operand)
            self.out.add(f"{access.type} {access.name}_pack;")
        if shared:
            for map_ in kept_maps:
                base = self.ctype(map_.value)
                pack = f"Pack<{base}, VEC>" if vector > 1 else base
                self.out.add(f"{pack} {c_name(map_.value)}_here;")
        if self.loops_lanes:
            self._open_lanes()
            if self.tail:
                self.out.open("if (col + i >= COLS) {")
                self.out.add(*(f"{c_name(r.source)}_batch[u][i] = -{cuda_merge.INF};"
                               for r in online if r.kind == "max_expsum"), "continue;")
                self.out.close()
        scope = dict(self.scope)
        for value in lent:
            scope[value] = self._lent_text(value, shared, element)
        self._elements(work, scope, index, sums, online)
        if self.loops_lanes:
            self.out.close()
        for store in packed:
            access = self.access(store.operand)
            self.out.add(*access.store(f"{access.name}_pack", "col"))
        if shared:
            kept = [*(ld.value for ld in work.loads if self.kept_in(ld.value, index)),
                    *(m.value for m in kept_maps)]
            for value in kept:
                is_load = any(ld.value == value for ld in work.loads)
                source = f"{c_name(value)}_raw[u]" if is_load else f"{c_name(value)}_here"
                self.out.add(f"{c_name(value)}_kept[{slot}] = {source};")

    def _lent(self, work: Pass, index: int) -> list[str]:
        """Values kept by an earlier pass that this one reads."""
        names = [n for m in work.maps for n in m.refs]
        names += [s.source for s in work.consumers]
        kept = self.plan.kept
        return [n for n in dict.fromkeys(names) if n in kept and kept[n][0] < index]

    def _lent_text(self, value: str, shared: bool, element: str) -> str:
        step = self.program.step_of(value)
        name = c_name(value)
        if isinstance(step, Load):
            access = self.access(step.operand)
            part = element if access.mode != "splat" else ""
            raw = f"{name}_here{part}" if shared else f"{name}_raw[u]{part}"
            return self.loaded(raw, step.operand.dtype)
        return f"{name}_here{element}" if shared else f"{name}_kept[u]{element}"

    def _elements(
        self, work: Pass, scope: dict[str, str], index: int, sums: str, online: list[Reduce]
    ) -> None:
        """Element `i` of a chunk: values in order, then reductions and stores."""
        element = ".v[i]" if self.schedule.vector > 1 else ""
        lane = "[i]" if self.loops_lanes else "[0]"
        for load in work.loads:
            part = element if self.access(load.operand).mode != "splat" else ""
            text = self.loaded(f"{c_name(load.value)}_raw[u]{part}", load.operand.dtype)
            self.out.add(f"const {self.ctype(load.value)} {c_name(load.value)} = {text};")
            scope[load.value] = c_name(load.value)
        for step in work.maps:
            name = c_name(step.value)
            self.out.add(f"const {self.ctype(step.value)} {name} = {self.code(step, scope)};")
            scope[step.value] = name
            if self.kept_in(step.value, index):
                where = (f"{name}_here{element}" if self.schedule.storage != "register"
                         else f"{name}_kept[u]{element}")
                self.out.add(f"{where} = {name};")
        into = f"{sums}{lane}" if self.schedule.column_layout else sums
        for source in dict.fromkeys(r.source for r in online):
            self.out.add(f"{c_name(source)}_batch[u]{lane} = {scope[source]};")
        for reduce in work.reduces:
            self._take(reduce, into, scope[reduce.source])
        self._element_stores(work, scope, element)

    def _take(self, reduce: Reduce, into: str, value: str) -> None:
        if reduce.kind in ONLINE:
            return
        name = c_name(reduce.values[0])
        if reduce.kind not in ("argmax", "argmin"):
            self.out.add(cuda_merge.accumulate(reduce.kind, f"{into}.{name}", value))
            return
        index = c_name(reduce.values[1])
        at = "col + i" if self.lane and not self.schedule.column_layout else "col"
        self.out.open(f"if (beats_{reduce.kind[3:]}({value}, {at}, "
                      f"{into}.{name}, {into}.{index})) {{")
        self.out.add(f"{into}.{name} = {value};", f"{into}.{index} = {at};")
        self.out.close()

    def _element_stores(self, work: Pass, scope: dict[str, str], element: str) -> None:
        for store in work.stores:
            access = self.access(store.operand)
            text = self.stored(scope[store.source], store.source, store.operand.dtype)
            if access.mode == "vector":
                self.out.add(f"{access.name}_pack{element} = {text};")
            else:
                self.out.add(f"{access.element('col', self.lane)} = {text};")

    def _online(self, reduce: Reduce, sums: str) -> None:
        """Merge a batch into a running pair: the batch is reduced on its own first."""
        column = self.schedule.column_layout
        into = f"{sums}[i]" if column else sums
        names = [c_name(v) for v in reduce.values]
        batch = f"{c_name(reduce.source)}_batch[u][i]"
        if column:
            self._open_lanes()
        else:
            self.out.open("{")
        if reduce.kind == "max_expsum":
            self.out.add(f"float top = {into}.{names[0]};")
            self._batch(f"top = nan_max(top, {batch});", guard=False)
            self.out.add("const float base = exp_base(top);",
                         f"float total = {into}.{names[1]} * expf({into}.{names[0]} - base);")
            self._batch(f"total += expf({batch} - base);", guard=False)
            self.out.add(f"{into}.{names[0]} = top;", f"{into}.{names[1]} = total;")
        else:
            others = [f"{n}_count" for n in names[:1]]
            self.out.add("float count = 0.0f, total = 0.0f;")
            self._batch(f"count += 1.0f, total += {batch};", guard=True)
            self.out.add("const float center = count > 0.0f ? total / count : 0.0f;",
                         "float spread = 0.0f;")
            self._batch(f"spread += ({batch} - center) * ({batch} - center);", guard=True)
            kind = sums[len("sums"):]
            self.out.add(f"Sums{kind} batch = Sums{kind}::identity();",
                         f"batch.{others[0]} = count;", f"batch.{names[0]} = center;",
                         f"batch.{names[1]} = spread;", f"{into}.merge(batch);")
        self.out.close()

    def _batch(self, line: str, *, guard: bool) -> None:
        """`line` for every element of a batch that belongs to one row."""
        column = self.schedule.column_layout
        self.out.add("#pragma unroll")
        self.out.open(f"for (int u = 0; u < {self.batch}; ++u) {{")
        condition = ""
        if (guard and self.guarded) or (guard and self.tail):
            chunk = "(k + u)" if self.looped else "u"
            if column:
                first = f"{chunk} * PARTS + thread"
            else:
                first = f"({chunk} * PARTS + thread) * VEC" + (" + i" if self.tail else "")
            condition = f"if ({first} < COLS) "
        if column:
            self.out.add(condition + line)
        else:
            self.out.add("#pragma unroll", f"for (int i = 0; i < VEC; ++i) {{ {condition}{line} }}")
        self.out.close()
