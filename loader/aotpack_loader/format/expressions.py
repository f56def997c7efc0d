"""Parses and evaluates the expressions for sizes and constraints, without ``eval`` or sympy.

An expression is compiled once into nested closures, and then evaluated against a mapping from
symbol to integer. Its value is an integer. Intermediate values may be real numbers (binary64),
because models compute sizes with them. Which parts are real is known when the expression is
compiled.

Division and remainder round towards minus infinity, like Python's ``//`` and ``%``.
spec/expressions.md has the grammar, in EBNF.
"""

from __future__ import annotations

import math
import operator
import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..errors import CorruptBundleError

Environment = Mapping[str, int]
Compiled = Callable[[Environment], int]

MAX_LENGTH = 20_000
MAX_TOTAL = 500_000
"""Characters of all different expressions of a document."""
MAX_DEPTH = 100
MAX_DIGITS = 19
"""Of an integer: enough for 64 bits."""
MAX_REAL = 400
"""Characters of a real number: enough for all of binary64."""
UNDEFINED = (KeyError, ZeroDivisionError, OverflowError, RecursionError, ValueError)
"""What an expression that has no value raises when it is evaluated."""
_LIMIT = 2**128

_BLANKS, _DIGITS = frozenset(" \t\n\r"), frozenset(string.digits)
_LETTERS = frozenset(string.ascii_letters + "_")
_IN_WORDS = _LETTERS | _DIGITS
_Function = Callable[[Any, Any], Any]
_FUNCTIONS: dict[str, _Function] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SIGNS = frozenset({*_FUNCTIONS, "(", ")", ","})
_OR, _AND, _NOT, _RELATION, _SUM, _PRODUCT = range(6)
_RANKS = {"or": _OR, "and": _AND, "+": _SUM, "-": _SUM, **dict.fromkeys(("*", "/", "//", "%"), _PRODUCT)}
_RANKS |= dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _RELATION)
"""How tightly an operator binds."""
_OF_INTEGERS = frozenset({"or", "and", "//", "%"})
_CALLS: dict[str, Callable[..., int]] = {"max": max, "min": min}
_REAL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "float": float,
    "sqrt": math.sqrt,
    "pow": math.pow,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
}
"""They take a real number, ``pow`` two and ``float`` an integer; the first three give one, the others an integer."""
_WORDS = frozenset({"and", "or", "not", *_CALLS, *_REAL_FUNCTIONS})


@lru_cache(maxsize=4096)
def parse(text: str) -> Compiled:
    """Compile ``text``. The result takes an environment and returns an integer (comparisons: 0 or 1).

    Raises:
        CorruptBundleError: it does not match the grammar, or exceeds the limits of length or depth.
    """
    parser = _Parser(text)
    try:
        return parser.run()
    except RecursionError as error:  # the caller had used most of the stack
        raise parser.error("it is nested too deeply") from error


def evaluate(size: int | str, environment: Environment) -> int:
    """The value of a size.

    Raises:
        CorruptBundleError: a symbol is missing, a division by zero, or a value outside the range of
            sizes.
    """
    if isinstance(size, int):
        return size
    try:
        return parse(size)(environment)
    except UNDEFINED as error:
        raise CorruptBundleError(f"The expression {size!r} cannot be evaluated: {error!r}.") from error


def symbols(text: str) -> frozenset[str]:
    """Names of the symbols in ``text``, an expression."""
    return frozenset(token for token in _Parser(text).tokens if token[0] in _LETTERS and token not in _WORDS)


def is_symbol(text: str) -> bool:
    """Whether ``text`` has the form of a symbol's name."""
    return text[:1] in _LETTERS and _IN_WORDS.issuperset(text)


class _Part(NamedTuple):
    """A compiled part of an expression, and whether its value is a real number."""

    run: Callable[[Environment], Any]
    real: bool = False


