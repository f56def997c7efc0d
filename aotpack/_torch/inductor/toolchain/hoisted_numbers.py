"""Computes what depends on numbers alone once in a kernel, and not for each element.

Inductor writes an expression of symbolic numbers, such as ``1 - beta ** step``, where its value is used: inside the
loops. The compiler leaves powers and conversions there. Arithmetic with doubles raises no signal, so it can be done before.
"""

from __future__ import annotations

import re
from typing import Final

_FUNCTION: Final = re.compile(r'(extern "C" +void +\w+\(([^)]*)\)\s*\{\n)(.*?)(?=\n\}\n|\Z)', re.DOTALL)
_NUMBER: Final = re.compile(r"const double (ks\d+)")
_ASSIGNED: Final = re.compile(r"^( +auto (tmp\d+) = )(.*);$", re.MULTILINE)
_NAMES: Final = re.compile(r"(?<![\d.])[A-Za-z_]\w*")
_KNOWN: Final = frozenset({
    "std", "pow", "sqrt", "abs", "min", "max", "L", "static_cast", "decay_t", "decltype", "double", "float", "bool", "c10",
    "convert",
})  # fmt: skip


def with_hoisted_numbers(kernels: str) -> str:
    """The source of kernels, where what depends on numbers alone is computed before the loops."""
    return _FUNCTION.sub(_hoisted, kernels) if _NUMBER.search(kernels) else kernels


def _hoisted(function: re.Match[str]) -> str:
    head, parameters, body = function.groups()
    numbers = {*_NUMBER.findall(parameters)}
    hoisted: dict[str, str] = {}  # names by what they stand for
    scope: dict[str, str] = {}  # what local variables stand for

    def replaced(line: re.Match[str]) -> str:
        before, local, expression = line.groups()
        scope.pop(local, None)
        used = {*_NAMES.findall(expression)}
        if not used <= numbers | scope.keys() | _KNOWN or not used & (numbers | scope.keys()):
            return line.group()
        expression = _NAMES.sub(lambda name: scope.get(name.group(), name.group()), expression)
        scope[local] = hoisted.setdefault(expression, f"number{len(hoisted)}")
        return f"{before}{scope[local]};"

    body = _ASSIGNED.sub(replaced, body)
    return head + "".join(f"    const auto {name} = {expression};\n" for expression, name in hoisted.items()) + body
