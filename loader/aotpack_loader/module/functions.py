"""Functions of the original beside its call: methods of a bundle that share the loaded module's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .._torch_compat import is_traced, skipped
from ..errors import AotpackError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..runtime.call import MethodCall


class LoadedFunction:
    """A function of the original over the parameters and buffers of a loaded module, a ``LoadedProgram``.

    It is called as the original is, without the model. As in a call of the module, the module's ``train()`` or
    ``eval()`` and gradient mode select the method, and the same is checked.
    """

    def __init__(self, module: Any, name: str, served: Mapping[tuple[bool, bool], Sequence[MethodCall]]) -> None:
        self._module, self._name = module, name
        self._calls = {mode: several[0] for mode, several in served.items()}
        self._variants = {mode: several for mode, several in served.items() if len(several) > 1}

    @skipped
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module
        if is_traced():
            return module._aotpack_in_graph(args, kwargs, self._name)
        call = self._calls.get((module.training, torch.is_grad_enabled()))
        if call is None:
            call = module._aotpack_call_without_gradients(self._calls, self._name)
        if self._variants:
            call = module._aotpack_under_autocast(call, self._variants)
        if call.name not in module._aotpack_edits.sound:
            return module._aotpack_run_edited(call, args, kwargs)
        return module._aotpack_run(call, args, kwargs)

    def __repr__(self) -> str:
        calls = ", ".join(dict.fromkeys(call.name for call in self._calls.values()))
        return f"<method {self._name!r} of {self._module.aotpack.path}: {calls}>"


def function_of(module: Any, name: str) -> LoadedFunction:
    """The function ``name`` of a loaded module.

    Raises:
        AotpackError: there is no such function.
    """
    functions = module._aotpack_functions
    if name not in [*functions]:  # a list takes names that have no hash
        known = ", ".join(functions)
        raise AotpackError(
            f"The bundle has no method {name!r}.",
            hint=f"It has {known}." if known else 'Build it with one: aotpack.build(model, ..., methods={"encode": …}).',
        )
    return LoadedFunction(module, name, functions[name])
