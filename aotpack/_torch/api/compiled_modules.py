"""Tells modules that torch made of others: ``torch.compile`` and ``torch.jit``."""

from __future__ import annotations

import torch
import torch._dynamo


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether ``torch.compile`` returned it for a module."""
    return isinstance(module, torch._dynamo.OptimizedModule)


def is_script(module: torch.nn.Module) -> bool:
    """Whether ``torch.jit`` scripted or traced it."""
    return isinstance(module, torch.jit.ScriptModule)
