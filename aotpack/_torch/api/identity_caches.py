"""Values that a transform of ``torch.distributions`` keeps for its last argument, which it compares by identity.

They serve one call: the arguments of another call are other tensors, for which the transform computes them again.
"""

from __future__ import annotations

from typing import Any

from torch.distributions import Transform


def is_identity_cache(owner: Any, attribute: str) -> bool:
    """Whether an attribute is such a value, or the transform's inverse, which it makes when it is asked for."""
    return isinstance(owner, Transform) and (attribute.startswith("_cached") or attribute == "_inv")
