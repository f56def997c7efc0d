"""Programs whose calls assign tensors with gradients to buffers: spiking neurons, stateful cells.

Their methods take these buffers in a dictionary, and leave the new ones in it (rule R13).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from ..errors import InputError, Problem
from ..format.interface import ASSIGNED
from .program import LoadedProgram

_BUFFER: Final = re.compile(rf"^{ASSIGNED}\[(.*?)\]")
_HINT: Final = (
    "A call takes the buffers that it assigns, so their sizes must fit the arguments. "
    "Assign buffers of these sizes before a call with other ones: model.layer.mem = torch.zeros(7, 5)."
)


def members(names: Sequence[str]) -> dict[str, Any]:
    """The additional members of the class of a program that assigns to the buffers ``names``."""
    return {"_aotpack_assigned": tuple(names), "_aotpack_run": _run}


def _run(self: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method with the module's own buffers, and make what it computes its buffers. A failed call changes none.

    A caller may pass a dictionary of its own instead, which gets the new tensors.
    """
    if ASSIGNED in kwargs:
        return LoadedProgram._aotpack_run(self, call, args, kwargs)
    slots = {name: self._aotpack_slots[name] for name in self._aotpack_assigned}
    state = {name: holder.get(key) for name, (holder, key) in slots.items()}
    try:
        result = LoadedProgram._aotpack_run(self, call, args, {**kwargs, ASSIGNED: state})
    except InputError as error:
        if not any(problem.where.startswith(ASSIGNED) for problem in error.problems):
            raise
        problems = [Problem(_BUFFER.sub(r"buffer \1", problem.where), problem.message) for problem in error.problems]
        raise InputError(error.summary, problems, hint=_HINT) from error
    for name, (holder, key) in slots.items():
        holder[key] = state[name]
    return result
