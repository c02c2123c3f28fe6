"""torch.export -> Program -> passes -> regions.

Export traces with fake tensors, so a model of any size is captured in seconds and never run.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.utils import _pytree as pytree

from cuda_agent.errors import CaptureError
from cuda_agent.graph import recurrent
from cuda_agent.graph.decompositions import table
from cuda_agent.graph.ir import Arg, Graph, Held, InputTree, Op, Ref
from cuda_agent.graph.passes import run_passes
from cuda_agent.graph.program import Program, describe
from cuda_agent.graph.regions import form_regions

# Larger constants belong in a buffer: they would have to be written out as numbers.
MAX_CONSTANT_ELEMENTS = 65536
_DROPPED_KWARGS = {"device", "layout", "pin_memory"}
_DROPPED_OPS = {"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range"}


def capture(model: nn.Module, inputs: Sequence[Any], *, fold: bool = False) -> Graph:
    """The graph of `model.forward(*inputs)`, cut into regions. Nothing of the model is run.

    `inputs` are example arguments: tensors give shapes, dtypes and strides, anything else is baked
    in. With `fold`, values that depend on parameters alone are computed once (batch norm is folded
    into the convolution before it) instead of in every forward.

    Raises CaptureError, in one sentence, for control flow that depends on tensor values, for
    forwards that write to inputs or buffers, and for inputs or outputs that are nested.
    """
    program = trace(model, inputs)
    derived = run_passes(program, fold_parameters=fold)
    return Graph(
        inputs=program.inputs,
        attributes=program.attributes,
        values=program.values,
        regions=form_regions(program.ops, program.values, program.outputs),
        outputs=program.outputs,
        output_form=program.output_form,
        input_names=program.input_names,
        baked=program.baked,
        defaulted=program.defaulted,
        constants=program.constants,
        derived=derived,
        state=_state(model, program),
    )


def _state(model: nn.Module, program: Program) -> tuple[Held, ...]:
    held: dict[str, Held] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        held[path] = Held(path, describe(path, parameter), "parameter")
    saved = model.state_dict(keep_vars=True)
    for path, buffer in model.named_buffers(remove_duplicate=False):
        kind: Literal["buffer", "constant"] = "buffer" if path in saved else "constant"
        held[path] = Held(path, describe(path, buffer), kind)
    for name, path in program.attributes.items():
        held.setdefault(path, Held(path, replace(program.values[name], name=path), "constant"))
    return tuple(held.values())


def trace(model: nn.Module, inputs: Sequence[Any]) -> Program:
    """The program of `model.forward(*inputs)` in core ATen ops, before any pass.

    Inputs are taken as contiguous, which is what a solution makes of them.
    """
    for position, value in enumerate(inputs):
        _check_input(f"input {position}", value)
    inputs = tuple(pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, tuple(inputs)))
    try:
        with _quiet(), torch.no_grad(), recurrent.whole_layers():
            exported = torch.export.export(model, tuple(inputs), strict=False)
            exported = exported.run_decompositions(table())
    except Exception as error:
        raise CaptureError(_reason(error)) from error
    _refuse_mutation(exported.graph_signature)
    return _to_program(model, inputs, exported)


def _check_input(where: str, value: Any) -> None:
    if type(value) in (tuple, list):
        for position, item in enumerate(value):
            if not isinstance(item, torch.Tensor) and type(item) not in (tuple, list):
                kind = type(item).__name__
                raise CaptureError(f"{where} holds a {kind}; a tuple or list may hold tensors only")
            _check_input(f"{where}[{position}]", item)
    elif not isinstance(value, (torch.Tensor, int, float, bool, str, type(None))):
        raise CaptureError(
            f"{where} is a {type(value).__name__}; tensors, tuples of tensors and plain numbers "
            "are taken"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No warnings, and no fused fast paths that would hide a whole encoder layer in one op."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


def _reason(error: Exception) -> str:
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), repr(error))
    kind = type(error).__name__
    if "DataDependent" in kind or "data-dependent" in text or "PendingUnbacked" in kind:
        return (
            "forward takes a decision that depends on the values of a tensor "
            f"(if, int(), .item() or nonzero on a tensor): {first[:200]}"
        )
    return f"torch.export cannot trace forward: {kind}: {first[:300]}"


def _refuse_mutation(signature: ExportGraphSignature) -> None:
    for spec in signature.output_specs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            raise CaptureError(
                f"forward writes to the buffer {spec.target!r}; call .eval(), or return the new "
                "state instead of storing it"
            )
        if spec.kind == OutputKind.USER_INPUT_MUTATION:
            raise CaptureError(f"forward writes to its input {spec.target!r} in place; clone it")


def _to_program(
    model: nn.Module, inputs: Sequence[Any], exported: torch.export.ExportedProgram
) -> Program:
    program = Program([], {}, (), {}, ())
    names: dict[fx.Node, str] = {}
    targets = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    parameter_names = _parameter_names(model, len(inputs))
    wanted = _leaf_names(parameter_names, inputs)
    given: list[str | None] = []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            spec = targets[node.name]
            if spec.kind == InputKind.USER_INPUT:
                given.append(_add_input(program, node, names, wanted[len(given)]))
            else:
                _add_attribute(program, node, names, str(spec.target), exported, model)
        elif node.op == "call_function":
            _add_op(program, node, names)
        elif node.op == "output":
            program.outputs, program.output_form = _outputs(exported, node, names)
        else:
            raise CaptureError(f"forward uses {node.op} {node.target}, which is not supported")
    remaining = iter(given)
    program.inputs = tuple(_tree_of(value, remaining) for value in inputs)
    program.input_names = tuple(parameter_names[: len(inputs)])
    program.baked = {
        name: value
        for name, value in zip(parameter_names, inputs)
        if not isinstance(value, (torch.Tensor, tuple, list))
    }
    _bake_defaults(program, model, len(inputs))
    return program


def _leaf_names(parameters: Sequence[str], inputs: Sequence[Any]) -> list[str]:
    """A name for each leaf of the inputs: "state_0" for the first tensor of `state`."""
    names: list[str] = []
    for name, value in zip(parameters, inputs):
        if isinstance(value, (tuple, list)):
            names += _leaf_names([f"{name}_{i}" for i in range(len(value))], value)
        else:
            names.append(name)
    return names


def _tree_of(value: Any, given: Iterator[str | None]) -> InputTree:
    if isinstance(value, (tuple, list)):
        return tuple(_tree_of(item, given) for item in value)
    return next(given)


def _parameter_names(model: nn.Module, count: int) -> list[str]:
    """forward's parameter names; those behind *args are numbered."""
    names: list[str] = []
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind == inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{i}" for i in range(count - len(names))]
        elif parameter.kind != inspect.Parameter.VAR_KEYWORD:
            names.append(parameter.name)
    return names


