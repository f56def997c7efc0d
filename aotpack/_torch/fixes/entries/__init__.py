"""Every entry of the register: the fixes in the order in which they are applied, and the hooks."""

from __future__ import annotations

from ..register import Fix, Hook
from . import decomposition, hooks, hooks_inductor, inductor, tracing

FIXES: tuple[Fix, ...] = (*tracing.FIXES, *decomposition.FIXES, *inductor.FIXES)

HOOKS: tuple[Hook, ...] = (*hooks.HOOKS, *hooks_inductor.HOOKS)
