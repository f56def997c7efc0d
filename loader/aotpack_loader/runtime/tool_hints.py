"""Hints for users of tools that split a loaded bundle, add adapters to it or look inside it."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

_WHOLE = (
    "A bundle is one unit: shard it as a whole, with fully_shard(model), or with FullyShardedDataParallel(model) and no policy "
    "that wraps submodules. DistributedDataParallel(model) works too."
)
_SAMPLES = "Gradients of each sample need the layers, which are compiled in: use the model itself, or call the bundle per sample."
_ADVICE = {
    "torch.distributed.tensor": f"Tensor parallelism splits the operations of a model, which are compiled in. {_WHOLE}",
    "torch.distributed.fsdp": _WHOLE,
    "torch.distributed._composable": _WHOLE,
    "accelerate": "Offloading by submodules is not possible: the weights are used all at once.",
    "deepspeed": _WHOLE,
    "torchinfo": "summary(model), without input_data and input_size, lists modules and parameters.",
    "torchsummary": "Use it on the model itself. torchinfo.summary(model) lists the modules and parameters of a bundle.",
    "torch.nn.utils._expanded_weights": _SAMPLES,
    "opacus": _SAMPLES,
    "peft": "Add adapters to the model itself, get_peft_model(model, config), and build the bundle from what that returns.",
}


def advice(homes: Iterable[str]) -> str:
    """The hint for a tool defined in one of the modules ``homes``; empty if none is known."""
    found = (hint for home in homes for prefix, hint in _ADVICE.items() if home.startswith(prefix))
    return next(found, "")


def advice_to_caller() -> str:
    """The hint if ``peft`` is reading the code of a model, to add adapters to it; empty otherwise."""
    homes = (frame.f_globals.get("__name__") or "" for frame, _ in traceback.walk_stack(None))
    return advice(home for home in homes if home.partition(".")[0] == "peft")
