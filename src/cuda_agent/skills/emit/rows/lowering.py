"""From a `rowwise` Region to row programs.

Composite ops (softmax, norms, losses) become the plain steps of `program.py`, so that one emitter
serves them all and everything around them fuses. Sums are float sums of float values; a variance
is the sum of squared distances from the mean, never E[x^2] - E[x]^2.
"""

from __future__ import annotations

from collections.abc import Callable

from cuda_agent.graph.ir import Arg, Op, Ref, Region, Tensor
from cuda_agent.skills.emit import expressions
from cuda_agent.skills.emit.rows import axes
from cuda_agent.skills.emit.rows.axes import AxisMaps
from cuda_agent.skills.emit.rows.program import (
    Level,
    Load,
    Map,
    Operand,
    Pick,
    Reduce,
    RowProgram,
    Step,
    Store,
    Unsupported,
    Value,
    canonical,
    defined,
    product,
    used,
)


def lower(region: Region) -> tuple[RowProgram, ...]:
    """The programs that compute a region, to run in order; a second one folds per-row losses.

    Raises Unsupported when an op, a dtype or a layout has no row form.
    """
    return _Lowering(region).run()


class _Lowering:
    def __init__(self, region: Region) -> None:
        self.region = region
        self.maps = AxisMaps(region)
        self.steps: list[Step] = []
        self.values: dict[str, Value] = {}
        self.alias: dict[str, str] = {}
        self.inputs = {t.name: t for t in region.inputs}
        # Steps by what they compute: the mean that a variance needs is often there already.
        self.made: dict[object, str] = {}
        # The loss that `fold` averages over rows, and everything computed from it.
        self.fold_steps: list[Step] = []
        self.fold_values: dict[str, Value] = {}
        reduced = self.maps.reduced
        self.row_atoms = [a for a in range(len(self.maps.sizes)) if a not in reduced]
        self.col_atoms = [a for a in range(len(self.maps.sizes)) if a in reduced]

    @property
    def columns(self) -> int:
        count = 1
        for atom in self.col_atoms:
            count *= self.maps.sizes[atom]
        return count

    def run(self) -> tuple[RowProgram, ...]:
        for op in self.region.ops:
            self._lower_op(op)
        for tensor in self.region.outputs:
            self._store(tensor)
        sizes = self.maps.sizes
        rows = tuple(sizes[a] for a in self.row_atoms)
        cols = tuple(sizes[a] for a in self.col_atoms)
        steps = _alive(self.steps)
        if not any(isinstance(s, Reduce | Pick) for s in steps):
            raise Unsupported("nothing is reduced")
        first = canonical(RowProgram(self.region.id, rows, cols, steps, self.values))
        if not self.fold_steps:
            return (first,)
        count = first.rows
        second = RowProgram(
            f"{self.region.id}_fold", (), (count,), _alive(self.fold_steps), self.fold_values
        )
        return first, canonical(second)

    # --- building blocks ------------------------------------------------------------------

    def name(self, stem: str) -> str:
        """A new value name that reads like `stem`."""
        taken = {*self.values, *self.fold_values, *self.region.values}
        if stem not in taken:
            return stem
        return next(f"{stem}_{i}" for i in range(1, 10_000) if f"{stem}_{i}" not in taken)

    def operand(self, tensor: Tensor) -> Operand:
        strides = self.maps.strides(tensor)
        return Operand(
            tensor.name,
            tensor.dtype,
            tuple(strides[a] for a in self.row_atoms),
            tuple(strides[a] for a in self.col_atoms),
        )

    def get(self, name: str) -> str:
        """The program value behind a graph value; inputs are loaded at first use."""
        if name in self.alias:
            return self.alias[name]
        if name not in self.inputs:
            raise Unsupported(f"{name} is read before it is computed")
        operand = self.operand(self.inputs[name])
        value = self._define(self.name(name) if name in self.values else name,
                             operand.dtype, operand.level)
        self.steps.append(Load(value, operand))
        self.alias[name] = value
        return value

    def _define(self, name: str, dtype: str, level: Level) -> str:
        self.values[name] = Value(name, dtype, level)
        return name

    def emit(self, target: str, *args: Arg, name: str, dtype: str = "float32") -> str:
        """Append a Map; its level follows from the values it reads."""
        op = Op(f"aten.{target}", args, (name,))
        return self._map(op, name, dtype)

    def _map(self, op: Op, name: str, dtype: str) -> str:
        key = (op.target, op.args, op.kwargs, dtype)
        if key in self.made:
            return self.made[key]
        folded = [n for n in op.refs() if n in self.fold_values]
        if folded:
            if any(n not in self.fold_values for n in op.refs()):
                raise Unsupported(f"{op.name} mixes a loss with values it was folded from")
            self.fold_values[name] = Value(name, dtype, "row")
            self.fold_steps.append(Map(name, op))
            return name
        elem = any(self.values[n].level == "elem" for n in op.refs())
        self.steps.append(Map(name, op))
        self.made[key] = name
        return self._define(name, dtype, "elem" if elem else "row")

    def reduce(self, kind: str, source: str, name: str, dtype: str | None = None) -> str:
        key = (kind, source, dtype)
        if key in self.made:
            return self.made[key]
        self.steps.append(Reduce((name,), kind, source))
        self.made[key] = name
        return self._define(name, dtype or self.compute_dtype(source), "row")

    def compute_dtype(self, value: str) -> str:
        dtype = self.values[value].dtype
        return "float32" if dtype in ("bfloat16", "float16") else dtype

    def mean(self, source: str, name: str) -> str:
        dtype = self.compute_dtype(source)
        total = self.reduce("sum", source, self.name("total"))
        return self.emit("div.Tensor", Ref(total), self.columns, name=name, dtype=dtype)

    def moments(self, x: str) -> tuple[str, str, str]:
        """(mean, x - mean, sum of squared distances)."""
        dtype = self.compute_dtype(x)
        mean = self.mean(x, self.name("mean"))
        centered = self.emit(
            "sub.Tensor", Ref(x), Ref(mean), name=self.name("centered"), dtype=dtype)
        square = self.emit(
            "mul.Tensor", Ref(centered), Ref(centered), name=self.name("square"), dtype=dtype)
        return mean, centered, self.reduce("sum", square, self.name("m2"))

    def finish(self, output: str, value: str) -> None:
        """Bind a region value to the program value that holds it."""
        if output:
            self.alias[output] = value

    # --- ops --------------------------------------------------------------------------------

    def _lower_op(self, op: Op) -> None:
        if axes.is_reduction(op):
            self._reduction(op)
        elif op.name in COMPOSITES:
            COMPOSITES[op.name](self, op)
        elif op.name in axes.VIEWS or op.name in axes.EXPANDS or op.name == "permute":
            self.alias[op.outputs[0]] = self.get(next(op.refs()))
        else:
            self._pointwise(op)

    def _pointwise(self, op: Op) -> None:
        if not expressions.supports(op, self.region.values) or any(op.outputs[1:]):
            raise Unsupported(f"{op.target} has no expression")
        out = op.outputs[0]
        op = Op(op.target, self._rename(op.args), (out,),
                tuple((k, self._rename((v,))[0]) for k, v in op.kwargs))
        self.alias[out] = self._map(op, out, self.region.values[out].dtype)

    def _rename(self, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
        return tuple(
            Ref(self.get(a.name)) if isinstance(a, Ref)
            else self._rename(a) if isinstance(a, tuple) else a
            for a in args
        )

    def _reduction(self, op: Op) -> None:
        x = self.get(next(op.refs()))
        if x in self.fold_values:
            raise Unsupported(f"{op.name} of a folded loss")
        out = op.outputs[0]
        dtype = next((self.region.values[n].dtype for n in op.outputs if n), "float32")
        kind = op.name
        if kind in ("max", "min", "argmax", "argmin"):
            self._extreme(op, x)
        elif kind in ("amax", "amin"):
            self.finish(out, self.reduce(kind[1:], x, out))
        elif kind in ("any", "all"):
            flag = self.emit("ne.Scalar", Ref(x), 0, name=self.name("set"), dtype="bool")
            self.finish(out, self.reduce(kind, flag, out, "bool"))
        elif kind in ("sum", "prod"):
            accumulate = "float32" if dtype in ("bfloat16", "float16") else dtype
            if self.compute_dtype(x) != accumulate:
                x = self.emit("_to_copy.default", Ref(x), name=self.name("wide"), dtype=accumulate)
            self.finish(out, self.reduce(kind, x, out, accumulate))
        elif kind == "mean":
            self.finish(out, self.mean(x, out))
        elif kind == "logsumexp":
            self.finish(out, self._logsumexp(x))
        elif kind in ("linalg_vector_norm", "norm"):
            self.finish(out, self._vector_norm(op, x))
        else:
            self._variance(op, x)

    def _extreme(self, op: Op, x: str) -> None:
        """max/min/argmax/argmin: the value, the index, or both."""
        kind = op.name.removeprefix("arg")
        pair = op.name.startswith("arg") or len(op.outputs) == 2
        if not pair:
            self.finish(op.outputs[0], self.reduce(kind, x, op.outputs[0]))
            return
        value, index = self.name(f"{kind}_value"), self.name(f"{kind}_index")
        self.steps.append(Reduce((value, index), f"arg{kind}", x))
        self._define(value, self.compute_dtype(x), "row")
        self._define(index, "int64", "row")
        outputs = ("", op.outputs[0]) if op.name.startswith("arg") else op.outputs
        self.finish(outputs[0], value)
        self.finish(outputs[1], index)

    def _vector_norm(self, op: Op, x: str) -> str:
        order = op.args[1] if len(op.args) > 1 else op.kwarg("ord", 2)
        p = 2.0 if order is None else float(order)  # type: ignore[arg-type]
        dtype = self.compute_dtype(x)

        def fold(kind: str, target: str, *args: Arg, dtype: str = dtype) -> str:
            return self.reduce(
                kind, self.emit(target, *args, name=self.name("term"), dtype=dtype),
                self.name("norm_sum"))

        if p == 2.0:
            total = fold("sum", "mul.Tensor", Ref(x), Ref(x))
            return self.emit("sqrt.default", Ref(total), name=self.name("norm"), dtype=dtype)
        if p == 0.0:
            flag = self.emit("ne.Scalar", Ref(x), 0, name=self.name("nonzero"), dtype="bool")
            return fold("sum", "_to_copy.default", Ref(flag))
        if abs(p) == float("inf"):
            return fold("max" if p > 0 else "min", "abs.default", Ref(x))
        if p == 1.0:
            return fold("sum", "abs.default", Ref(x))
        size = self.emit("abs.default", Ref(x), name=self.name("size"), dtype=dtype)
        total = fold("sum", "pow.Tensor_Scalar", Ref(size), p)
        return self.emit(
            "pow.Tensor_Scalar", Ref(total), 1.0 / p, name=self.name("norm"), dtype=dtype)

    def _variance(self, op: Op, x: str) -> None:
        correction = op.kwarg("correction", 1)
        if len(op.args) > 2 or op.target.endswith(".default"):
            raise Unsupported(f"{op.target} with an unbiased flag")
        count = self.columns - float(1 if correction is None else correction)  # type: ignore[arg-type]
        mean, _, m2 = self.moments(x)
        dtype = self.compute_dtype(x)
        var = self.emit(
            "div.Tensor", Ref(m2), max(count, 0.0), name=self.name("variance"), dtype=dtype)
        if op.name == "std":
            var = self.emit("sqrt.default", Ref(var), name=self.name("deviation"), dtype=dtype)
        self.finish(op.outputs[0], var)
        if op.name == "var_mean":
            self.finish(op.outputs[1], mean)

    def _logsumexp(self, x: str) -> str:
        """max + log(sum(exp(x - max))), with an infinite max replaced by 0 as torch does."""
        dtype = self.compute_dtype(x)
        top = self.reduce("max", x, self.name("peak"))
        size = self.emit("abs.default", Ref(top), name=self.name("top_size"), dtype=dtype)
        infinite = self.emit(
            "eq.Scalar", Ref(size), float("inf"), name=self.name("infinite"), dtype="bool")
        shift = self.emit("where.self", Ref(infinite), 0.0, Ref(top),
                          name=self.name("shift"), dtype=dtype)
        _, _, total = self.exponentials(x, shift)
        log = self.emit("log.default", Ref(total), name=self.name("log_total"), dtype=dtype)
        return self.emit("add.Tensor", Ref(log), Ref(shift), name=self.name("lse"), dtype=dtype)

    def exponentials(self, x: str, shift: str) -> tuple[str, str, str]:
        """(x - shift, its exponential, their sum)."""
        dtype = self.compute_dtype(x)
        shifted = self.emit(
            "sub.Tensor", Ref(x), Ref(shift), name=self.name("shifted"), dtype=dtype)
        power = self.emit("exp.default", Ref(shifted), name=self.name("power"), dtype=dtype)
        return shifted, power, self.reduce("sum", power, self.name("power_sum"))

    def softmax(self, op: Op) -> None:
        x = self.get(next(op.refs()))
        dims = self.maps.of(next(op.refs()))
        dim = int(op.args[1]) if isinstance(op.args[1], int) else -1
        if dims and frozenset(dims[dim]) != self.maps.reduced:
            raise Unsupported(f"{op.name} does not run over the region's reduce dims")
        out, dtype = op.outputs[0], self.compute_dtype(x)
        top = self.reduce("max", x, self.name("peak"))
        shifted, power, total = self.exponentials(x, top)
        if "log" in op.name:
            log = self.emit("log.default", Ref(total), name=self.name("log_total"), dtype=dtype)
            self.finish(out, self.emit("sub.Tensor", Ref(shifted), Ref(log), name=out, dtype=dtype))
            return
        result = self.emit("div.Tensor", Ref(power), Ref(total), name=self.name("share"),
                           dtype=dtype)
        if op.name == "_safe_softmax":
            empty = self.emit("eq.Scalar", Ref(top), float("-inf"), name=self.name("empty"),
                              dtype="bool")
            result = self.emit("where.self", Ref(empty), 0.0, Ref(result), name=out, dtype=dtype)
        self.finish(out, result)

    def normalize(self, x: str, eps: float, weight: Arg, bias: Arg, out: str) -> tuple[str, str]:
        """(x - mean) * rsqrt(variance + eps) * weight + bias; returns (mean, rstd)."""
        mean, centered, m2 = self.moments(x)
        rstd = self._rstd(m2, eps)
        self.finish(out, self._affine(centered, rstd, weight, bias))
        return mean, rstd

    def _rstd(self, m2: str, eps: float) -> str:
        dtype = self.compute_dtype(m2)
        variance = self.emit(
            "div.Tensor", Ref(m2), self.columns, name=self.name("variance"), dtype=dtype)
        guarded = self.emit(
            "add.Tensor", Ref(variance), eps, name=self.name("guarded"), dtype=dtype)
        return self.emit("rsqrt.default", Ref(guarded), name=self.name("rstd"), dtype=dtype)

    def _affine(self, centered: str, rstd: str, weight: Arg, bias: Arg) -> str:
        dtype = self.compute_dtype(centered)
        result = self.emit(
            "mul.Tensor", Ref(centered), Ref(rstd), name=self.name("normalized"), dtype=dtype)
        if isinstance(weight, Ref):
            result = self.emit("mul.Tensor", Ref(result), Ref(self.get(weight.name)),
                               name=self.name("scaled"), dtype=dtype)
        if isinstance(bias, Ref):
            result = self.emit("add.Tensor", Ref(result), Ref(self.get(bias.name)),
                               name=self.name("affine"), dtype=dtype)
        return result

    def pick(self, source: str, index: str, stem: str) -> str:
        if self.values[source].level == "row":
            return source
        name = self.name(stem)
        self.steps.append(Pick(name, source, index))
        return self._define(name, self.compute_dtype(source), "row")

    # --- outputs ----------------------------------------------------------------------------

    def _store(self, tensor: Tensor) -> None:
        name = self.get(tensor.name)
        if name in self.fold_values:
            self.fold_steps.append(Store(name, Operand(tensor.name, tensor.dtype, (), (0,))))
            return
        self.steps.append(Store(name, self.operand(tensor)))

    def fold(self, losses: str, weights: str, mean: bool) -> tuple[str, str]:
        """Sums of two row-level values over all rows, in a second program; (loss, weight sum)."""
        rows = tuple(self.maps.sizes[a] for a in self.row_atoms)
        strides = tuple(product(rows[i + 1:]) for i in range(len(rows)))
        sums = []
        for value, stem in ((losses, "loss"), (weights, "weight")):
            buffer = f"{self.region.id}_row_{stem}"
            self.steps.append(Store(value, Operand(
                buffer, "float32", strides, (0,) * len(self.col_atoms))))
            count = Operand(buffer, "float32", (), (1,))
            self.fold_values[buffer] = Value(buffer, "float32", "elem")
            total = self.name(f"{stem}_sum")
            self.fold_values[total] = Value(total, "float32", "row")
            self.fold_steps += [Load(buffer, count), Reduce((total,), "sum", buffer)]
            sums.append(total)
        if mean:
            name = self.name("loss_mean")
            self._map(Op("aten.div.Tensor", (Ref(sums[0]), Ref(sums[1])), (name,)), name, "float32")
            sums[0] = name
        return sums[0], sums[1]


def _alive(steps: list[Step]) -> tuple[Step, ...]:
    """Steps that some store needs, in order."""
    needed: set[str] = set()
    alive: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, Store) or needed.intersection(defined(step)):
            alive.append(step)
            needed.update(used(step))
    return tuple(reversed(alive))


