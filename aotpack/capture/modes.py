"""Puts a model into the mode in which it is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from .dry_run import repeat
from .front_end_input import FrontEndInput, has_modes


@contextlib.contextmanager
def modes(source: FrontEndInput) -> Iterator[None]:
    """Put the model and autograd into their modes inside the block."""
    with mode(source.model, source.training), torch.set_grad_enabled(source.grad):
        yield


@contextlib.contextmanager
def mode(model: torch.nn.Module, training: bool) -> Iterator[None]:
    """Put the model into train or eval mode inside the block, and restore its state afterwards."""
    # A trace must not leave fake tensors in the user's model, nor state that a first call sets up. torch's own
    # reparametrization leaves fake tensors if one submodule has two names.
    with repeat.unchanged(model):
        if model.training != training and has_modes(model):
            model.train(training)
        yield
