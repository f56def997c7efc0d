"""Refuses edits of a loaded module that its compiled code cannot follow, immediately or at the next call.

Parameters and buffers may be replaced, removed or computed (``torch.nn.utils.parametrize``),
because every call reads them. Everything else is compiled in: submodules, plain attributes, hooks
of submodules, some of their modes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch import nn

from ..errors import EditError, MissingCodeError, ModeError, Problem
from .frozen import article, frozen, is_same, refusal

if TYPE_CHECKING:
    from ..runtime.call import MethodCall

_REBUILD = "Change the model itself, and build the bundle again."
_WRAP = f"{_REBUILD} What stands before or after it may also be in a module of your own that holds the bundle."
_AVERAGE = (
    "A bundle averages statistics only of torch's own BatchNorm classes. Use update_bn on the model itself, and load its "
    "state_dict(). Statistics that update_bn had reset are as before."
)
_COMPILED = "the submodules are compiled in"
_ANY_MODULE = frozenset(dir(nn.Module))
_OWN = _ANY_MODULE - {"forward"}
"""What torch's own code looks up: another ``train`` or ``state_dict`` of an instance acts as in eager."""
_RESERVED = ("_aotpack", "_repr_", "__")
"""Beginnings of names that no recorded attribute can have: those of ours, and of Python's and Jupyter's own protocols."""
_FUNCTIONS = (FunctionType, MethodType)
_HOOKS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}


class Edits:
    """What the modules of one loaded program report to its next call.

    ``sound``: methods for which all modules were valid. ``applying``: whether ``apply`` is running.
    ``reset``: modules whose statistics were reset since the last call. Each comes with a tensor,
    its old contents, and its version counter after the reset.
    """

    __slots__ = ("applying", "reset", "sound")

    def __init__(self) -> None:
        self.sound: set[str] = set()
        self.applying = False
        self.reset: list[tuple[Watched, torch.Tensor, torch.Tensor, int]] = []

    def undo_resets(self) -> None:
        """Restore statistics that were reset since the last call and not written since, and their modules' momentum."""
        for module, tensor, old, version in self.reset:
            vars(module)["momentum"] = module._aotpack_known.get("momentum")
            if tensor._version == version:
                tensor.copy_(old)
        self.reset.clear()

    def check(self, root: nn.Module, call: MethodCall) -> list[tuple[str, nn.Module, float]]:
        """Check hooks and modes.

        Returns:
            Modules whose statistics the call must average (``momentum = None``): path, module,
            momentum of the build.

        Raises:
            EditError: lists all submodules with hooks.
            ModeError: lists all submodules in another mode than the method was built for.
        """
        hooks = [problem for module in root.modules() if module is not root for problem in _hooks(module)]
        if hooks:
            below = [module for module in root.modules() if isinstance(module, Watched) and module is not root]
            raise EditError(
                "Hooks of submodules would never run: a bundle is called as a whole.",
                hooks,
                hint=_alternative([hook for module in below for hook in _hooks_of(module)])
                or "Remove them (handle.remove()). Hooks of the bundle itself run. To see a value inside, return it from the "
                "model, and build the bundle again.",
            )
        flags = {path: (root.get_submodule(path), flag) for path, flag in call.flags.items()}
        modes = {True: "train()", False: "eval()"}
        other = [
            Problem(path, f"was in {modes[flag]} when the bundle was built, and is in {modes[module.training]}")
            for path, (module, flag) in flags.items()
            if module.training != flag
        ]
        if other:
            raise ModeError(
                f"Submodules are in other modes than those that method {call.name!r} was built for.",
                other,
                hint="Put them back with train() or eval(), or build the bundle from a model with them in these modes.",
            )
        averaged = [item for module in root.modules() for item in _averaged(module)]
        computed = any(module._forward_pre_hooks for module in root.modules() if module is not root)
        if computed:
            from .computed import compute_parameters  # few modules have such hooks

            compute_parameters(root)
        if not averaged and not computed:
            self.sound.add(call.name)
            self.reset.clear()
        return averaged


def _averaged(module: nn.Module) -> Iterator[tuple[str, nn.Module, float]]:
    if isinstance(module, nn.modules.batchnorm._NormBase) and isinstance(module, Watched):
        momentum = module._aotpack_known.get("momentum")  # a bundle need not record it
        if momentum is not None and module.momentum is None:
            yield module._aotpack_path, module, momentum


def _alternative(used: Iterable[Any]) -> str:
    """What to do instead of using these hooks or wrappers; empty if unknown."""
    from ..runtime.tool_hints import advice  # only for errors

    return advice(getattr(item, "__module__", None) or "" for item in used)


def _hooks_of(module: nn.Module) -> Iterator[Any]:
    return (hook for attribute in _HOOKS for hook in vars(module)[attribute].values())


class HookWarning(UserWarning):
    """Hooks for the modules of all models see a loaded bundle as one module."""


