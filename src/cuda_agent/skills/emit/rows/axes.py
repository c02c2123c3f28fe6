"""Which axes of the iteration space each dim of each value walks.

Tensors of one region come in several ranks: a keepdim result, a bias that broadcasts, group norm's
(N, C, H, W) over the space (N, G, C/G, HW). The space is cut into the finest axes that all shapes
need; a `DimMap` then gives each dim of a value the axes it covers. Maps spread from values of full
size and from reductions to the rest, both ways through each op, until nothing changes.
"""

from __future__ import annotations

from itertools import pairwise

from cuda_agent.graph.ir import Arg, Op, Ref, Region, Tensor
from cuda_agent.skills.emit.rows.program import Unsupported, product

DimMap = tuple[tuple[int, ...], ...]

VIEWS = {"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "alias", "clone", "detach",
         "contiguous", "lift_fresh_copy"}
EXPANDS = {"expand", "expand_copy", "broadcast_to"}
REDUCTIONS = {"sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "any", "all",
              "linalg_vector_norm", "norm", "var", "std", "var_mean", "logsumexp"}
SOFTMAX = {"_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax"}
BATCH_NORMS = {"_native_batch_norm_legit", "_native_batch_norm_legit_functional",
               "native_batch_norm"}
NORMS = {"native_layer_norm", "native_group_norm", "_fused_rms_norm", *BATCH_NORMS}
EVAL_BATCH_NORM = "_native_batch_norm_legit_no_training"  # pointwise, operands along dim 1
NLL = {"nll_loss_forward", "nll_loss2d_forward"}


def is_reduction(op: Op) -> bool:
    """True for reductions over dims; `max.other`-style pointwise overloads are not."""
    return op.name in REDUCTIONS and not op.target.endswith((".other", ".out"))


def reduced_dims(op: Op, rank: int) -> tuple[int, ...]:
    """Dims that a reduction op runs over, ascending; all of them when none is given."""
    overload = op.target.split(".")[-1]
    position = 2 if op.name in ("linalg_vector_norm", "norm") else 1
    dim: Arg = op.args[position] if len(op.args) > position else op.kwarg("dim")
    if dim is None or dim == () or (overload == "default" and op.name in ("sum", "mean", "max")):
        return tuple(range(rank))
    dims = dim if isinstance(dim, tuple) else (dim,)
    return tuple(sorted(int(d) % max(rank, 1) for d in dims if isinstance(d, int)))


def keeps_dim(op: Op) -> bool:
    """The op's keepdim argument, by position or keyword."""
    position = 3 if op.name in ("linalg_vector_norm", "norm") else 2
    if op.name in ("var", "std", "var_mean"):
        return bool(op.kwarg("keepdim", False))
    return bool(op.args[position] if len(op.args) > position else op.kwarg("keepdim", False))


def suffix_products(shape: tuple[int, ...]) -> list[int]:
    products = [1]
    for size in reversed(shape):
        products.append(products[-1] * size)
    return products


