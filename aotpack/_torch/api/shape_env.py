"""Builds a shape environment with given symbols, and fake tensors over them, as a trace would have
left them.

Symbols are restored as in ``torch.export``'s own deserialiser
(``torch/_export/serde/serialize.py``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv, _free_unbacked_symbols_with_path, free_unbacked_symbols
from torch.utils._sympy import functions
from torch.utils._sympy.numbers import int_oo

from .fixed_sizes import noted_fixed_sizes
from .patching import hooked


@contextlib.contextmanager
def recorded_guards() -> Iterator[None]:
    """Record guards in this block, and where they fix sizes, whatever was traced in this thread before.

    Torch switches guards off for parts of a trace. If Python's stack overflows there
    (``RecursionError``), it does not switch them on again, and no later trace of the thread records
    what it assumes of sizes. ``torch.compile`` has the fault too.
    """
    switch = vars(symbolic_shapes.TLS)
    before = dict(switch)
    switch.clear()
    try:
        with noted_fixed_sizes():
            yield
    finally:
        switch.clear()
        switch.update(before)


SIZE_FUNCTIONS: dict[str, Any] = {
    "max": functions.Max,
    "min": functions.Min,
    "float": functions.ToFloat,
    "sqrt": functions.OpaqueUnaryFn_sqrt,
    "trunc": functions.TruncToInt,
    "floor": functions.FloorToInt,
    "ceil": functions.CeilToInt,
    "round": functions.RoundToInt,
    "pow": functions.FloatPow,
}
"""The functions of the expression grammar (spec/expressions.md) as torch's functions."""

_UNBACKED = re.compile(r"u([0-9]+)")
_BACKED = re.compile(r"s[0-9]+")


def fixed_sizes(mode: FakeTensorMode) -> set[int]:
    """The values of sizes that were to vary, and that a trace in this mode has made constant."""
    env = mode.shape_env
    return set() if env is None else {int(value) for value in env.replacements.values() if value.is_Integer}


def fixed_sources(mode: FakeTensorMode) -> set[str]:
    """Where the sizes come from that were to vary, and that a trace in this mode has made constant."""
    env = mode.shape_env
    fixed = [] if env is None else [symbol for symbol, value in env.replacements.items() if value.is_Integer]
    return set().union(*(_sources(env, symbol) for symbol in fixed))


def sources_of(size: torch.SymInt) -> set[str]:
    """Where the sizes come from that a size is computed from: ``L['x'].size()[1]``."""
    return set().union(*(_sources(size.node.shape_env, symbol) for symbol in size.node.expr.free_symbols))


def _sources(env: Any, symbol: sympy.Symbol) -> set[str]:
    names = [source.name for source in env.var_to_sources.get(symbol, [])]
    return {name() if callable(name) else name for name in names}  # a method in older releases


def value_near(size: torch.SymInt, further: int) -> int:
    """What a size is if each size of an argument is larger by ``further`` than the example's.

    Raises:
        TypeError: the size depends on data.
    """
    hints = size.node.shape_env.backed_var_to_val
    return int(size.node.expr.xreplace({s: hints[s] + further for s in size.node.expr.free_symbols if s in hints}))


def modulo(base: Any, divisor: Any) -> Any:
    """The remainder as torch writes it: the simpler function if no operand can be negative."""
    plain = base.is_nonnegative and divisor.is_nonnegative
    return functions.Mod(base, divisor) if plain else functions.PythonMod(base, divisor)


def divided(dividend: Any, divisor: Any, *, floor: bool) -> Any:
    """The quotient as torch writes it: rounded down, or true division of integers or of reals."""
    if floor:
        return functions.FloorDiv(dividend, divisor)
    integers = dividend.is_integer and divisor.is_integer
    return functions.IntTrueDiv(dividend, divisor) if integers else functions.FloatTrueDiv(dividend, divisor)


def depends_on_data(expression: torch.SymBool) -> bool:
    """Whether a truth value depends on numbers that are read from tensors."""
    return bool(free_unbacked_symbols(expression))


