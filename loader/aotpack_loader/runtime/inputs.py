"""Binds the caller's arguments to the recorded tree and checks them against what the graphs assume.

All mismatches are reported together before anything runs, each under the path of its argument.
Compiled code relies on sizes and strides without a check, so every argument is checked here.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .._torch_compat import is_plain_tensor
from ..devices.literals import literal
from ..errors import CorruptBundleError, InputError, Problem
from ..format import expressions, schema
from .arguments import Arguments, same
from .identity import Pattern
from .memory import is_on
from .tree import MISSING

if TYPE_CHECKING:
    from ..format.labels import Labels

Environment = dict[str, int]
Check = Callable[[Any, Environment, list[Problem]], Any]


_NO_SIZE = -1
"""Stands for the value of an expression that is divided by zero or beyond all sizes: no tensor has it."""


class LayoutWarning(UserWarning):
    """An argument has other strides than at build, so it is copied. Results have the strides of the build.

    It is given once for each argument.
    """


class Inputs:
    """Turns ``(args, kwargs)`` of a call into checked leaves and the values of the method's symbols."""

    def __init__(self, method: schema.Method, device: torch.device) -> None:
        self._arguments = Arguments(method, describe)
        self.flatten, self.bound = self._arguments.flatten, self._arguments.bound
        self._symbols = method.symbols
        self.pattern = Pattern(method)
        bound: set[str] = set()
        with_gradients = method.backward is not None or any(mode.grad for mode in method.serves)
        self.checks = [self._check_of(leaf, device, bound, method.symbols, with_gradients) for leaf in method.leaves]
        for gradient in () if method.backward is None else method.backward.sparse:
            primal = method.primals[gradient.primal]
            if isinstance(primal, schema.InputPrimal) and isinstance(check := self.checks[primal.leaf], TensorCheck):
                check.copy = _CopyOfSparse.apply
        self.binding = [(i, c) for i, c in enumerate(self.checks) if isinstance(c, (TensorCheck, IntegerCheck)) and c.determines]
        self._constraints = [(text, expressions.parse(text)) for text in method.constraints]

    def _check_of(
        self, leaf: schema.InputLeaf, device: torch.device, bound: set[str], symbols: list[schema.Symbol], with_gradients: bool
    ) -> Check:
        if isinstance(leaf, schema.ConstantLeaf):
            return _constant_check(leaf)
        if isinstance(leaf, schema.IntegerLeaf):
            return IntegerCheck(leaf, bound, symbols)
        return TensorCheck(leaf, device, bound, symbols, with_gradients)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], list[Any], Environment]:
        """Return the caller's leaves, the leaves with the strides the graphs expect, and the symbols' values.

        Raises:
            InputError: lists every argument that does not fit.
        """
        problems: list[Problem] = []
        leaves = self.flatten(args, kwargs, problems)
        environment: Environment = {}
        for check, leaf in self._binders(leaves):
            check.bind(leaf, environment)
        checked = [check(leaf, environment, problems) for check, leaf in zip(self.checks, leaves, strict=True)]
        self.pattern.check(leaves, problems)
        if problems:
            raise _error(problems)
        for text, holds in self._constraints:
            if not _is_satisfied(holds, environment):
                problems.append(self._unsatisfied_constraint(text, environment))
        if problems:
            raise _error(problems)
        return leaves, checked, environment

    def _unsatisfied_constraint(self, text: str, environment: Environment) -> Problem:
        """The problem for a violated constraint. It shows each size, the argument it comes from and its value."""
        sources = dict(source for _, check in self.binding for source in check.sources())
        labels = _labels(self._symbols, sources)
        found = [(labels.name(name), sources[name], environment[name]) for name in sorted(expressions.symbols(text))]
        sizes = [f"{name} = {source} = {size}" if name != source else f"{source} = {size}" for name, source, size in found]
        return Problem("sizes", f"must satisfy {labels.text(text)}; here {', '.join(sizes)}")

    def _binders(self, leaves: list[Any]) -> list[tuple[TensorCheck | IntegerCheck, Any]]:
        return [(check, leaves[i]) for i, check in self.binding]


def _error(problems: list[Problem]) -> InputError:
    return InputError(
        "The arguments do not fit this bundle." if len(problems) == 1 else f"{len(problems)} arguments do not fit this bundle.",
        problems,
        hint="The bundle was built for these arguments; see `aotpack inspect` for all of them. For other ones, build it with "
        "example inputs like those of this call.",
    )


def _is_satisfied(holds: expressions.Compiled, environment: Environment) -> bool:
    """Whether a constraint holds. One that cannot be evaluated counts as violated (A5)."""
    try:
        return bool(holds(environment))
    except expressions.UNDEFINED:
        return False


