"""Example inputs in another batch size."""

from typing import Any


def repeated(inputs: Any, batch: int) -> Any:
    """``inputs`` with the first sample of every tensor repeated ``batch`` times. 0 leaves them unchanged."""
    if not batch:
        return inputs
    if isinstance(inputs, dict):
        return {name: repeated(value, batch) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(repeated(value, batch) for value in inputs)
    return inputs[:1].repeat(batch, *[1] * (inputs.dim() - 1))
