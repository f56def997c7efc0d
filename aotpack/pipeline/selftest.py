"""Records a bundle's self-test: the example inputs, and the values that eager computes from them."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader import selftest
from aotpack_loader.archive.weights import CODES
from aotpack_loader.errors import BuildError, Problem, UnsupportedError
from aotpack_loader.format import media_types, schema

from ..graph.literals import dtype_name
from ..writer.bundle import BlobStore
from ..writer.weights import write_weights


def record(
    model: torch.nn.Module, method: schema.Method, args: tuple[Any, ...], kwargs: dict[str, Any], store: BlobStore
) -> schema.Descriptor:
    """Run one eager step on a copy of ``model`` and store inputs, results, gradients and buffers.

    Raises:
        BuildError: the model cannot be copied or run, or its results differ from run to run
            without ``rng="eager"``.
        UnsupportedError: safetensors cannot store an element type.
    """
    tensors: dict[str, torch.Tensor] = {}
    for i, leaf in enumerate(pytree.tree_leaves((args, kwargs))):
        if isinstance(leaf, torch.Tensor):
            tensors |= {name: value.clone() for name, value in selftest.stored_as(f"input.{i}", leaf)}
    first = _observe(model, method, args, kwargs)
    random: list[str] = []
    if method.rng != "eager":  # with "eager" the bundle draws the same numbers
        second = _observe(model, method, args, kwargs, draw=1)
        random = [name for name in first if not torch.equal(first[name], second[name])]
    if random:
        raise BuildError(
            "The model draws random numbers, so its results cannot be compared: no self-test can be recorded.",
            [Problem(name, "differs from run to run") for name in random[:10]],
            hint='Build with rng="eager", without self_test=True, or with dropout off.',
        )
    tensors |= first
    foreign = [name for name, value in tensors.items() if dtype_name(value.dtype) not in CODES]
    if foreign:
        raise UnsupportedError("The self-test cannot be stored.", [Problem(name, f"{tensors[name].dtype}") for name in foreign])
    contiguous = [(name, value.contiguous().cpu()) for name, value in tensors.items()]
    return write_weights(contiguous, store, media_type=media_types.SELF_TEST)[0]


def _observe(
    model: torch.nn.Module, method: schema.Method, args: tuple[Any, ...], kwargs: dict[str, Any], draw: int = 0
) -> dict[str, torch.Tensor]:
    """Run one step on copies of the model and its inputs. ``draw`` is the random seed."""
    try:
        copied = copy.deepcopy(model)
        copied.zero_grad(set_to_none=True)
    except Exception as error:
        raise BuildError("The model cannot be copied, which recording a self-test needs.") from error
    fresh_args, fresh_kwargs = pytree.tree_map_only(torch.Tensor, _fresh, (args, kwargs))
    with torch.random.fork_rng(devices=[]):
        observed = selftest.observe(copied, method, fresh_args, fresh_kwargs, seed=draw)
        try:
            return {name: value.detach().clone() for name, value in observed}
        except Exception as error:  # the model's own error, for example an in-place write to a leaf
            raise BuildError(
                "The model fails on copies of its example inputs, which recording a self-test needs.",
                [Problem(type(error).__name__, str(error))],
                hint="Build without self_test=True.",
            ) from error


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
