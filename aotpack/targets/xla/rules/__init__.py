"""How each operator of torch is computed by jax: a rule for each, in modules by kind."""

import torch

from . import elementwise, indices, pools, products, random, reductions, shapes  # noqa: F401 - they register rules
from .table import DTYPES, RANDOM, RULES, Array, NoRuleError

for _operator, _rule in list(RULES.items()):  # functionalization also calls views by operators that copy: here both do
    if isinstance(_operator, torch._ops.OpOverload):
        _copying = getattr(torch.ops.aten, f"{_operator._schema.name.removeprefix('aten::')}_copy", None)
        if _copying is not None and _operator._overloadname in (*_copying.overloads(), "default"):
            RULES[getattr(_copying, _operator._overloadname or "default")] = _rule
RULES[torch.ops.aten.detach_copy.default] = RULES[torch.ops.aten.alias.default]

__all__ = ["DTYPES", "RANDOM", "RULES", "Array", "NoRuleError"]