class _Parser:
    """Precedence climbing over a list of tokens.

    Each level of nesting needs few stack frames, and a long sum needs none.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise CorruptBundleError(f"An expression is {len(text)} characters long; the limit is {MAX_LENGTH}.")
        self.text = text
        self.tokens = self._split(text)
        self.position = 0
        self.depth = 0
        self._atoms: dict[str, _Part] = {}

    def _split(self, text: str) -> list[str]:
        """Split without regular expressions, whose compilation takes longer than all expressions of most bundles."""
        tokens, at = [], 0
        while at < len(text):
            start, at = at, at + 1
            first = text[start]
            if first in _BLANKS:
                continue
            if first in _IN_WORDS:
                further = _DIGITS if first in _DIGITS else _IN_WORDS
                while at < len(text) and (text[at] in further or (text[at] == "." and self._is_point(text, start, at))):
                    at += 1
            elif text[start : at + 1] in _SIGNS:
                at = min(at + 1, len(text))
            elif first not in _SIGNS:
                raise self.error(f"unexpected {first!r} at character {start}")
            tokens.append(text[start:at])
        return tokens

    def _is_point(self, text: str, start: int, at: int) -> bool:
        """Whether ``at`` is the decimal point of a real number that starts at ``start``."""
        number = text[start:at]
        return number.isdigit() and number.isascii() and text[at + 1 : at + 2] in _DIGITS

    def error(self, message: str) -> CorruptBundleError:
        """The error for an invalid expression."""
        shown = self.text if len(self.text) <= 200 else self.text[:200] + "…"
        return CorruptBundleError(f"The expression {shown!r} is not valid: {message}.")

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self.position += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise self.error(f"expected {token!r}")

    def run(self) -> Compiled:
        result = self._expression(_OR)
        if self._peek():
            raise self.error(f"unexpected {self._peek()!r}")
        return self._integer(result, "its value").run

    def _integer(self, part: _Part, what: str) -> _Part:
        if part.real:
            raise self.error(f"{what} is a real number where an integer is needed")
        return part

    def _expression(self, least: int) -> _Part:
        """An expression of operators that bind at least as tightly as ``least``."""
        if least <= _NOT and self._peek() == "not":
            self._take()
            left = _Part(_negated(self._integer(self._expression(_RELATION), "an operand of 'not'").run))
        else:
            left = self._operand()
        while (rank := _RANKS.get(self._peek(), -1)) >= least:
            signs: list[str] = []
            operands = [left]
            while _RANKS.get(self._peek()) == rank:
                if rank == _RELATION and signs:
                    raise self.error(f"unexpected {self._peek()!r}")
                signs.append(self._take())
                operands.append(self._atom(rank) or self._expression(rank + 1))
            left = self._joined(rank, signs, operands)
        return left

    def _atom(self, rank: int) -> _Part | None:
        """An operand that is a number or symbol alone and was read before: most of a long expression."""
        found = self._atoms.get(self._peek())
        following = self.tokens[self.position + 1] if self.position + 1 < len(self.tokens) else ""
        if found is None or _RANKS.get(following, -1) > rank:
            return None
        self.position += 1
        return found

    def _joined(self, rank: int, signs: Sequence[str], operands: Sequence[_Part]) -> _Part:
        """Operands joined by operators of one rank, left-associative."""
        real = operands[0].real
        for sign, operand in zip(signs, operands[1:], strict=True):
            if sign in _OF_INTEGERS and (real or operand.real):
                raise self.error(f"an operand of {sign!r} is a real number where an integer is needed")
            real = real or operand.real or sign == "/"
        functions = [_FUNCTIONS.get(sign, operator.add) for sign in signs]
        return _Part(_JOINS[rank](functions, [operand.run for operand in operands]), real and rank >= _SUM)

    def _operand(self) -> _Part:
        token, negative = self._take(), False
        while token == "-":
            token, negative = self._take(), not negative
        if token == "(":
            (result,) = self._nested(separator="")
        elif token in _CALLS:
            self._expect("(")
            parts = [self._integer(part, f"an argument of {token!r}").run for part in self._nested(separator=",")]
            result = _Part(_call(_CALLS[token], parts))
        elif token in _REAL_FUNCTIONS:
            result = self._real_function(token)
        elif token[:1].isdigit():
            result = self._atoms[token] = self._number(token)
        elif token in _WORDS or not (token[:1].isalpha() or token[:1] == "_"):
            raise self.error(f"expected a number, a symbol or '(' but found {token or 'the end'!r}")
        else:
            result = self._atoms[token] = _Part(operator.itemgetter(token))
        run = result.run
        return _Part(lambda env: -run(env), result.real) if negative else result

    def _real_function(self, name: str) -> _Part:
        self._expect("(")
        function, parts = _REAL_FUNCTIONS[name], self._nested(separator=",")
        if any(part.real == (name == "float") for part in parts):
            raise self.error(f"an argument of {name!r} is {'a real number' if name == 'float' else 'an integer'} already")
        if len(parts) != (2 if name == "pow" else 1):
            raise self.error(f"{name!r} does not take {len(parts)} arguments")
        run, exponent = parts[0].run, parts[-1].run
        real = name in ("float", "sqrt", "pow")
        return _Part((lambda env: function(run(env), exponent(env))) if name == "pow" else (lambda env: function(run(env))), real)

    def _nested(self, separator: str) -> list[_Part]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error("it is nested too deeply")
        found = [self._expression(_OR)]
        while separator and self._peek() == separator:
            self._take()
            found.append(self._expression(_OR))
        self._expect(")")
        self.depth -= 1
        return found

    def _number(self, digits: str) -> _Part:
        if "." in digits:
            if len(digits) > MAX_REAL:
                raise self.error(f"a real number of more than {MAX_REAL} characters")
            real = float(digits)
            return _Part(lambda env: real, real=True)
        if len(digits.lstrip("0")) > MAX_DIGITS:
            raise self.error(f"a number of more than {MAX_DIGITS} digits")
        value = int(digits.lstrip("0") or "0")
        return _Part(lambda env: value)


def _bounded(value: Any) -> Any:
    """A value that a size can have on its way: nested products would grow without end, and cannot be printed.

    Sizes of a trace are no numbers, and are not compared.
    """
    if isinstance(value, (int, float)) and not -_LIMIT < value < _LIMIT:
        raise OverflowError("beyond all sizes")
    return value


def _fold(functions: list[_Function], operands: list[Compiled]) -> Compiled:
    """Sums and products, left-associative."""
    left, right, *others = operands
    function, *further = functions
    if not others:
        return lambda env: _bounded(function(left(env), right(env)))
    rest = list(zip(further, others, strict=True))

    def run(env: Environment) -> int:
        value: int = _bounded(function(left(env), right(env)))
        for apply, operand in rest:
            value = _bounded(apply(value, operand(env)))
        return value

    return run


def _compare(functions: list[_Function], operands: list[Compiled]) -> Compiled:
    (compare,), (left, right) = functions, operands
    return lambda env: int(compare(left(env), right(env)))


def _all(functions: object, operands: list[Compiled]) -> Compiled:
    return lambda env: int(all(operand(env) for operand in operands))


def _any(functions: object, operands: list[Compiled]) -> Compiled:
    return lambda env: int(any(operand(env) for operand in operands))


_JOINS = {_OR: _any, _AND: _all, _RELATION: _compare, _SUM: _fold, _PRODUCT: _fold}


def _negated(inner: Compiled) -> Compiled:
    return lambda env: int(not inner(env))


def _call(function: Callable[..., int], operands: list[Compiled]) -> Compiled:
    return lambda env: function([operand(env) for operand in operands])