def _constant_check(leaf: schema.ConstantLeaf) -> Check:
    path, expected = leaf.path, literal(leaf.value)

    def check(value: Any, environment: Environment, problems: list[Problem]) -> Any:
        if value is not MISSING and not same(expected, value):
            message = f"the graphs were built for {expected!r}, got {describe(value)}"
            problems.append(Problem(path, message))
        return value

    return check


class IntegerCheck:
    """Checks a varying integer argument and binds its symbol."""

    def __init__(self, leaf: schema.IntegerLeaf, bound: set[str], symbols: list[schema.Symbol]) -> None:
        self.leaf = leaf
        self.symbol = next(symbol for symbol in symbols if symbol.name == leaf.size)
        self.symbols = symbols
        self.determines = leaf.size not in bound
        bound.add(leaf.size)

    def sources(self) -> list[tuple[str, str]]:
        """The symbol and the path of its argument."""
        return [(self.symbol.name, self.leaf.path)]

    def bind(self, value: Any, environment: Environment) -> None:
        """Bind the symbol. Later checks decide whether the value fits."""
        if type(value) is int:
            environment[self.symbol.name] = value

    def __call__(self, value: Any, environment: Environment, problems: list[Problem]) -> Any:
        if value is MISSING:
            return value
        fits = type(value) is int and self.symbol.takes(value)
        if not fits or environment.get(self.symbol.name) != value:
            wanted = f"an int {_labels(self.symbols).range(self.symbol)}"
            problems.append(Problem(self.leaf.path, f"expected {wanted}, got {describe(value)}"))
        return value