def _hooks(module: nn.Module) -> Iterator[Problem]:
    if not isinstance(module, Watched):
        return  # a parametrization: it does run
    for attribute, kind in _HOOKS.items():
        for hook in vars(module)[attribute].values():
            from .computed import computes_parameter  # only if there are hooks

            if attribute == "_forward_pre_hooks" and computes_parameter(hook):
                continue
            yield Problem(module._aotpack_path, f"has a {kind}, {getattr(hook, '__qualname__', type(hook).__qualname__)}")


class Submodules(dict[str, Any]):
    """The submodules of one module, which cannot change. Parametrizations may be added and removed, and take effect."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def _refuse(self, name: Any, what: str) -> NoReturn:
        raise refusal(_join(self.path, str(name)), f"{what}; {_COMPILED}", _WRAP)

    def __setitem__(self, name: str, module: Any) -> None:
        _check_submodule(self, _join(self.path, str(name)), name, module)
        super().__setitem__(name, module)

    def __delitem__(self, name: str) -> None:
        if name in self and not is_parametrization(name, self[name]):
            self._refuse(name, "cannot be removed")
        super().__delitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove an entry as a dictionary does, if there is nothing to remove; else refuse."""
        if name in self:
            self._refuse(name, "cannot be removed")
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        """Refuse to remove a submodule."""
        self._refuse(next(iter(self), ""), "cannot be removed")

    def clear(self) -> None:
        """Refuse unless there are no submodules."""
        for name in self:
            self._refuse(name, "cannot be removed")

    def update(self, *others: Any, **named: Any) -> None:
        """Refuse unless nothing changes."""
        for name, module in dict(*others, **named).items():
            self[name] = module

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return an existing entry as a dictionary does."""
        if name not in self:
            self[name] = default
        return self[name]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = memo[id(self)] = type(self)(self.path)
        dict.update(copied, {name: copy.deepcopy(module, memo) for name, module in self.items()})
        return copied

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return dict, (dict(self),)


def is_parametrization(name: str, module: Any) -> bool:
    """Whether this is what ``torch.nn.utils.parametrize`` adds. A call reads parameters through it."""
    return name == "parametrizations" and isinstance(module, nn.ModuleDict)


def _checked_registration(name: str) -> Callable[..., Any]:
    """A hook registration of ``nn.Module`` that makes the next call check for hooks of submodules."""
    register = getattr(nn.Module, name)

    @wraps(register)
    def noticed(self: Watched, *args: Any, **kwargs: Any) -> Any:
        self._aotpack_edits.sound.clear()
        return register(self, *args, **kwargs)

    return noticed


class Watched(nn.Module):
    """A module of a loaded program. It reports changes to :class:`Edits` and refuses those without effect.

    ``_aotpack_known`` are the original's plain attributes, ``_aotpack_names`` the names of others,
    and ``_aotpack_held`` those of parameters and buffers.
    """

    _aotpack_edits: Edits
    _aotpack_path: str
    _aotpack_known: Mapping[str, Any]
    _aotpack_names: frozenset[str] = frozenset()
    _aotpack_held: set[str]
    _aotpack_is_root = False

    # Subclasses in torch.nn override these with methods that need attributes a replacement module
    # lacks.
    _apply = nn.Module._apply
    __setstate__ = nn.Module.__setstate__

    def __repr__(self) -> str:
        from ..text import visible_lines  # only to print

        return visible_lines(super().__repr__())

    def _aotpack_watch(self, edits: Edits, path: str, known: Mapping[str, Any]) -> None:
        """Start to check edits."""
        ours = _ANY_MODULE.union(vars(self)) if known else ()
        shown = {name: value for name, value in known.items() if name not in ours and not name.startswith(_RESERVED)}
        known = {name: frozen(value, _join(path, name)) for name, value in shown.items()}
        vars(self).update(known)
        vars(self).update(_aotpack_path=path, _aotpack_known=known, _aotpack_held=set(), _modules=Submodules(path))
        vars(self)["_aotpack_edits"] = edits

    def __setattr__(self, name: str, value: Any) -> None:
        edits = vars(self).get("_aotpack_edits")
        if edits is not None:
            edits.sound.clear()
            _check_set(self, name, value)
            if value is not None and name in self._aotpack_known and name not in self._aotpack_held:
                value = self._aotpack_known[name]  # an equal value, but frozen
        nn.Module.__setattr__(self, name, value)  # skips overrides in classes of torch

    def __delattr__(self, name: str) -> None:
        if name in vars(self).get("_aotpack_known", ()) and name in vars(self):
            raise refusal(_join(self._aotpack_path, name), "cannot be removed; it is compiled in", _REBUILD)
        nn.Module.__delattr__(self, name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter that the original has, as any module does."""
        self._aotpack_refuse_new(name, param, "parameter")
        super().register_parameter(name, param)

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Register a buffer that the original has, as any module does."""
        self._aotpack_refuse_new(name, tensor, "buffer")
        super().register_buffer(name, tensor, persistent)

    def _aotpack_can_average(self, momentum: Any) -> bool:
        """Whether calls can average this module's statistics over batches instead of using a momentum."""
        return False

    def _aotpack_refuse_new(self, name: str, tensor: Any, kind: str) -> None:
        held = vars(self).get("_aotpack_held")
        if held is not None and name not in held and tensor is not None:
            from .computed import feeds_parametrization  # only where something is added

            if not feeds_parametrization(name, held):
                raise refusal(_join(self._aotpack_path, name), f"a {kind} cannot be added; nothing would read it", _WRAP)

    register_forward_pre_hook = _checked_registration("register_forward_pre_hook")
    register_forward_hook = _checked_registration("register_forward_hook")
    register_full_backward_pre_hook = _checked_registration("register_full_backward_pre_hook")
    register_full_backward_hook = _checked_registration("register_full_backward_hook")
    register_backward_hook = _checked_registration("register_backward_hook")

    def apply(self, fn: Callable[[nn.Module], object]) -> Self:
        """Apply ``fn`` as any module does.

        If ``fn`` asks a module for code of the original, it gets an error, not an absent attribute.
        """
        edits = self._aotpack_edits
        outer, edits.applying = edits.applying, True
        try:
            return nn.Module.apply(self, fn)  # type: ignore[arg-type]
        finally:
            edits.applying = outer

    def __getattr__(self, name: str) -> Any:
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError:
            if name not in self._aotpack_names or name.startswith("__"):
                raise
        from ..runtime.tool_hints import advice_to_caller  # only for errors

        raise (EditError if self._aotpack_edits.applying else MissingCodeError)(
            "A loaded bundle does not hold the code of its model.",
            [Problem(_join(self._aotpack_path, name), "is part of the original's code, which is compiled in")],
            hint=advice_to_caller() or "Call or read it on the model itself. A bundle holds parameters and numbers of modules.",
        )

    def __copy__(self) -> Self:
        """Copy the module as ``copy.copy`` copies any: parameters, buffers and submodules are shared."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the module with parameters and buffers of its own. Immutable parts are shared."""
        copied = memo[id(self)] = object.__new__(type(self))
        memo |= {id(value): value for value in self._aotpack_known.values()}
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied


