"""The options of a load: their one list.

The arguments of :func:`aotpack_loader.load`, which explains them, and the loads that are recorded follow
it (tests/test_options.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from .errors import AotpackError

if TYPE_CHECKING:
    import torch

_DIGEST = "sha256:[0-9a-f]{64}"  # compiled only for a load that names one


class LoadOptions(NamedTuple):
    """The options of one load. Policies set the last two, which are no arguments of ``load``.

    ``source`` is the name of the bundle that policies match; empty: the path of what is opened.
    ``vouched`` says why a policy permits its native code; empty: none does.
    """

    device: str | torch.device | None = None
    backend: str | None = None
    weights: bool = True
    trust: str | Collection[str] | None = None
    operators: Collection[str] = ()
    subclasses: Collection[type] = ()
    verify: Literal["code", "full"] = "code"
    check: Literal["arguments", "full"] = "arguments"
    donate: bool = False
    allow_untested_torch: bool = False
    digest: str | None = None
    lock: str | os.PathLike[str] | None = None
    policy: str | os.PathLike[str] | None = None
    source: str = ""
    vouched: str = ""

    def checked(self) -> Self:
        """Return the options.

        Raises:
            AotpackError: one has an invalid value.
        """
        if self.verify not in ("code", "full"):
            raise AotpackError(f"verify={self.verify!r} is not known.", hint='Use "code" or "full".')
        if self.check not in ("arguments", "full"):
            raise AotpackError(f"check={self.check!r} is not known.", hint='Use "arguments" or "full".')
        if self.digest is not None and not re.fullmatch(_DIGEST, self.digest):
            raise AotpackError(f"digest={self.digest!r} is not a digest.", hint='Pass "sha256:<64 hex digits>".')
        if isinstance(self.operators, str):
            hint = f"Pass a collection: operators=({self.operators!r},)."
            raise AotpackError(f"operators={self.operators!r} is not understood.", hint=hint)
        return self


def pinned(options: LoadOptions, digest: str | None) -> LoadOptions:
    """Return the options of a load whose caller named the bundle's digest, which permits its native code."""
    if digest is None:
        return options
    return options._replace(digest=digest, trust=digest if options.trust is None else options.trust)
