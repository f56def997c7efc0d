"""The default generator's state as a value. A backward uses it to draw the same random numbers as its forward."""

from __future__ import annotations

from functools import cache

import torch

from ..errors import CorruptBundleError


def random_state() -> torch.Tensor:
    """The state of the default generator: a uint8 tensor that only :func:`exchange_random_state` can read."""
    return torch.get_rng_state()


def exchange_random_state(state: torch.Tensor) -> torch.Tensor:
    """Set the default generator's state. Returns its previous state.

    Raises:
        CorruptBundleError: ``state`` is not a generator's state.
    """
    before = torch.get_rng_state()
    try:
        torch.set_rng_state(state)
    except (RuntimeError, TypeError) as error:
        raise CorruptBundleError("A graph sets the random generator to an invalid state.") from error
    return before


@cache
def register() -> torch.library.Library:
    """Make both functions operators of the namespace ``aotpack``, for compiled code to call through the dispatcher.

    ``random_state`` takes the size of the state in bytes: AOTInductor calls no operator without arguments.
    """
    library = torch.library.Library("aotpack", "DEF")
    tags = (torch.Tag.nondeterministic_seeded,)
    library.define("random_state(int size) -> Tensor", tags=tags)
    library.impl("random_state", lambda size: random_state(), "CompositeExplicitAutograd")
    library.define("exchange_random_state(Tensor state) -> Tensor", tags=tags)
    library.impl("exchange_random_state", exchange_random_state, "CompositeExplicitAutograd")
    return library