def _layer_norm(low: _Lowering, op: Op) -> None:
    x = low.get(next(op.refs()))
    weight, bias, eps = op.args[2], op.args[3], float(op.args[4])  # type: ignore[arg-type]
    mean, rstd = low.normalize(x, eps, weight, bias, op.outputs[0])
    low.finish(op.outputs[1], mean)
    low.finish(op.outputs[2], rstd)


def _group_norm(low: _Lowering, op: Op) -> None:
    x = low.get(next(op.refs()))
    eps = float(op.args[7])  # type: ignore[arg-type]
    mean, rstd = low.normalize(x, eps, op.args[1], op.args[2], op.outputs[0])
    low.finish(op.outputs[1], mean)
    low.finish(op.outputs[2], rstd)


def _batch_norm(low: _Lowering, op: Op) -> None:
    """Batch statistics. Updates of running statistics are not supported."""
    running = not op.target.endswith("no_stats")
    training, eps = (op.args[5], op.args[7]) if running else (op.args[3], op.args[5])
    stats = op.args[3:5] if running else ()
    if not training or any(isinstance(s, Ref) for s in stats) or any(op.outputs[3:]):
        raise Unsupported("batch norm with running statistics")
    x = low.get(next(op.refs()))
    mean, rstd = low.normalize(x, float(eps), op.args[1], op.args[2], op.outputs[0])  # type: ignore[arg-type]
    low.finish(op.outputs[1], mean)
    low.finish(op.outputs[2], rstd)


