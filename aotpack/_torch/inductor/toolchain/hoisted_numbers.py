"""Computes what depends on numbers alone once in a kernel, and not for each element.

Inductor writes an expression of symbolic numbers, such as ``1 - beta ** step``, where its value is used: inside the
loops. The compiler leaves powers there. Arithmetic with doubles raises no signal, so it can be done before.
"""

from __future__ import annotations

import re
from typing import Final

_FUNCTION: Final = re.compile(r'(extern "C" +void +\w+\(([^)]*)\)\s*\{\n)(.*?)(?=\n\}\n|\Z)', re.DOTALL)
_NUMBER: Final = re.compile(r"const double (ks\d+)")
_ASSIGNED: Final = re.compile(r"^( +auto tmp\d+ = )(.*std::pow\(.*);$", re.MULTILINE)
_NAMES: Final = re.compile(r"[A-Za-z_]\w*")
_KNOWN: Final = frozenset({"std", "pow", "sqrt", "min", "max", "L", "static_cast", "double"})


def with_hoisted_numbers(kernels: str) -> str:
    """The source of kernels, where powers of numbers are computed before the loops."""
    return _FUNCTION.sub(_hoisted, kernels) if "std::pow(" in kernels else kernels


def _hoisted(function: re.Match[str]) -> str:
    head, parameters, body = function.groups()
    numbers = {*_NUMBER.findall(parameters)}
    names: dict[str, str] = {}

    def replaced(line: re.Match[str]) -> str:
        before, expression = line.groups()
        if not {*_NAMES.findall(expression)} <= numbers | _KNOWN:
            return line.group()
        return f"{before}{names.setdefault(expression, f'number{len(names)}')};"

    body = _ASSIGNED.sub(replaced, body)
    return head + "".join(f"    const double {name} = {expression};\n" for expression, name in names.items()) + body