class AxisMaps:
    """`sizes` are the finest axes of the space, `reduced` the indices among them of columns."""

    def __init__(self, region: Region) -> None:
        self.region = region
        count = product(region.space)
        if count == 0:
            raise Unsupported("an empty tensor")
        shapes = [region.space] + [
            t.shape for t in region.values.values() if t.numel == count and count > 1
        ]
        cuts = sorted({p for shape in shapes for p in suffix_products(shape)})
        if any(high % low for low, high in pairwise(cuts)):
            raise Unsupported("shapes of the region do not refine one another")
        self._cuts = cuts[::-1]
        self.sizes = tuple(high // low for high, low in pairwise(self._cuts))
        space_map = self.full_map(region.space)
        self.reduced = frozenset(a for d in region.reduce_dims for a in space_map[d])
        self.maps: dict[str, DimMap] = {}
        for name, tensor in region.values.items():
            if tensor.numel == 1:
                self.maps[name] = ((),) * len(tensor.shape)
        self._solve(count)

    def full_map(self, shape: tuple[int, ...]) -> DimMap:
        """The map of a value that has every element of the space, in the space's order."""
        dims: list[tuple[int, ...]] = []
        remaining = product(shape)
        for size in shape:
            after = remaining // size
            first, last = self._cuts.index(remaining), self._cuts.index(after)
            dims.append(tuple(range(first, last)))
            remaining = after
        return tuple(dims)

    def strides(self, tensor: Tensor) -> tuple[int, ...]:
        """Element stride of a tensor along each axis; 0 where it does not vary."""
        strides = [0] * len(self.sizes)
        for dim, axes in enumerate(self.of(tensor.name)):
            step = tensor.stride[dim]
            for axis in reversed(axes):
                strides[axis] = step
                step *= self.sizes[axis]
        return tuple(strides)

    def of(self, name: str) -> DimMap:
        if name not in self.maps:
            raise Unsupported(f"value {name} does not line up with the region's space")
        return self.maps[name]

    def _set(self, name: str, dims: DimMap) -> bool:
        shape = self.region.values[name].shape
        fits = len(dims) == len(shape) and all(
            product(tuple(self.sizes[a] for a in axes)) == size for axes, size in zip(dims, shape)
        )
        if not fits or self.maps.get(name, dims) != dims:
            raise Unsupported(f"value {name} is used along two different axes")
        changed = name not in self.maps
        self.maps[name] = dims
        return changed

    def _solve(self, count: int) -> None:
        for op in self.region.ops:
            if is_reduction(op):
                source = next(op.refs())
                tensor = self.region.values[source]
                if tensor.numel == count and source not in self.maps:
                    self._set(source, self.full_map(tensor.shape))
        self._spread()
        for name, tensor in self.region.values.items():
            if tensor.numel == count and name not in self.maps:
                self._set(name, self.full_map(tensor.shape))
                self._spread()

    def _spread(self) -> None:
        changed = True
        while changed:
            changed = False
            for op in self.region.ops:
                changed |= self._relate(op)

    def _relate(self, op: Op) -> bool:
        """Carry maps through one op; True when one was added."""
        if is_reduction(op):
            return self._relate_reduction(op)
        if op.name in SOFTMAX:
            return self._same(next(op.refs()), op.outputs[0])
        if op.name in NORMS or op.name == EVAL_BATCH_NORM:
            return self._relate_norm(op)
        if op.name in NLL or op.name == "gather":
            return self._relate_pick(op)
        if op.name in VIEWS:
            return self._relate_view(op)
        if op.name == "permute":
            return self._relate_permute(op)
        return self._relate_pointwise(op)

    def _same(self, a: str, b: str) -> bool:
        if a in self.maps:
            return bool(b) and self._set(b, self.maps[a])
        return b in self.maps and self._set(a, self.maps[b])

    def _relate_reduction(self, op: Op) -> bool:
        source = next(op.refs())
        if source not in self.maps:
            return False
        dims = self.maps[source]
        reduced = set(reduced_dims(op, len(dims)))
        over = frozenset(a for d in reduced for a in dims[d])
        if over != self.reduced:
            raise Unsupported(f"{op.name} does not run over the region's reduce dims")
        if keeps_dim(op):
            result: DimMap = tuple(() if d in reduced else axes for d, axes in enumerate(dims))
        else:
            result = tuple(axes for d, axes in enumerate(dims) if d not in reduced)
        changed = False
        for name in op.outputs:
            changed |= bool(name) and self._set(name, result)
        return changed

    def _relate_norm(self, op: Op) -> bool:
        source = next(op.refs())
        changed = self._same(source, op.outputs[0])
        if source not in self.maps:
            return changed
        dims = self.maps[source]
        if op.name in ("native_layer_norm", "_fused_rms_norm"):
            shape = op.args[1]
            normalized = len(shape) if isinstance(shape, tuple) else 1
            parameter: DimMap = dims[len(dims) - normalized:]
            statistic: DimMap = dims[: len(dims) - normalized] + ((),) * normalized
        elif op.name == "native_group_norm":
            parameter = (dims[1],)
            statistic = (dims[0], tuple(a for a in dims[1] if a not in self.reduced))
        else:
            parameter = statistic = (dims[1],)
        for arg in op.args[1:]:
            if isinstance(arg, Ref):
                changed |= self._set(arg.name, parameter)
        for name in op.outputs[1:]:
            if name:
                changed |= self._set(name, statistic)
        return changed

    def _relate_pick(self, op: Op) -> bool:
        source = next(op.refs())
        if source not in self.maps:
            return False
        dims = self.maps[source]
        if op.name == "gather":
            dim = int(op.args[1]) % len(dims) if isinstance(op.args[1], int) else 0
            index_map: DimMap = tuple(() if d == dim else axes for d, axes in enumerate(dims))
            index = op.args[2]
            changed = self._set(op.outputs[0], index_map)
        else:
            dim = 0 if len(dims) == 1 else 1
            index_map = dims[:dim] + dims[dim + 1:]
            index = op.args[1]
            changed = False
            if isinstance(op.args[2], Ref):
                changed |= self._set(op.args[2].name, (dims[dim],))
            if op.args[3] == 0 and op.outputs[0]:
                changed |= self._set(op.outputs[0], index_map)
        if frozenset(dims[dim]) != self.reduced:
            raise Unsupported(f"{op.name} does not pick along the region's reduce dims")
        return (isinstance(index, Ref) and self._set(index.name, index_map)) or changed

    def _relate_view(self, op: Op) -> bool:
        source, result = next(op.refs()), op.outputs[0]
        if source in self.maps:
            return self._set(result, self._regroup(source, result))
        return result in self.maps and self._set(source, self._regroup(result, source))

    def _regroup(self, known: str, wanted: str) -> DimMap:
        """Deal the axes of `known`, in order, out to the dims of `wanted`."""
        axes = [a for dim in self.maps[known] for a in dim]
        dims: list[tuple[int, ...]] = []
        for size in self.region.values[wanted].shape:
            taken: list[int] = []
            while product(tuple(self.sizes[a] for a in taken)) < size and axes:
                taken.append(axes.pop(0))
            dims.append(tuple(taken))
        return tuple(dims)

    def _relate_permute(self, op: Op) -> bool:
        source, result, order = next(op.refs()), op.outputs[0], op.args[1]
        if not isinstance(order, tuple):
            return False
        rank = len(order)
        places = [int(d) % rank for d in order if isinstance(d, int)]
        if source in self.maps:
            return self._set(result, tuple(self.maps[source][d] for d in places))
        if result in self.maps:
            dims: list[tuple[int, ...]] = [()] * rank
            for position, d in enumerate(places):
                dims[d] = self.maps[result][position]
            return self._set(source, tuple(dims))
        return False

    def _relate_pointwise(self, op: Op) -> bool:
        """Broadcasting aligns dims from the right; size one lines up with anything."""
        changed = False
        values = self.region.values
        out = op.outputs[0]
        rank = len(values[out].shape)
        names = list(dict.fromkeys(op.refs()))
        if out not in self.maps:
            dims: list[tuple[int, ...] | None] = [
                () if size == 1 else None for size in values[out].shape
            ]
            for name in names:
                for j, axes in enumerate(self.maps.get(name, ())):
                    if axes:
                        dims[rank - len(values[name].shape) + j] = axes
            if any(axes is None for axes in dims):
                return False
            changed = self._set(out, tuple(axes or () for axes in dims))
        for name in names:
            shape = values[name].shape
            aligned = self.maps[out][rank - len(shape):] if shape else ()
            changed |= self._set(
                name, tuple(() if n == 1 else axes for n, axes in zip(shape, aligned))
            )
        return changed
