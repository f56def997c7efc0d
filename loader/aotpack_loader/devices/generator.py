"""The default generator's state as a value. A backward uses it to draw the same random numbers as its forward."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch

from ..errors import CorruptBundleError

_CPU: Final = torch.device("cpu")
_WORDS: Final = 624
"""Numbers in the state of a Mersenne twister."""


def has_generator(device: torch.device) -> bool:
    """Whether a device has a generator of its own. XLA devices draw from a seed that each call gets."""
    return device.type not in ("cpu", "xla", "meta")


def random_state(device: torch.device = _CPU) -> torch.Tensor:
    """The state of a device's default generator: a uint8 tensor that only :func:`exchange_random_state` can read."""
    if not has_generator(device):
        return torch.get_rng_state()
    state: torch.Tensor = torch.get_device_module(device).get_rng_state(*_of(device))
    return state


def exchange_random_state(state: torch.Tensor, device: torch.device = _CPU) -> torch.Tensor:
    """Set the state of a device's default generator. Returns its previous state.

    Raises:
        CorruptBundleError: ``state`` is not a generator's state.
    """
    before = random_state(device)
    try:
        state = state.clone()  # what was checked cannot change before it is used
        if has_generator(device):
            torch.get_device_module(device).set_rng_state(state, *_of(device))
            return before
        torch.set_rng_state(state)
    except (AttributeError, RuntimeError, TypeError) as error:  # also of what is no tensor
        raise CorruptBundleError("A graph sets the random generator to an invalid state.") from error
    # torch checks neither against the other: draws would read past the state, and return what is in memory there.
    left, _, following, _ = state[8:24].view(torch.int32).tolist()
    if left + following > _WORDS + 1:
        torch.set_rng_state(before)
        raise CorruptBundleError("A graph sets the random generator to an invalid state.")
    return before


def _of(device: torch.device) -> tuple[torch.device, ...]:
    """The argument of a device's module for its generator. That of MPS takes none, for it has one device."""
    return () if device.type == "mps" else (device,)


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
