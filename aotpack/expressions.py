"""Symbolic sizes to the format's expression grammar (spec/expressions.md)."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch

from aotpack_loader.errors import UnsupportedError

from ._torch_compat import ShapeEnv, int_oo

SHORT = 2**12
"""Largest numerator and denominator of a float constant: times a count of elements below 2**40, a float still holds it."""

_CALLS = {"Max": "max", "Min": "min"}
_RELATIONS = {
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
}


def size_expression(size: int | torch.SymInt, shape_env: ShapeEnv | None) -> int | str:
    """``size`` as an integer, or as an expression over symbols after everything the trace learnt."""
    if isinstance(size, int):
        return size
    expr = size.node.expr
    if shape_env is not None:
        expr = shape_env.replace(expr)
    return int(expr) if expr.is_number else render(expr)


def render(expr: Any) -> str:
    """Write a sympy integer or boolean expression in the format's grammar.

    Raises:
        UnsupportedError: an operation the grammar lacks.
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
    if name in ("FloorDiv", "CleanDiv", "IntTrueDiv"):
        return f"({render(expr.args[0])} // {render(expr.args[1])})"
    if name in ("Mod", "PythonMod"):
        return f"({render(expr.args[0])} % {render(expr.args[1])})"
    if name == "ModularIndexing":
        base, divisor, modulus = map(render, expr.args)
        return f"(({base} // {divisor}) % {modulus})"
    if name in _CALLS:
        return f"{_CALLS[name]}({', '.join(render(arg) for arg in expr.args)})"
    if name in _RELATIONS:
        return _render_relation(expr, _RELATIONS[name])
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
    """A product; a rational factor becomes an exact floor division at the end."""
    coefficient, rest = expr.as_coeff_Mul()
    numerator, denominator = sympy.fraction(coefficient)
    factors = [render(factor) for factor in sympy.Mul.make_args(rest)]
    if numerator != 1:
        factors.insert(0, render(numerator))
    product = "(" + " * ".join(factors) + ")"
    return product if denominator == 1 else f"({product} // {int(denominator)})"


def _render_relation(expr: Any, sign: str) -> str:
    """A comparison of integers, or of fractions: those are multiplied by both denominators."""
    (left, below_left), (right, below_right) = map(_fraction, expr.args)
    return f"({_multiple(left, below_right)} {sign} {_multiple(right, below_left)})"


def _fraction(expr: Any) -> tuple[str, int]:
    """Numerator and denominator, at least 1, of an expression in which floats are sizes, short constants, sums and products.

    Floats hold all of these exactly, so integers compare as they do.
    """
    if isinstance(expr, sympy.Float) and max(map(abs, float(expr).as_integer_ratio())) <= SHORT:
        expr = sympy.Rational(float(expr))
    if isinstance(expr, sympy.Rational):
        return render(sympy.Integer(expr.p)), int(expr.q)
    if type(expr).__name__ == "ToFloat":
        return render(expr.args[0]), 1
    if not isinstance(expr, (sympy.Add, sympy.Mul)) or expr.is_integer:
        return render(expr), 1
    parts = [_fraction(part) for part in expr.args]
    if isinstance(expr, sympy.Mul):
        return "(" + " * ".join(above for above, _ in parts) + ")", math.prod(below for _, below in parts)
    common = math.lcm(*(below for _, below in parts))
    return "(" + " + ".join(_multiple(above, common // below) for above, below in parts) + ")", common


def _multiple(expression: str, factor: int) -> str:
    return expression if factor == 1 else f"({factor} * {expression})"


def bound(value: Any) -> int | None:
    """A range's end as an integer, or None where there is none."""
    if value in (int_oo, -int_oo, sympy.oo, -sympy.oo):
        return None
    return int(value)
