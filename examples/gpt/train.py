"""Trains the GPT bundle on a text, byte by byte. Needs the bundle and the loader, neither model.py nor transformers.

python train.py gpt.aotpack [text.txt]
"""

import argparse
import math
from pathlib import Path
from pydoc_data.topics import topics

import torch

import aotpack_loader

CONTEXT = 128
BATCH = 8


def read(path: Path | None) -> bytes:
    """The text to learn; by default the reference that ``help()`` shows, which every Python has."""
    return path.read_bytes() if path else "\n".join(topics.values()).encode()


def batches(text: bytes, count: int) -> list[torch.Tensor]:
    """``count`` random batches of consecutive bytes."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    starts = torch.randint(len(data) - CONTEXT, (count, BATCH))
    return [torch.stack([data[start : start + CONTEXT] for start in row]) for row in starts]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("text", nargs="?", type=Path, help="default: Python's own language reference")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--trust", help='a digest, or "all": lets native code of a bundle from elsewhere run')
    options = parser.parse_args()

    torch.manual_seed(0)
    text = read(options.text)
    model = aotpack_loader.load(options.bundle, trust=options.trust)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print(f"{len(text)} bytes; a uniform guess has loss {math.log(256):.2f}")
    for step, input_ids in enumerate(batches(text, options.steps)):
        loss = model(input_ids=input_ids, labels=input_ids)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == options.steps - 1:
            print(f"step {step:4}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
