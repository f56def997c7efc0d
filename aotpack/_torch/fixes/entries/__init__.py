"""Every entry of the register: the fixes in the order in which they are applied, and the hooks."""

from __future__ import annotations

from ..register import Fix
from . import decomposition, inductor, tracing
from .hooks import HOOKS as HOOKS

FIXES: tuple[Fix, ...] = (*tracing.FIXES, *decomposition.FIXES, *inductor.FIXES)
