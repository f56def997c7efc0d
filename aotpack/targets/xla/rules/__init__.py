"""How each operator of torch is computed by jax: a rule for each, in modules by kind."""

from . import elementwise, indices, pools, products, random, reductions, shapes  # noqa: F401 - they register rules
from .table import DTYPES, RANDOM, RULES, Array, NoRuleError

__all__ = ["DTYPES", "RANDOM", "RULES", "Array", "NoRuleError"]
