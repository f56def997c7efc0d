"""Parameters that a hook computes before each forward: ``prune``, and the older ``weight_norm`` and ``spectral_norm``.

These tools of ``torch.nn.utils`` replace a parameter by an attribute and a pre-hook that sets it. A
call of a bundle runs these hooks of its submodules first, and reads the attributes.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from torch import nn

_TOOLS = frozenset({
    ("torch.nn.utils.prune", "BasePruningMethod"),
    ("torch.nn.utils.spectral_norm", "SpectralNorm"),
    ("torch.nn.utils.weight_norm", "WeightNorm"),
})  # fmt: skip
_ENDINGS = ("orig", "g", "v", "u", "mask")


def computes_parameter(hook: Any) -> bool:
    """Whether ``hook`` is one of torch's own that set an attribute in the place of a parameter."""
    return any((kind.__module__, kind.__qualname__) in _TOOLS for kind in type(hook).__mro__)


def feeds_parametrization(name: str, held: Container[str]) -> bool:
    """Whether ``name`` is what such a hook computes one of the parameters ``held`` from, such as ``weight_mask``."""
    base, _, end = name.rpartition("_")
    return base in held and end in _ENDINGS


def compute_parameters(root: nn.Module) -> None:
    """Run such hooks of all submodules. Those of ``root`` itself run by themselves."""
    for module in root.modules():
        for hook in module._forward_pre_hooks.values() if module is not root else ():
            if computes_parameter(hook):
                hook(module, ())
