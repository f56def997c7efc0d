"""Read-only lists and dictionaries: attributes of the original that a loaded module shows.

Their values are compiled in, and no call reads them. A copy (``list(module.sizes)``,
``copy.deepcopy``) can be changed.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn, Self

from ..errors import EditError, Problem
from ..text import shown


def refusal(path: str, message: str, hint: str) -> EditError:
    """The error for an edit that compiled code would not follow."""
    return EditError("This edit of a loaded bundle would do nothing.", [Problem(path, message)], hint=hint)


def article(name: str) -> str:
    """``name`` with its article: ``a Linear``, ``an Identity``."""
    return f"{'an' if name[:1] in 'AEIOaeio' else 'a'} {name}"


class _Frozen:
    """Common base of both classes: the path of the attribute, and refusal of changes in place."""

    aotpack_path: str

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        message = f"cannot be changed in place: it was {shown(self)} at the build, and is compiled in"
        raise refusal(self.aotpack_path, message, "Change the model itself, and build the bundle again.")

    def _refuse_operator(self, other: Any) -> Self:
        self._refuse()

    __setitem__ = __delitem__ = pop = clear = _refuse


class FrozenList(_Frozen, list[Any]):
    """A list of the original."""

    append = extend = insert = remove = reverse = sort = _Frozen._refuse
    __iadd__ = __imul__ = _Frozen._refuse_operator

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(item, memo) for item in self]

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return list, (list(self),)


class FrozenDict(_Frozen, dict[Any, Any]):
    """A dictionary of the original."""

    update = setdefault = popitem = _Frozen._refuse
    __ior__ = _Frozen._refuse_operator

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return dict, (dict(self),)


def frozen(value: Any, path: str) -> Any:
    """``value``, the plain data at ``path``, with all lists and dictionaries in it frozen."""
    made: Any
    if isinstance(value, list):
        made = FrozenList(frozen(item, f"{path}[{i}]") for i, item in enumerate(value))
    elif isinstance(value, dict):
        made = FrozenDict({key: frozen(item, f"{path}[{shown(key)}]") for key, item in value.items()})
    elif type(value) is tuple:
        return tuple(frozen(item, f"{path}[{i}]") for i, item in enumerate(value))
    else:
        return value
    made.aotpack_path = path
    return made


def is_same(value: Any, known: Any) -> bool:
    """Whether ``value`` equals ``known``, the attribute of a module, and has the same plain type."""
    return _plain_type(value) is _plain_type(known) and bool(value == known)


def _plain_type(value: Any) -> type:
    kind = type(value)
    return list if kind is FrozenList else dict if kind is FrozenDict else kind
