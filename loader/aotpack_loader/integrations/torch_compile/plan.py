"""What Dynamo traces instead of a call of a loaded bundle."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import Tensor

from ..._torch_compat import MODULES_ARE_CONSTANTS, constant_while_tracing, graph_break, is_exported
from ...errors import AotpackError
from .methods import methods_of
from .operators import number_of


def call_in_graph(program: Any, args: Any, kwargs: Any, function: str = "") -> Any:
    """What Dynamo traces instead of a call of a program, or of a function. Values of the plan are constants of the trace."""
    if not MODULES_ARE_CONSTANTS:
        graph_break("torch.export cannot trace a loaded bundle; torch.compile has it as one operator from torch 2.13 on")
    if is_exported():
        graph_break("torch.export cannot trace a loaded bundle: its graphs are compiled; export the model itself")
    plan = _plan(program, program.training, function)
    if isinstance(plan, str):
        graph_break(plan)
    number, digest, method, names, mutations, results, tree = plan
    tensors: list[Tensor] = []
    text = _text(_structure(args, tensors), _structure(kwargs, tensors))
    state = []
    for name in names:
        holder, key = program._aotpack_slots[name]
        value = holder.get(key)
        if value is None:
            graph_break(f"the parameter or buffer {name} of a loaded bundle is computed or was removed")
        state.append(value)
    outputs = torch.ops.aotpack.forward(number, digest, method, text, tensors, state)
    with torch.no_grad():
        for index, output in mutations:
            state[index].copy_(outputs[output])
    leaves = []
    for kind, value in results:
        leaves.append(outputs[value] if kind == "output" else state[value] if kind == "state" else value)
    return _built(tree, leaves)


def _structure(value: Any, tensors: list[Tensor]) -> Any:
    """The argument as nested tuples of constants. Its tensors are added to ``tensors``."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return ("tensor", len(tensors) - 1)
    if isinstance(value, dict):
        return ("dict", *[(key, _structure(item, tensors)) for key, item in value.items()])
    if isinstance(value, tuple):
        return ("tuple", *[_structure(item, tensors) for item in value])
    if isinstance(value, list):
        return ("list", *[_structure(item, tensors) for item in value])
    if not (value is None or isinstance(value, (bool, int, float, str))):
        graph_break("a loaded bundle got an argument that is neither a tensor, a number, a text nor a container of those")
    return ("constant", value)


def _built(tree: Any, leaves: list[Any]) -> Any:
    """The results, nested by ``tree``. The list is emptied from its start."""
    kind = tree[0]
    if kind == "leaf":
        return leaves.pop(0)
    if kind == "dict":
        return {key: _built(item, leaves) for key, item in tree[1]}
    items = [_built(item, leaves) for item in tree[1]]
    return tuple(items) if kind == "tuple" else items


@constant_while_tracing
def _text(args: Any, kwargs: Any) -> str:
    return msgspec.json.encode((args, kwargs)).decode()


@constant_while_tracing
def _plan(program: Any, training: bool, function: str) -> Any:
    """How the trace calls a program in the current modes, as plain data; a text says why it cannot."""
    mode, variants = (training, torch.is_grad_enabled()), program._aotpack_variants
    call = program._aotpack_calls.get(mode)
    if function:
        served = program._aotpack_functions[function]
        variants = {mode: several for mode, several in served.items() if len(several) > 1}
        call = served[mode][0] if mode in served else None
    if call is None:
        return "a loaded bundle has no method for this mode"
    if variants:
        try:
            call = program._aotpack_under_autocast(call, variants)
        except AotpackError as error:
            return error.summary
    try:
        found = methods_of(program.aotpack.path, program.aotpack.digest, program.aotpack.backend)[call.name]
    except (AotpackError, OSError):
        return f"the file {program.aotpack.path} of a loaded bundle has changed since the load; compiling a caller reads it"
    if found.obstacle or program.aotpack.backend.startswith("xla"):
        return f"a loaded bundle is compiled already, and {found.obstacle or 'its calls are for another device'}"
    return (number_of(program), program.aotpack.digest, call.name, found.names, found.mutations, found.results, found.tree)