def _bake_defaults(program: Program, model: nn.Module, count: int) -> None:
    """Optional parameters that were not given keep their default, if it can be written down."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    for parameter in parameters[count:]:
        plain = isinstance(parameter.default, (int, float, bool, str, type(None)))
        if parameter.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD and plain:
            program.input_names += (parameter.name,)
            program.inputs += (None,)
            program.baked[parameter.name] = parameter.default
            program.defaulted += (parameter.name,)


def _add_input(
    program: Program, node: fx.Node, names: dict[fx.Node, str], wanted: str
) -> str | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    name = program.fresh(wanted)
    program.values[name] = describe(name, value)
    names[node] = name
    return name


def _add_attribute(
    program: Program,
    node: fx.Node,
    names: dict[fx.Node, str],
    target: str,
    exported: torch.export.ExportedProgram,
    model: nn.Module,
) -> None:
    """A parameter or buffer, a tensor in a plain attribute, or numbers that forward writes out."""
    name = program.fresh(target.replace(".", "_"))
    program.values[name] = describe(name, node.meta["val"])
    names[node] = name
    with contextlib.suppress(AttributeError):
        if isinstance(operator.attrgetter(target)(model), torch.Tensor):
            program.attributes[name] = target
            return
    constant = exported.constants[target]
    if constant.numel() > MAX_CONSTANT_ELEMENTS or constant.is_complex():
        raise CaptureError(
            f"forward creates a constant tensor of shape {tuple(constant.shape)}; "
            "register it as a buffer instead"
        )
    program.constants[name] = tuple(constant.detach().cpu().reshape(-1).tolist())


def _add_op(program: Program, node: fx.Node, names: dict[fx.Node, str]) -> None:
    if node.target is operator.getitem or not isinstance(node.target, torch._ops.OpOverload):
        if node.target is operator.getitem:
            return
        raise CaptureError(f"forward uses {node.target}, which has no ATen form")
    target = recurrent.ATEN_NAMES.get(str(node.target), str(node.target))
    value = node.meta.get("val")
    if target.split(".")[1] in _DROPPED_OPS:
        return
    results = list(value) if isinstance(value, (tuple, list)) else [value]
    nodes: list[fx.Node | None] = [node]
    if isinstance(value, (tuple, list)):
        nodes = [None] * len(results)
        for user in node.users:
            if user.target is operator.getitem and isinstance(user.args[1], int):
                nodes[user.args[1]] = user
    outputs = []
    for position, tensor in enumerate(results):
        origin = nodes[position]
        if not isinstance(tensor, torch.Tensor) or origin is None:
            if isinstance(tensor, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise CaptureError(f"{target} gives a number that depends on tensor values")
            outputs.append("")
            continue
        if any(isinstance(size, torch.SymInt) for size in tensor.shape):
            raise CaptureError(f"the shape of {target}'s result depends on tensor values")
        name = program.fresh(node.name.strip("_") if position == 0 else f"{node.name}_{position}")
        program.values[name] = describe(name, tensor)
        outputs.append(name)
        for user in [origin, *(u for u in node.users if _same_item(u, origin))]:
            names[user] = name
    kwargs = tuple(
        (key, _argument(v, names)) for key, v in node.kwargs.items() if key not in _DROPPED_KWARGS
    )
    args = tuple(_argument(a, names) for a in node.args)
    program.ops.append(Op(target, args, tuple(outputs), kwargs))


def _same_item(user: fx.Node, origin: fx.Node) -> bool:
    """Export may write the same getitem twice."""
    is_item = user.target is operator.getitem and origin.target is operator.getitem
    return is_item and user.args[1] == origin.args[1]


def _argument(value: Any, names: dict[fx.Node, str]) -> Arg:
    if isinstance(value, fx.Node):
        if value not in names:
            raise CaptureError(f"{value} depends on tensor values")
        return Ref(names[value])
    if isinstance(value, (tuple, list)):
        return tuple(_argument(v, names) for v in value)
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value)
    if isinstance(value, torch.device):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CaptureError(f"an argument of type {type(value).__name__} is not supported")


def _outputs(
    exported: torch.export.ExportedProgram, node: fx.Node, names: dict[fx.Node, str]
) -> tuple[tuple[str, ...], str]:
    """Names of the tensors that forward returns, and its form: "({0}, {1})"."""
    results = node.args[0]
    assert isinstance(results, (tuple, list))
    outputs: list[str] = []
    forms: list[str] = []
    for result in results:
        if result is None:
            forms.append("None")
            continue
        if not isinstance(result, fx.Node) or result not in names:
            raise CaptureError("forward returns something that is no tensor; return tensors only")
        forms.append(f"{{{len(outputs)}}}")
        outputs.append(names[result])
    if not outputs:
        raise CaptureError("forward returns no tensor")
    if exported.call_spec.out_spec is None:
        return tuple(outputs), forms[0]
    return tuple(outputs), _form(pytree.tree_unflatten(forms, exported.call_spec.out_spec))


def _form(value: Any) -> str:
    """Nested tuples, lists and dicts of format fields as the text of a format string."""
    if isinstance(value, str):
        return value
    if type(value) is tuple:
        return f"({', '.join(map(_form, value))}{',' if len(value) == 1 else ''})"
    if type(value) is list:
        return f"[{', '.join(map(_form, value))}]"
    if type(value) is dict and all(isinstance(key, (str, int)) for key in value):
        return "{{" + ", ".join(f"{key!r}: {_form(item)}" for key, item in value.items()) + "}}"
    raise CaptureError(
        f"forward returns a {type(value).__name__}; return tensors in tuples, lists or dicts"
    )