def _check_set(module: Watched, name: str, value: Any) -> None:
    """Refuse an assignment that would have no effect, or another effect than in eager."""
    path, submodules = _join(module._aotpack_path, name), vars(module)["_modules"]
    if isinstance(value, nn.Module) or name in submodules:
        _check_submodule(submodules, path, name, value)
    elif name in module._aotpack_held or name == "training":
        pass  # looked at by the next call
    elif isinstance(value, (nn.Parameter, nn.Buffer)):
        module._aotpack_refuse_new(name, value, "parameter" if isinstance(value, nn.Parameter) else "buffer")
    elif name in module._aotpack_known:
        _check_constant(module, path, name, value)
    elif name == "__class__":
        _check_class(module, value)
    else:
        _check_code(module, path, name, value)


def _check_submodule(submodules: Mapping[str, Any], path: str, name: str, value: Any) -> None:
    if submodules.get(name) is not value and not is_parametrization(name, value):
        kind = article(type(value).__name__)
        what = f"cannot become {kind}" if name in submodules else f"{kind} cannot be added"
        raise refusal(path, f"{what}; {_COMPILED}", _alternative([type(value)]) or _WRAP)


def _check_constant(module: Watched, path: str, name: str, value: Any) -> None:
    """Refuse another value of a plain attribute. ``momentum = None`` averages statistics, where calls can do that."""
    old, averages = module._aotpack_known[name], name == "momentum" and value is None
    if not is_same(value, old) and not (averages and module._aotpack_can_average(old)):
        if averages:
            module._aotpack_edits.undo_resets()
        message = f"was {old!r} at the build, and is compiled in: it cannot become {value!r}"
        raise refusal(path, message, _AVERAGE if averages else _REBUILD)


def _check_class(module: Watched, kind: type[nn.Module]) -> None:
    if kind.forward is not type(module).forward and not _adds_only(module, kind):
        message = f"cannot become {article(kind.__name__)}; its forward would not run"
        raise refusal(module._aotpack_path, message, _REBUILD)


def _check_code(module: Watched, path: str, name: str, value: Any) -> None:
    """Refuse to set what is part of the original's code, or would never run."""
    is_method = name == "forward" or (isinstance(value, _FUNCTIONS) and name not in _OWN)
    if name == "qconfig":
        raise refusal(path, "cannot be set; the element types are compiled in", "Quantize the model, and build it again.")
    if name in module._aotpack_names and not (name == "forward" and module._aotpack_is_root):
        raise refusal(path, "is part of the original's code, which is compiled in", _REBUILD)
    if name == "_modules":
        raise refusal(path, f"cannot be replaced; {_COMPILED}", _WRAP)
    if is_method and not module._aotpack_is_root:
        raise refusal(
            path,
            "cannot be replaced; submodules only hold parameters, and their methods never run",
            _alternative([value]) or _REBUILD,
        )


def _adds_only(module: Watched, kind: type) -> bool:
    """Whether ``kind`` derives from the class that a module shows, and overrides none of the original's methods."""
    seen = module.__class__
    names = {"forward", *module._aotpack_names}
    return issubclass(kind, seen) and all(getattr(kind, name, None) is getattr(seen, name, None) for name in names)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
