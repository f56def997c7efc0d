"""What a transfer reports while it runs. The command line draws bars from it; a load reports nothing."""

from __future__ import annotations

from typing import Literal, Protocol

from ..format.schema import Descriptor

Outcome = Literal["fetched", "cached", "uploaded", "mounted", "exists"]


class Progress(Protocol):
    """An observer of transfers. Several threads call it."""

    def begin(self, descriptor: Descriptor) -> None:
        """A blob's transfer begins."""

    def advance(self, descriptor: Descriptor, count: int) -> None:
        """``count`` bytes of it have arrived or gone; a negative count takes some back."""

    def end(self, descriptor: Descriptor, outcome: Outcome) -> None:
        """The blob is where it belongs."""


class Silent:
    """An observer that does nothing."""

    def begin(self, descriptor: Descriptor) -> None:
        pass

    def advance(self, descriptor: Descriptor, count: int) -> None:
        pass

    def end(self, descriptor: Descriptor, outcome: Outcome) -> None:
        pass
