"""Makes the casts of `torch.autocast` explicit: torch traces the program again with its own lists
of operators, so that each cast becomes an operator of the program.
"""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.amp.autocast_mode import _enter_autocast
from torch.utils import _pytree as pytree

from builder.errors import LoweringError
from builder.frontends.export.origins import location

_FIX = "export the model without autocast, and give `precision` in the manifest"
_WRAP = torch.ops.higher_order.wrap_with_autocast
_METADATA = torch.ops.aten._assert_tensor_metadata.default
"""Asserts the dtype that torch.export recorded. Strict export records those without autocast."""
_LSTM = torch.ops.aten.lstm.input
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_NOT_DECOMPOSED = frozenset(
    f"aten::{name}"
    for name in """
        batch_norm layer_norm group_norm instance_norm rms_norm softmax log_softmax dropout
        feature_dropout alpha_dropout reshape reshape_as flatten unflatten contiguous to type_as
        expand_as view_as chunk split tensor_split narrow movedim moveaxis swapaxes swapdims pad
        numpy_T mT square relu6 selu log_sigmoid max_pool1d max_pool2d max_pool3d avg_pool1d
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
        upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d
        upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d where var std sym_size
        sym_stride sym_numel sym_storage_offset item is_floating_point masked_fill one_hot
    """.split()
)
"""Composite operators whose parts are in no list of autocast for the CPU: they stay as they are,
because torch's parts of some fix the sizes of the example.
"""
_has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key


def other_devices(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """The device types other than cpu for which the program switches autocast on."""
    devices = {str(region.args[0]) for region in _regions(program.graph_module)}
    return tuple(sorted(devices - {"cpu"}))


def with_explicit_casts(
    program: torch.export.ExportedProgram,
) -> torch.export.ExportedProgram:
    """The program with the casts of its autocast regions as operators; the program itself if it
    has no such region.

    The casts are those of tensors on the CPU, where goldens are recorded: a region for another
    device casts none of them. Raises LoweringError for tensors on other devices, and where torch
    cannot trace the program.
    """
    region = next(_regions(program.graph_module), None)
    if region is None:
        return program
    _refuse_devices(program, region)
    # the public way copies the weights, too
    copied = program._update(
        copy.deepcopy(program.graph_module), program.graph_signature
    )
    _prepare(copied.graph_module)
    dynamic = _dynamic_axes(program)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # autocast for a device that is not here
            traced: torch.export.ExportedProgram = copied.run_decompositions({})
    except Exception as error:  # torch raises many types of errors here
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise _refused(region, f"torch cannot trace them: {reason}") from error
    if _dynamic_axes(traced) < dynamic:
        raise _refused(region, "torch traces them with the sizes of the example only")
    return traced


def callable_module(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """The program as a module, without the dtypes that it asserts if it has autocast regions.

    torch.export records float32 for an LSTM in such a region, whose result has 16 bits.
    """
    module: Any = program.module()
    if any(_regions(program.graph_module)):
        _erase_metadata(module)
    return module  # type: ignore[no-any-return]


def _erase_metadata(module: torch.fx.GraphModule) -> None:
    """Remove the asserted dtypes. Submodules belong to the program, so they are replaced."""
    for name, part in list(module.named_children()):
        if isinstance(part, torch.fx.GraphModule):
            copied = torch.fx.GraphModule(part, copy.deepcopy(part.graph))
            _erase_metadata(copied)
            setattr(module, name, copied)
    for node in module.graph.find_nodes(op="call_function", target=_METADATA):
        module.graph.erase_node(node)
    module.recompile()


def _refuse_devices(
    program: torch.export.ExportedProgram, region: torch.fx.Node
) -> None:
    """Raise LoweringError for a tensor on another device than the CPU."""
    for node in _nodes(program.graph_module):
        device = getattr(node.meta.get("val"), "device", None)
        if device is not None and device.type not in ("cpu", "meta"):
            raise _refused(region, f"the program has tensors on the device {device}")


def _dynamic_axes(program: torch.export.ExportedProgram) -> int:
    """The number of axes of the program's inputs whose sizes vary."""
    sizes = [
        size
        for node in program.graph.find_nodes(op="placeholder")
        if isinstance(node.meta.get("val"), torch.Tensor)
        for size in node.meta["val"].shape
    ]
    return sum(
        isinstance(size, torch.SymInt) and not size.node.expr.is_number
        for size in sizes
    )


def _refused(region: torch.fx.Node, reason: str) -> LoweringError:
    return LoweringError(
        f"the casts of autocast ({region.args[0]}) are not in the program, and {reason}",
        where=location(_first(region)),
        fix=_FIX,
    )


def _first(region: torch.fx.Node) -> torch.fx.Node:
    """The first operator in a region: its source location is that of the region."""
    nodes: Any = _body(region).graph.nodes if region.target is _WRAP else ()
    located = (node for node in nodes if node.meta.get("stack_trace"))
    return next(located, region)


def _body(region: torch.fx.Node) -> torch.fx.GraphModule:
    body: Any = region.args[4]
    module: torch.fx.GraphModule = getattr(region.graph.owning_module, body.target)
    return module


def _regions(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The calls that switch autocast on, and those that enter a region without a submodule."""
    for node in _nodes(module):
        if node.target is _enter_autocast or (node.target is _WRAP and node.args[2]):
            yield node


def _nodes(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for part in graph_modules(module):
        yield from list(part.graph.nodes)


def graph_modules(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    """The module and its submodules that have a graph."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield part


def _prepare(module: torch.fx.GraphModule) -> None:
    """Let torch decompose the operators inside of which autocast casts, and run regions node by
    node: then it keeps source locations and module names.
    """
    for node in _nodes(module):
        if node.target is _METADATA:
            node.graph.erase_node(node)
        elif node.target is _WRAP:
            body = _body(node)
            body.forward = types.MethodType(_run, body)
        elif _hides_casts(node.target):
            operator: Any = node.target
            node.args = (operator, *node.args)
            node.target = _decomposed
    for part in graph_modules(module):
        part.recompile()


def _run(module: torch.fx.GraphModule, *args: Any) -> Any:
    return torch.fx.Interpreter(module).run(*args)


def _hides_casts(target: Any) -> bool:
    """Whether an operator is composite and autocast casts the inputs of its parts, not its own."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name: str = target.name()  # type: ignore[no-untyped-call]
    if name.partition(".")[0] in _NOT_DECOMPOSED:
        return False
    composite = _has_kernel(name, "CompositeImplicitAutograd")
    return composite and not _has_kernel(name, "AutocastCPU")


def _decomposed(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operator, as its parts if autocast is on.

    torch has one kernel for each layer of an LSTM on the CPU, and autocast casts all its inputs.
    """
    if torch.is_autocast_enabled("cpu"):
        if target is _LSTM and not _projects(args):
            dtype = torch.get_autocast_dtype("cpu")
            args = pytree.tree_map_only(torch.Tensor, lambda x: x.to(dtype), args)
            return target(*args, **kwargs)
        # a mode of torch functions would call the operator as a whole
        with torch._C.DisableTorchFunction():
            return target._op_dk(_COMPOSITE, *args, **kwargs)
    return target(*args, **kwargs)


def _projects(args: Any) -> bool:
    """Whether an LSTM has projections: then its two states have different sizes."""
    hidden, cell = args[1]
    return bool(hidden.shape[-1] != cell.shape[-1])