class TensorCheck:
    """Checks one tensor argument and reads the symbols that its sizes determine.

    ``with_gradients``: the method was traced with gradients.
    """

    def __init__(
        self, leaf: schema.TensorLeaf, device: torch.device, bound: set[str], symbols: list[schema.Symbol], with_gradients: bool
    ) -> None:
        self.leaf = leaf
        self.requires_grad = leaf.requires_grad and with_gradients
        self.dtype: torch.dtype = getattr(torch, leaf.dtype)
        self.complex = self.dtype.is_complex
        self.device = device
        static = all(isinstance(size, int) for size in [*leaf.shape, *(leaf.stride or [])])
        self.shape = tuple(leaf.shape) if static else None
        self.warned = False
        self.copy: Callable[[torch.Tensor, list[int]], torch.Tensor] = _copy
        self.stride = None if leaf.stride is None else tuple(leaf.stride)
        self.symbols = symbols
        limits = {symbol.name: symbol for symbol in symbols}
        self.binds: list[tuple[int, schema.Symbol]] = []
        for dim, size in enumerate(leaf.shape):
            if isinstance(size, str) and size in limits and size not in bound:
                self.binds.append((dim, limits[size]))
                bound.add(size)

    @property
    def determines(self) -> bool:
        """Whether symbols are read from this argument."""
        return bool(self.binds)

    def sources(self) -> list[tuple[str, str]]:
        """The symbols that are read from this argument, and the size each comes from."""
        return [(symbol.name, f"{self.leaf.path}.shape[{dim}]") for dim, symbol in self.binds]

    def __call__(self, value: Any, environment: Environment, problems: list[Problem]) -> Any:
        if value is MISSING:
            return value
        if not is_plain_tensor(value):
            problems.append(Problem(self.leaf.path, f"expected {self.expected(environment)}, got {describe(value)}"))
            return value
        if value.dtype is self.dtype and value.shape == self.shape and value.stride() == self.stride:
            wrong = False
        else:
            wrong = value.dtype is not self.dtype or not self.sizes_fit(value, environment)
        if wrong or not is_on(value, self.device):
            problems.append(Problem(self.leaf.path, self.mismatch(value, environment)))
            return value
        if value.requires_grad and not self.requires_grad and torch.is_grad_enabled():
            problems.append(self.lost_gradient())
        if self.leaf.from_start and value.storage_offset():
            message = f"has the storage offset {value.storage_offset()}, expected 0: the model uses as_strided; pass a copy"
            problems.append(Problem(self.leaf.path, message))
        if value.is_neg() or (self.complex and value.is_conj()):
            value = value.resolve_conj().resolve_neg()  # compiled code reads memory, not flags
        try:
            return self._with_stride(value, environment, problems)
        except RuntimeError as error:  # sizes and strides that no tensor can have
            problems.append(Problem(self.leaf.path, f"cannot be copied to the strides {self.stride}: {error}"))
            return value

    def mismatch(self, value: torch.Tensor, environment: Environment) -> str:
        """The message for a tensor of other sizes or another type, or on another device; then it names both devices."""
        expected, found = self.expected(environment), describe(value)
        if is_on(value, self.device):
            return f"expected {expected}, got {found}"
        expected, found = (text if " on " in text else f"{text} on cpu" for text in (expected, found))
        return f"expected {expected}, got {found}; move it with .to({str(self.device)!r})"

    def lost_gradient(self) -> Problem:
        """The problem for an argument that requires grad although the bundle computes no gradient for it."""
        message = (
            "requires a gradient, and the bundle was built without one for it; "
            "pass it detached, or build with an example that requires a gradient"
        )
        if self.leaf.requires_grad:
            message = "requires a gradient, and the bundle has no backward for this mode; pass it detached, or use no_grad()"
        return Problem(self.leaf.path, message)

    def bind(self, value: Any, environment: Environment) -> None:
        """Read the symbols that this argument determines. Later checks decide whether the sizes fit."""
        if isinstance(value, torch.Tensor) and value.dim() == len(self.leaf.shape):
            for dim, symbol in self.binds:
                environment[symbol.name] = value.shape[dim]

    def sizes_fit(self, value: torch.Tensor, environment: Environment) -> bool:
        if value.dim() != len(self.leaf.shape):
            return False
        for dim, symbol in self.binds:
            size = value.shape[dim]
            if not symbol.takes(size):
                return False
        return all(
            actual == size if isinstance(size, int) else _try(size, environment) in (actual, None)
            for actual, size in zip(value.shape, self.leaf.shape, strict=True)
        )

    def _with_stride(self, value: torch.Tensor, environment: Environment, problems: list[Problem]) -> torch.Tensor:
        """The tensor with the strides the graphs rely on. If its strides differ, a copy that autograd can follow."""
        if self.stride is None:
            return value
        strides = value.stride()
        if strides == self.stride:
            return value
        wanted = [s if isinstance(s, int) else _try(s, environment) for s in self.stride]
        known = [s for s in wanted if s is not None]
        fits = all(a == b or n <= 1 for a, b, n in zip(strides, wanted, value.shape, strict=True))
        if fits or len(known) < len(wanted) or not value.numel():
            return value
        if self.leaf.fixed_stride:
            message = f"has the strides {list(strides)}, expected {known}: the model does something else for other strides"
            problems.append(Problem(self.leaf.path, f"{message}; pass a tensor with the expected strides"))
            return value
        if not self.warned:
            from ..text import visible  # only for warnings

            self.warned = True
            warnings.warn(visible(_copied(self.leaf.path, list(strides), known)), LayoutWarning, stacklevel=2)
        return self.copy(value, known)

    def expected(self, environment: Environment) -> str:
        """Type and sizes, for messages. ``environment`` has the sizes that other arguments have determined."""
        labels, bound = _labels(self.symbols), {symbol.name: symbol for _, symbol in self.binds}

        def shown(size: schema.Dim) -> str:
            if str(size) in bound:
                return labels.range(bound[str(size)])
            value = _try(size, environment) if isinstance(size, str) else None
            return labels.text(size) if value is None or value == _NO_SIZE else f"{labels.text(size)}={value}"

        sizes = [shown(size) for size in self.leaf.shape]
        return f"{self.leaf.dtype}[{','.join(sizes)}]" + ("" if self.device.type == "cpu" else f" on {self.device}")


def _copy(value: torch.Tensor, strides: list[int]) -> torch.Tensor:
    """A copy with other strides that autograd can follow."""
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


class _CopyOfSparse(torch.autograd.Function):
    """Such a copy for a tensor whose gradient is sparse. Torch's own copy refuses that gradient, which eager passes on."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, strides: list[int]) -> torch.Tensor:
        return _copy(value, strides)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _copied(path: str, strides: list[int], wanted: list[int]) -> str:
    return (
        f"{path} has the strides {strides}; the bundle was built for {wanted}. Each such call copies it. Results have the "
        "same values as in eager, but may have other strides, or be copies where eager returns views. A model that reads "
        "strides gets those of the build."
    )


def _try(size: str, environment: Environment) -> int | None:
    """The size; None if it depends on an argument that is itself wrong and already reported; ``_NO_SIZE`` if it has no value."""
    try:
        return expressions.evaluate(size, environment)
    except CorruptBundleError:
        return _NO_SIZE if environment.keys() >= expressions.symbols(size) else None


def _labels(symbols: list[schema.Symbol], sources: Mapping[str, str] | None = None) -> Labels:
    from ..format.labels import Labels  # messages only

    return Labels(symbols, sources)


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        kind = "" if is_plain_tensor(value) else f" ({type(value).__name__})"
        device = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]{device}{kind}"
    from ..text import shown  # messages only

    return f"{type(value).__name__} {shown(value)}"
