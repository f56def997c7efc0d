"""The loaded program: an ``nn.Module`` with the original's parameters, buffers and modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch import nn

from .._torch_compat import has_global_hooks, is_traced, may_be_recorded, recorded_call, recorder, skipped
from ..errors import AotpackError, EditError, InputError, ModeError, Problem
from .edits import Edits, HookWarning, Watched
from .info import LoadInfo
from .submodules import Slots, add_modules, add_state, computed_state, modes_after, shown

if TYPE_CHECKING:
    from ..runtime.call import MethodCall
    from .outline import Outline

Mode = tuple[bool, bool]
"""Train (or eval) mode, gradients on (or off)."""


def by_mode(serves: Mapping[str, Sequence[Mode]], calls: Mapping[str, MethodCall]) -> dict[Mode, list[MethodCall]]:
    """Calls by the modes that they serve. Several calls of one mode differ in autocast."""
    found: dict[Mode, list[MethodCall]] = {}
    for name, modes in serves.items():
        for training, grad in modes:
            found.setdefault((training, grad), []).append(calls[name])
    return found


class LoadedProgram(Watched):
    """A trainable model from a bundle.

    It is called like the original. ``train()``/``eval()`` and gradient mode select the method. A
    combination the bundle was not built for is refused. The attribute ``aotpack`` records how it
    was loaded.
    """

    # transformers evaluates these annotations, so they name nothing that is imported for types only.
    aotpack: LoadInfo
    _aotpack_slots: Slots
    _aotpack_functions: dict[str, dict[Mode, list[Any]]]
    _aotpack_modes: dict[bool, list[str]]
    _aotpack_text: str
    _aotpack_is_root = True
    _aotpack_in_graph: Callable[..., Any]
    """What Dynamo traces instead of a call: takes its arguments, and the name of a function. The program's own class has it."""
    _aotpack_as_html: Callable[[Any, Sequence[tuple[str, str]]], str]
    """Describes the program for Jupyter, with further pairs of label and text. The program's own class has it."""

    # Names here begin with "aotpack" or "_aotpack", except those of nn.Module. All others belong to
    # the original.
    def __init__(
        self,
        info: LoadInfo,
        outline: Outline,
        state: Mapping[str, torch.Tensor],
        calls: Mapping[str, MethodCall],
    ) -> None:
        nn.Module.__init__(self)  # skips other base classes that a program may have
        self.aotpack = info
        info.bind(self)
        served = by_mode(outline.serves, calls)
        self._aotpack_calls = {mode: several[0] for mode, several in served.items()}
        self._aotpack_variants = {mode: several for mode, several in served.items() if len(several) > 1}
        vars(self)["_aotpack_functions"] = {name: by_mode(serves, calls) for name, serves in outline.functions.items()}
        self.training = outline.training
        edits = Edits()
        add_modules(self, outline.modules, edits)
        # Skips nn.Module's __setattr__, which could mistake these for a parameter of the same name.
        vars(self)["_aotpack_slots"] = add_state(self, outline.state, state, edits)
        vars(self)["_aotpack_modes"] = modes_after(outline.modules)

    @skipped
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the program as the original was called; see ``aotpack inspect`` for its arguments."""
        if is_traced():
            return self._aotpack_in_graph(args, kwargs)
        call = self._aotpack_calls.get((self.training, torch.is_grad_enabled()))
        if call is None:
            call = self._aotpack_call_without_gradients(self._aotpack_calls)
        if self._aotpack_variants:
            call = self._aotpack_under_autocast(call, self._aotpack_variants)
        if call.name not in self._aotpack_edits.sound:
            return self._aotpack_run_edited(call, args, kwargs)
        return self._aotpack_run(call, args, kwargs)

    def _aotpack_run_edited(self, call: MethodCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method after an edit of the module, if there is no edit that it cannot follow."""
        if not (modules := self._aotpack_edits.check(self, call)):
            return self._aotpack_run(call, args, kwargs)
        from .averages import averaged  # rarely needed

        with averaged(modules, self._aotpack_edits.undo_resets):
            return self._aotpack_run(call, args, kwargs)

    def _aotpack_run(self, call: MethodCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if has_global_hooks():
            _warn_of_global_hooks()
        if may_be_recorded() and (tool := recorder()):
            raise _retraced_error(tool)
        try:
            results = call.natively(args, kwargs, self._aotpack_slots)
            if results is not None:
                return call.unflatten(iter(results))
            return call(args, kwargs, self._aotpack_state())
        except InputError as error:
            if tool := recorder():
                raise _retraced_error(tool) from error
            if (recorded := recorded_call(self, args, kwargs)) is not None:
                return recorded
            raise
        except RuntimeError as error:
            if type(args) is not tuple:  # torch.fx passes another type
                raise _retraced_error("torch.fx") from error
            from ..runtime.branches import BRANCH_MESSAGE, branch_error  # only for errors

            if BRANCH_MESSAGE not in str(error):
                raise
            raise branch_error(error) from error

    def _aotpack_under_autocast(self, call: MethodCall, variants: Mapping[Mode, Sequence[MethodCall]]) -> MethodCall:
        """The method for the caller's autocast, among the methods of the same modes as ``call``."""
        several = next((found for found in variants.values() if call is found[0]), None)
        if several is None:
            return call
        current = call.modes.current_autocast()
        for one in several:
            if one.modes.autocast is current:
                return one
        raise call.modes.other_autocast(current, [one.modes.autocast for one in several])

    def _aotpack_state(self) -> dict[str, Any]:
        """Parameters and buffers by name.

        For a removed one the value that eager reads: an attribute, a parametrization or None.
        """
        state = {name: holder.get(key) for name, (holder, key) in self._aotpack_slots.items()}
        if any(value is None for value in state.values()):
            state |= computed_state(self, self.aotpack.program.state, [name for name, value in state.items() if value is None])
        return state

    def train(self, mode: bool = True, *args: Any, **kwargs: Any) -> Self:
        """Set the same modes as the original's ``train`` and ``eval``.

        Raises:
            ModeError: there are further arguments, for code of the original's own ``train``.
        """
        if args or kwargs:
            raise ModeError(
                "train() of a loaded bundle takes the mode alone.",
                [Problem(name, "is an argument of the original's own train()") for name in [*map(repr, args), *kwargs]],
                hint="A bundle holds the modes that train() and train(False) set at the build.",
            )
        super().train(mode)
        for path in self._aotpack_modes[bool(mode)]:
            self.get_submodule(path).training = not mode
        return self

    def _aotpack_call_without_gradients(self, calls: Mapping[Mode, MethodCall], function: str = "") -> MethodCall:
        """Of ``calls``, the method without gradients, if gradients are on but no parameter requires one; else an error."""
        if may_be_recorded() and (tool := recorder()):
            raise _retraced_error(tool)  # some tools switch to eval mode first
        grad = torch.is_grad_enabled()
        other = calls.get((self.training, False))
        if grad and other is not None and not any(p.requires_grad for p in self.parameters()):
            return other
        if not calls:
            named = ", ".join(self._aotpack_functions)
            raise ModeError(
                f"This bundle was built without a call of the module itself. It has the methods {named}.",
                hint="Call one of them: model.aotpack.method(name)(...).",
            )
        mode = f"{'train()' if self.training else 'eval()'} with gradients {'on' if grad else 'off'}"
        served = [
            Problem(
                f"{'train()' if training else 'eval()'}, gradients {'on' if enabled else 'off'}",
                f"method {call.name!r}",
            )
            for (training, enabled), call in sorted(calls.items(), reverse=True)
        ]
        hint = (
            "Call it under torch.no_grad(), switch to train(), or build the bundle with `--method eval`."
            if grad and not self.training
            else "Switch the mode, or build the bundle with a method for it."
        )
        of = f" of {function!r}" if function else ""
        raise ModeError(f"This bundle has no method{of} for {mode}. It has:", served, hint=hint)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Fill parameters and buffers from ``state_dict``; all or nothing.

        Raises:
            StateError: lists every missing, unexpected or misshaped entry; nothing was changed.
        """
        from .state_dicts import checked  # not imported at every start

        with checked(self, state_dict, strict=strict, assign=assign) as entries:
            return super().load_state_dict(entries, strict=strict, assign=assign)

    def __prepare_scriptable__(self) -> NoReturn:
        raise _retraced_error("torch.jit.script")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise AotpackError(
            "A loaded bundle cannot be pickled.",
            hint="Save its state_dict() instead, load the bundle where it is needed, and fill it with load_state_dict().",
        )

    def _repr_html_(self) -> str:
        """Describe the program for Jupyter: how it was loaded, and how to call it."""
        info = self.aotpack
        loaded = [("bundle", info.path), ("digest", info.digest), ("target", f"{info.backend}: {info.reason}")]
        return self._aotpack_as_html(
            info.program, [*loaded, *((f"not {name}", reason) for name, reason in info.rejected.items())]
        )

    def extra_repr(self) -> str:
        loaded = f"{self.aotpack.path}, backend={self.aotpack.backend}"
        return f"{shown(self._aotpack_text)}\n{loaded}" if self._aotpack_text else loaded


def _warn_of_global_hooks() -> None:
    """Warn that hooks for the modules of all models do not run for submodules. Python shows it once."""
    warnings.warn(
        "Hooks for all modules (register_module_forward_hook and the like; FlopCounterMode uses them) run "
        "for a loaded bundle as a whole. They do not run for its submodules, which are compiled in. "
        "Native code adds nothing to a count of operations; load the bundle with backend='portable' to count them.",
        HookWarning,
        stacklevel=4,
    )


def _retraced_error(tool: str) -> EditError:
    """The error for ``tool``, which traces a bundle to rewrite or to export it."""
    hint = "Trace and rewrite the model itself, and build the bundle from the GraphModule."
    return EditError(
        f"{tool} cannot trace a loaded bundle: its graphs are compiled, and take real tensors.",
        hint=hint if tool == "torch.fx" else "Do it with the model itself.",
    )
