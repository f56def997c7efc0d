"""Traces ``torch.inference_mode`` inside a model as ``torch.no_grad``.

The values are the same. Tensors of inference mode have no version counter, so they cannot be
traced. An error between its start and its end would also leave the mode on in the caller's process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import grad_mode

from .patching import hooked


@contextlib.contextmanager
def traced_inference() -> Iterator[None]:
    """Let ``torch.inference_mode`` switch gradients off, and do nothing else."""
    hook = "aot-inference-mode"
    with (
        hooked(hook, grad_mode.inference_mode, "__enter__", _enter_context),
        hooked(hook, grad_mode.inference_mode, "__exit__", _exit_context),
    ):
        yield


def without_inference(captured: torch.fx.GraphModule) -> None:
    """Replace the calls that start and end the mode in graphs that Dynamo captured."""
    targets = {grad_mode._enter_inference_mode: _enter, grad_mode._exit_inference_mode: _exit}
    for module in captured.modules():
        if isinstance(module, torch.fx.GraphModule):
            found = [node for node in module.graph.nodes if node.op == "call_function" and node.target in targets]
            for node in found:
                node.target = targets[node.target]
            if found:
                module.recompile()


def _enter(mode: bool) -> bool:
    """Start the mode. Returns whether gradients were on before. ``inference_mode(False)`` turns them on."""
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(not mode)
    return before


def _exit(before: bool) -> None:
    torch._C._set_grad_enabled(before)


def _enter_context(self: Any) -> None:
    self._inference_mode_context = _enter(self.mode)


def _exit_context(self: Any, *error: object) -> None:
    _exit(self._inference_mode_context)
