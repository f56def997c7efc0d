"""Trains ten steps with an optimizer, in eager on the CPU or from a bundle on an XLA device.

Run in isolation (``-I``), this file is the process that loads the bundle in its folder. It has
neither the model's source nor the compiler.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

STEPS = 10
LEARNING_RATE = 0.02


def train(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """The losses, and the final parameters and buffers."""
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=0.9)
    model.train()
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(**inputs)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "losses": torch.stack(losses).float(),
        **{f"state/{name}": value.detach().cpu().clone() for name, value in state.items()},
    }


def main(folder: Path) -> None:
    """Train the bundle in ``folder``. Writes ``xla.safetensors`` and ``xla.json`` there."""
    from aotpack_loader import load

    start = time.perf_counter()
    model = load(folder / "xla.aotpack", device="xla", trust="all")
    seconds = time.perf_counter() - start
    device = next(model.parameters()).device
    inputs = torch.load(folder / "inputs.pt", weights_only=True)
    there = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    save_file(train(model, there), folder / "xla.safetensors")
    known = [name for name in ("transformers", "timm", "aotpack") if name in sys.modules]
    (folder / "xla.json").write_text(json.dumps({"load_seconds": round(seconds, 2), "imported": known}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
