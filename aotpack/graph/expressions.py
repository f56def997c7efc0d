"""Converts symbolic sizes to the format's expression grammar (spec/expressions.md) and back."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import sympy
import torch

from aotpack_loader.errors import UnsupportedError
from aotpack_loader.format import expressions

from .._torch.api.shape_env import SIZE_FUNCTIONS, divided, modulo
from .._torch.api.torch_types import ShapeEnv, int_oo

_CALLS = {
    "Max": "max",
    "Min": "min",
    "FloatPow": "pow",
    "OpaqueUnaryFn_sqrt": "sqrt",
    "ToFloat": "float",
    "TruncToInt": "trunc",
    "FloorToInt": "floor",
    "CeilToInt": "ceil",
    "RoundToInt": "round",
}
_OPERATORS = {
    "FloorDiv": "//",
    "CleanDiv": "//",
    "IntTrueDiv": "/",
    "FloatTrueDiv": "/",
    "Mod": "%",
    "PythonMod": "%",
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
}


def size_expression(size: int | torch.SymInt, shape_env: ShapeEnv | None) -> int | str:
    """``size`` as an integer, or as an expression over symbols after all replacements that the
    trace found.
    """
    if isinstance(size, int):
        return size
    expr = size.node.expr
    if shape_env is not None:
        expr = shape_env.replace(expr)
    return int(expr) if expr.is_number else render(expr)


def render(expr: Any) -> str:
    """Write a sympy integer, real or boolean expression in the format's grammar.

    Raises:
        UnsupportedError: the grammar lacks an operation.
    """
    name = type(expr).__name__
    if isinstance(expr, sympy.Symbol):
        return str(expr.name)
    if isinstance(expr, sympy.Integer):
        return str(int(expr)) if expr >= 0 else f"({int(expr)})"
    if isinstance(expr, sympy.Add):
        return "(" + " + ".join(render(term) for term in expr.args) + ")"
    if isinstance(expr, sympy.Mul):
        return _render_product(expr)
    if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
        return "(" + " * ".join([render(expr.base)] * int(expr.exp)) + ")"
    if isinstance(expr, sympy.Float):
        return _render_real(float(expr))
    if name == "ModularIndexing":
        base, divisor, modulus = map(render, expr.args)
        return f"(({base} // {divisor}) % {modulus})"
    if name in _CALLS:
        return f"{_CALLS[name]}({', '.join(render(arg) for arg in expr.args)})"
    if name in _OPERATORS:
        return f"({render(expr.args[0])} {_OPERATORS[name]} {render(expr.args[1])})"
    if isinstance(expr, (sympy.And, sympy.Or)):
        word = " and " if isinstance(expr, sympy.And) else " or "
        return "(" + word.join(sorted(render(arg) for arg in expr.args)) + ")"
    if name == "Piecewise" and len(expr.args) == 2 and expr.args[1].cond == sympy.true:
        (value, holds), (other, _) = expr.args
        return f"({render(holds)} * {render(value)} + (not {render(holds)}) * {render(other)})"
    if isinstance(expr, sympy.Not):
        return f"(not {render(expr.args[0])})"
    raise UnsupportedError(
        f"A size of the model is {expr}, and the bundle format has no {name} in its expressions.",
        hint="Make that size static, or compute it without this operation.",
    )


def _render_product(expr: Any) -> str:
    """Write a product.

    In a product of integers a rational factor becomes an exact floor division at the end.
    """
    coefficient, rest = expr.as_coeff_Mul()
    factors = sympy.Mul.make_args(rest)
    if not all(factor.is_integer for factor in factors):  # a product of reals
        factors = factors if coefficient == 1 else (coefficient, *factors)
        return "(" + " * ".join(render(factor) for factor in factors) + ")"
    numerator, denominator = sympy.fraction(coefficient)
    texts = [render(factor) for factor in factors]
    if numerator != 1:
        texts.insert(0, render(numerator))
    product = "(" + " * ".join(texts) + ")"
    return product if denominator == 1 else f"({product} // {int(denominator)})"


def _render_real(value: float) -> str:
    """The shortest decimal without an exponent that is parsed as ``value`` again."""
    text = format(Decimal(repr(abs(value))), "f")
    text = text if "." in text else f"{text}.0"
    return text if value >= 0 else f"(-{text})"


def bound(value: Any) -> int | None:
    """A bound of a range as an integer, or None if it is unbounded."""
    if value in (int_oo, -int_oo, sympy.oo, -sympy.oo):
        return None
    return int(value)


# ------------------------------------------------------------------ back to sympy


def parse(text: str, symbols: Mapping[str, sympy.Symbol | sympy.Integer]) -> Any:
    """Parse an expression of the grammar; ``symbols`` must have every name in it.

    Except for zeros before a number, the grammar is a subset of Python's. So Python's parser reads
    it; nothing is evaluated.

    Raises:
        CorruptBundleError: the text is no expression of the grammar.
    """
    expressions.parse(text)
    text = re.sub(r"\b0+(?=\d)", "", text)
    return _Reader(symbols).visit(ast.parse(text, mode="eval").body)


_COMPARISONS = {
    ast.Eq: sympy.Eq,
    ast.NotEq: sympy.Ne,
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
}


class _Reader(ast.NodeVisitor):
    def __init__(self, symbols: Mapping[str, sympy.Symbol | sympy.Integer]) -> None:
        self.symbols = symbols

    def visit_Constant(self, node: ast.Constant) -> Any:
        return sympy.Float(node.value) if isinstance(node.value, float) else sympy.Integer(node.value)

    def visit_Name(self, node: ast.Name) -> Any:
        return self.symbols[node.id]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return sympy.Not(self.visit(node.operand))
        return -self._number(node.operand)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        if (choice := self._choice(node)) is not None:
            return choice
        left, right = self._number(node.left), self._number(node.right)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div() | ast.FloorDiv():
                return divided(left, right, floor=isinstance(node.op, ast.FloorDiv))
            case _:
                return modulo(left, right)

    def visit_Compare(self, node: ast.Compare) -> Any:
        return _COMPARISONS[type(node.ops[0])](self._number(node.left), self._number(node.comparators[0]))

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        join = sympy.And if isinstance(node.op, ast.And) else sympy.Or
        return join(*(self.visit(value) for value in node.values))

    def visit_Call(self, node: ast.Call) -> Any:
        function: Any = SIZE_FUNCTIONS[node.func.id]  # type: ignore[attr-defined]
        return function(*(self._number(arg) for arg in node.args))

    def _number(self, node: ast.expr) -> Any:
        """Convert an operand of arithmetic: a condition counts as 1 or 0."""
        value = self.visit(node)
        is_condition = isinstance(value, sympy.logic.boolalg.Boolean) and not isinstance(value, sympy.Symbol)
        return sympy.Piecewise((1, value), (0, True)) if is_condition else value

    def _choice(self, node: ast.BinOp) -> Any:
        """Convert ``condition * value + (not condition) * other``, the grammar's form of a choice,
        to a ``Piecewise``.
        """
        match node:
            case ast.BinOp(
                ast.BinOp(holds, ast.Mult(), value), ast.Add(), ast.BinOp(ast.UnaryOp(ast.Not(), fails), ast.Mult(), other)
            ) if ast.dump(holds) == ast.dump(fails):
                return sympy.Piecewise((self._number(value), self.visit(holds)), (self._number(other), True))
        return None
