"""The operators that graphs of untrusted bundles may call, each with the rules for what its kernel relies on.

They are data, for other loaders too: ``allowed.json``, which spec/security.md describes. An operator is listed once, under
its rules. The fuzzer ``scripts/fuzz operators`` calls each of them with arguments that do not agree, under guard pages.

Not listed, beside what no bundle may use (:mod:`..operators`):

* kernels that take opaque or packed data: ``mkldnn_rnn_layer_backward`` with its workspace, quantised and sparse tensors,
  ``_transformer_encoder_layer_fwd``;
* kernels of other devices (``cudnn_*``, ``miopen_*``, ``mps_*``), and ``_fused_*`` optimizers, which trust all shapes;
* ``binomial``, whose kernel does not end for some counts, and ``batch_norm_backward``, whose reserve is opaque;
* ``linalg_ldl_solve``, which uses pairs of pivots unchecked, and has no gradient;
* operators of ``prims`` that torch implements in Python, as their first call imports the compiler.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from . import operator_rules, plane_rules, rules
from .rules import Rule

PATH: Final = Path(__file__).with_suffix(".json")


def function(name: str) -> Callable[..., Any]:
    """What a rule of the data is here: the rule itself, or what makes it of its arguments."""
    module = next(module for module in (rules, plane_rules, operator_rules) if hasattr(module, name))
    found: Callable[..., Any] = getattr(module, name)
    return found


def _made(written: str | list[Any]) -> Callable[..., Any]:
    """A rule, or an argument of one: its name, or a list of its name and its arguments, those by name last."""
    if isinstance(written, str):
        return function(written)
    name, *arguments = written
    named = arguments.pop() if isinstance(arguments[-1], dict) else {}
    made: Callable[..., Any] = function(name)(*(_made(one) if isinstance(one, list) else one for one in arguments), **named)
    return made


def _table() -> dict[str, tuple[Rule, ...]]:
    table: dict[str, tuple[Rule, ...]] = {}
    for group in json.loads(PATH.read_bytes())["operators"]:
        table |= dict.fromkeys(group["names"], tuple(map(_made, group["rules"])))
    return table


OPERATORS: Final = _table()
"""The rules of each operator, by its full name."""