class Symbols:
    """Symbols by name, in a shape environment of their own. Fake tensors are made in ``mode``."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.by_name: dict[str, sympy.Symbol | sympy.Integer] = {}
        self._unbacked = 0
        self.hints: dict[Any, Any] = self.env.backed_var_to_val

    @staticmethod
    def is_size(name: str) -> bool:
        """Whether torch treats a symbol of this name as a size of an argument."""
        return _BACKED.fullmatch(name) is not None

    @staticmethod
    def is_unbacked(name: str) -> bool:
        """Whether torch treats a symbol of this name as a size that depends on data."""
        return _UNBACKED.fullmatch(name) is not None

    def add_size(self, name: str, minimum: int, maximum: int | None, hint: int) -> None:
        """Add a size of an argument, in ``minimum..maximum`` (null: unbounded), equal to ``hint``
        at the example.
        """
        symbol = self.by_name[name] = sympy.Symbol(name, positive=True, integer=True)
        self.hints[symbol] = sympy.Integer(hint)
        self._bound(symbol, minimum, maximum)

    def fix(self, name: str, value: int) -> None:
        """Fix a size of an argument to the same value at every call: expressions with it become
        numbers.
        """
        self.by_name[name] = sympy.Integer(value)

    def add_unbacked(self, name: str, minimum: int, maximum: int | None) -> None:
        """Add a size that depends on data. Symbols that torch makes later get other names."""
        symbol = self.by_name[name] = sympy.Symbol(name, integer=True)
        self._bound(symbol, minimum, maximum)
        self._unbacked = max(self._unbacked, int(_UNBACKED.fullmatch(name)[1]) + 1)  # type: ignore[index]
        self.env.unbacked_symint_counter = self._unbacked

    def _bound(self, symbol: sympy.Symbol, minimum: int, maximum: int | None) -> None:
        self.env.constrain_symbol_range(symbol, minimum, int_oo if maximum is None else maximum)
        self.env.size_like.add(symbol)

    def assume(self, condition: Any) -> bool:
        """Add a condition on sizes to the environment; returns whether it holds at the example."""
        return bool(self.env.evaluate_expr(condition))

    def integer(self, expr: Any) -> int | torch.SymInt:
        """The value of an expression: an integer, or a symbolic integer."""
        if expr.is_number:
            return int(expr)
        known = expr.xreplace(self.hints)
        return self.env.create_symintnode(expr, hint=int(known) if known.is_number else None)

    def tensor(self, dtype: torch.dtype, shape: Sequence[Any], stride: Sequence[Any], offset: int | torch.SymInt) -> torch.Tensor:
        """A fake tensor with a storage of its own."""
        with self.mode:
            made = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="cpu")
            return made if isinstance(offset, int) and offset == 0 else made.as_strided(tuple(shape), tuple(stride), offset)

    def unknown(self, kind: str) -> Any:
        """A float or a truth value that is only known while the graph runs."""
        if kind == "float":
            return self.env.create_unbacked_symfloat()
        return self.env.create_unbacked_symbool() if kind == "bool" else None

    def run(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator for fake values. No guard on their sizes is added."""
        with self.mode, self.env.suppress_guards(), self.env.ignore_fresh_unbacked_symbols():
            return target(*args, **kwargs)

    def bindings(self, value: Any, pending: set[Any]) -> dict[Any, Any]:
        """Paths in ``value`` at which unbacked symbols of ``pending`` first occur; these symbols
        are removed from ``pending``.
        """
        return _free_unbacked_symbols_with_path(value, (), shape_env=self.env, pending=pending)


def allow_one(env: ShapeEnv | None, name: str) -> None:
    """Allow a size of 1 although a trace guarded it to be larger: compilers of the graphs must not
    assume more.
    """
    for symbol, limits in [] if env is None else list(env.var_to_range.items()):
        if str(symbol) == name:
            env.var_to_range[symbol] = type(limits)(min(1, limits.lower), limits.upper)  # type: ignore[union-attr]


@contextlib.contextmanager
def symbolic_truths(of_truths: Callable[[torch.SymBool], bool], of_floats: Callable[[torch.SymFloat], bool]) -> Iterator[None]:
    """Call these functions when Python takes the truth value of a symbolic expression or number."""
    with (
        hooked("shapes-questions", torch.SymBool, "__bool__", of_truths),
        hooked("shapes-questions", torch.SymFloat, "__bool__", of_floats),
    ):
        yield