def _rms_norm(low: _Lowering, op: Op) -> None:
    x = low.get(next(op.refs()))
    eps = op.args[3] if len(op.args) > 3 and op.args[3] is not None else None
    source = low.region.values[next(op.refs())].dtype
    machine = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float64": 2.0**-52}
    epsilon = machine.get(source, 2.0**-23) if eps is None else float(eps)  # type: ignore[arg-type]
    dtype = low.compute_dtype(x)
    square = low.emit("mul.Tensor", Ref(x), Ref(x), name=low.name("square"), dtype=dtype)
    rstd = low._rstd(low.reduce("sum", square, low.name("square_sum")), epsilon)
    weight = op.args[2] if len(op.args) > 2 else None
    low.finish(op.outputs[0], low._affine(x, rstd, weight, None))
    if len(op.outputs) > 1:
        low.finish(op.outputs[1], rstd)


def _nll_loss(low: _Lowering, op: Op) -> None:
    """-x[target] * weight[target] for each row, rows of `ignore_index` count nothing."""
    x, target = low.get(next(op.refs())), op.args[1]
    weight, reduction, ignore = op.args[2], op.args[3], op.args[4]
    if not isinstance(target, Ref) or low.compute_dtype(x) != "float32":
        raise Unsupported("nll_loss on this dtype")
    index = low.get(target.name)
    kept = low.emit("ne.Scalar", Ref(index), ignore, name=low.name("kept"), dtype="bool")
    column = low.emit("where.self", Ref(kept), Ref(index), 0, name=low.name("column"),
                      dtype="int64")
    picked = low.pick(x, column, "picked")
    loss = low.emit("neg.default", Ref(picked), name=low.name("row_loss"))
    share: Arg = 1.0
    if isinstance(weight, Ref):
        share = Ref(low.pick(low.get(weight.name), column, "class_weight"))
        loss = low.emit("mul.Tensor", Ref(loss), share, name=low.name("weighted"))
    loss = low.emit("where.self", Ref(kept), Ref(loss), 0.0, name=low.name("kept_loss"))
    if reduction == 0:
        low.finish(op.outputs[0], loss)
        return
    count = low.emit("where.self", Ref(kept), share, 0.0, name=low.name("kept_weight"))
    total, weights = low.fold(loss, count, mean=reduction == 1)
    for output, value in zip(op.outputs, (total, weights)):
        if output:
            low.alias[output] = value


def _gather(low: _Lowering, op: Op) -> None:
    index = op.args[2]
    if not isinstance(index, Ref):
        raise Unsupported("gather without an index tensor")
    low.finish(op.outputs[0], low.pick(low.get(next(op.refs())), low.get(index.name), "picked"))


COMPOSITES: dict[str, Callable[[_Lowering, Op], None]] = {
    **dict.fromkeys(axes.SOFTMAX, _Lowering.softmax),
    **dict.fromkeys(axes.BATCH_NORMS, _batch_norm),
    **dict.fromkeys(axes.NLL, _nll_loss),
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "_fused_rms_norm": _rms_norm,
    "gather": _gather,
}
