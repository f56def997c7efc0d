"""The expression grammar for sizes and constraints: a parser of its own, no ``eval``, no sympy.

An expression is compiled once into nested closures and then evaluated against a mapping from symbol to integer.
Division and remainder round towards minus infinity, as Python's ``//`` and ``%`` do. The grammar, in EBNF, is
in spec/expressions.md.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Mapping
from functools import lru_cache

from ..errors import CorruptBundleError

Environment = Mapping[str, int]
Compiled = Callable[[Environment], int]

MAX_LENGTH = 20_000
MAX_DEPTH = 100
MAX_DIGITS = 19
"""Of a number: enough for 64 bits."""
UNDEFINED = (KeyError, ZeroDivisionError, OverflowError, RecursionError)
"""What an expression that has no value raises when it is evaluated."""
_LIMIT = 2**128

_BLANKS, _DIGITS = frozenset(" \t\n\r"), frozenset(string.digits)
_LETTERS = frozenset(string.ascii_letters + "_")
_IN_WORDS = _LETTERS | _DIGITS
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
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
_RANKS = {"or": _OR, "and": _AND, "+": _SUM, "-": _SUM, "*": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT}
_RANKS |= dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _RELATION)
"""How tightly an operator binds."""
_CALLS: dict[str, Callable[..., int]] = {"max": max, "min": min}
_WORDS = frozenset({"and", "or", "not", *_CALLS})


@lru_cache(maxsize=4096)
def parse(text: str) -> Compiled:
    """Compile ``text``; the result takes an environment and returns an integer (comparisons: 0 or 1).

    Raises:
        CorruptBundleError: not an expression of the grammar, or longer or deeper than any compiler writes.
    """
    parser = _Parser(text)
    try:
        return parser.run()
    except RecursionError as error:  # little of the stack was left
        raise parser.error("it is nested too deeply") from error


def evaluate(size: int | str, environment: Environment) -> int:
    """The value of a size.

    Raises:
        CorruptBundleError: a symbol the environment lacks, a division by zero, or a value beyond all sizes.
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


class _Parser:
    """Precedence climbing over a list of tokens: a level of nesting costs few frames of the stack, a long sum none."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise CorruptBundleError(f"An expression is {len(text)} characters long; the limit is {MAX_LENGTH}.")
        self.text = text
        self.tokens = self._split(text)
        self.position = 0
        self.depth = 0

    def _split(self, text: str) -> list[str]:
        """By hand: compiling a regular expression takes longer than all expressions of most bundles."""
        tokens, at = [], 0
        while at < len(text):
            start, at = at, at + 1
            first = text[start]
            if first in _BLANKS:
                continue
            if first in _IN_WORDS:
                further = _DIGITS if first in _DIGITS else _IN_WORDS
                while at < len(text) and text[at] in further:
                    at += 1
            elif text[start : at + 1] in _SIGNS:
                at = min(at + 1, len(text))
            elif first not in _SIGNS:
                raise self.error(f"unexpected {first!r} at character {start}")
            tokens.append(text[start:at])
        return tokens

    def error(self, message: str) -> CorruptBundleError:
        """The refusal of the text."""
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
        return result

    def _expression(self, least: int) -> Compiled:
        """An expression of operators that bind at least as tightly as ``least``."""
        if least <= _NOT and self._peek() == "not":
            self._take()
            left = _negated(self._expression(_RELATION))
        else:
            left = self._operand()
        while (rank := _RANKS.get(self._peek(), -1)) >= least:
            functions: list[Callable[[int, int], int]] = []
            operands = [left]
            while _RANKS.get(self._peek()) == rank:
                if rank == _RELATION and functions:
                    raise self.error(f"unexpected {self._peek()!r}")
                functions.append(_FUNCTIONS.get(self._take(), operator.add))
                operands.append(self._expression(rank + 1))
            left = _JOINS[rank](functions, operands)
        return left

    def _operand(self) -> Compiled:
        token, negative = self._take(), False
        while token == "-":
            token, negative = self._take(), not negative
        if token == "(":
            (result,) = self._nested(separator="")
        elif token in _CALLS:
            self._expect("(")
            result = _call(_CALLS[token], self._nested(separator=","))
        elif token.isdigit():
            result = self._number(token)
        elif token in _WORDS or not (token[:1].isalpha() or token[:1] == "_"):
            raise self.error(f"expected a number, a symbol or '(' but found {token or 'the end'!r}")
        else:
            result = operator.itemgetter(token)
        return (lambda env: -result(env)) if negative else result

    def _nested(self, separator: str) -> list[Compiled]:
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

    def _number(self, digits: str) -> Compiled:
        if len(digits.lstrip("0")) > MAX_DIGITS:
            raise self.error(f"a number of more than {MAX_DIGITS} digits")
        value = int(digits.lstrip("0") or "0")
        return lambda env: value


def _fold(functions: list[Callable[[int, int], int]], operands: list[Compiled]) -> Compiled:
    """Sums and products, from the left."""
    left, right, *others = operands
    function, *further = functions
    if not others:
        return lambda env: function(left(env), right(env))
    rest = list(zip(further, others, strict=True))

    def run(env: Environment) -> int:
        value = function(left(env), right(env))
        for apply, operand in rest:
            value = apply(value, operand(env))
            if not -_LIMIT < value < _LIMIT:
                raise OverflowError("beyond all sizes")
        return value

    return run


def _compare(functions: list[Callable[[int, int], int]], operands: list[Compiled]) -> Compiled:
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
