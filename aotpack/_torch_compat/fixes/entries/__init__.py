"""Every entry of the register: the fixes in the order in which they are applied, and the hooks."""

from __future__ import annotations

from ..register import Fix, Hook
from . import inductor

FIXES: tuple[Fix, ...] = (*inductor.FIXES,)

HOOKS: tuple[Hook, ...] = (*inductor.HOOKS,)
