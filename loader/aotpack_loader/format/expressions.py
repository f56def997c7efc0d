"""The expression grammar for sizes and constraints: a parser of its own, no ``eval``, no sympy.

An expression is compiled once into nested closures and then evaluated against a mapping from symbol to integer.
Division and remainder round towards minus infinity, as Python's ``//`` and ``%`` do. The grammar, in EBNF, is
in spec/expressions.md.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from ..errors import CorruptBundleError

Environment = Mapping[str, int]
Compiled = Callable[[Environment], int]

MAX_LENGTH = 20_000
MAX_DEPTH = 100

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_]*)|(//|==|!=|<=|>=|[-+*%(),<>]))")
_SUMS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: dict[str, Callable[[int, int], int]] = {"*": operator.mul, "//": operator.floordiv, "%": operator.mod}
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CALLS: dict[str, Callable[..., int]] = {"max": max, "min": min}
_WORDS = frozenset({"and", "or", "not", *_CALLS})


@lru_cache(maxsize=4096)
def parse(text: str) -> Compiled:
    """Compile ``text``; the result takes an environment and returns an integer (comparisons: 0 or 1).

    Raises:
        CorruptBundleError: not an expression of the grammar, or longer or deeper than any compiler writes.
    """
    return _Parser(text).run()


def evaluate(size: int | str, environment: Environment) -> int:
    """The value of a size.

    Raises:
        CorruptBundleError: a symbol the environment lacks, or a division by zero.
    """
    if isinstance(size, int):
        return size
    try:
        return parse(size)(environment)
    except (KeyError, ZeroDivisionError) as error:
        raise CorruptBundleError(f"The expression {size!r} cannot be evaluated: {error!r}.") from error


def symbols(text: str) -> frozenset[str]:
    """Names of the symbols in ``text``."""
    return frozenset(name for name in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text) if name not in _WORDS)


class _Parser:
    """Recursive descent over a list of tokens; one method a level of precedence."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise CorruptBundleError(f"An expression is {len(text)} characters long; the limit is {MAX_LENGTH}.")
        self.text = text
        self.tokens = self._split(text)
        self.position = 0
        self.depth = 0

    def _split(self, text: str) -> list[str]:
        tokens, at = [], 0
        stripped = text.rstrip()
        while at < len(stripped):
            match = _TOKEN.match(stripped, at)
            if match is None:
                raise self._error(f"unexpected {stripped[at]!r} at character {at}")
            tokens.append(match.group(match.lastindex or 0))
            at = match.end()
        return tokens

    def _error(self, message: str) -> CorruptBundleError:
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
            raise self._error(f"expected {token!r}")

    def run(self) -> Compiled:
        result = self._disjunction()
        if self._peek():
            raise self._error(f"unexpected {self._peek()!r}")
        return result

    def _disjunction(self) -> Compiled:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._error("it is nested too deeply")
        result = self._conjunction()
        while self._peek() == "or":
            self._take()
            result = _either(result, self._conjunction())
        self.depth -= 1
        return result

    def _conjunction(self) -> Compiled:
        result = self._negation()
        while self._peek() == "and":
            self._take()
            result = _both(result, self._negation())
        return result

    def _negation(self) -> Compiled:
        if self._peek() != "not":
            return self._relation()
        self._take()
        inner = self._relation()
        return lambda env: int(not inner(env))

    def _relation(self) -> Compiled:
        left = self._binary(_SUMS, lambda: self._binary(_PRODUCTS, self._unary))
        compare = _RELATIONS.get(self._peek())
        if compare is None:
            return left
        self._take()
        right = self._binary(_SUMS, lambda: self._binary(_PRODUCTS, self._unary))
        return lambda env: int(compare(left(env), right(env)))

    def _binary(self, operators: Mapping[str, Callable[[int, int], int]], operand: Callable[[], Compiled]) -> Compiled:
        result = operand()
        while self._peek() in operators:
            function = operators[self._take()]
            result = _apply(function, result, operand())
        return result

    def _unary(self) -> Compiled:
        negative = False
        while self._peek() == "-":
            self._take()
            negative = not negative
        inner = self._atom()
        return (lambda env: -inner(env)) if negative else inner

    def _atom(self) -> Compiled:
        token = self._take()
        if token == "(":
            inner = self._disjunction()
            self._expect(")")
            return inner
        if token.isdigit():
            value = int(token)
            return lambda env: value
        if token in _CALLS:
            return self._call(_CALLS[token])
        if token and (token[0].isalpha() or token[0] == "_") and token not in _WORDS:
            return lambda env: env[token]
        raise self._error(f"expected a number, a symbol or '(' but found {token or 'the end'!r}")

    def _call(self, function: Callable[..., int]) -> Compiled:
        self._expect("(")
        arguments = [self._disjunction()]
        while self._peek() == ",":
            self._take()
            arguments.append(self._disjunction())
        self._expect(")")
        return lambda env: function([argument(env) for argument in arguments])


def _apply(function: Callable[[int, int], int], left: Compiled, right: Compiled) -> Compiled:
    return lambda env: function(left(env), right(env))


def _both(left: Compiled, right: Compiled) -> Compiled:
    return lambda env: int(bool(left(env)) and bool(right(env)))


def _either(left: Compiled, right: Compiled) -> Compiled:
    return lambda env: int(bool(left(env)) or bool(right(env)))
