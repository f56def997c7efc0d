"""The third front end, direct tracing: AOTAutograd traces the model's Python on fake tensors.

Integers may be dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from .._torch.api import checkpoint as checkpoints
from .._torch.api import own_gradients
from .._torch.api.fixed_sizes import readers_of_fixed_sizes
from .._torch.api.module_stack import recorded_modules
from .._torch.api.whole_numbers import read_as_symbols, reader_of
from .._torch.tracing import aot_autograd
from .dry_run import repeat
from .dry_run.checks import kept_checks
from .front_end_input import FrontEndInput, fake_example, lost, observed_python, with_dry_run
from .inputs.dynamic_shapes import DynamicShapes


def traced(source: FrontEndInput) -> tuple[aot_autograd.Joint, tuple[str, ...]]:
    """Return the joint graph, and the user's lines whose checkpoints are missing from it.

    If the model calls ``int()`` of a tensor or of a size that varies, it is traced again with a symbol in place of the number.
    """
    readers: list[dict[str, Any]] = []
    while True:
        try:
            with read_as_symbols(readers), kept_checks():
                joint, lost_checkpoints = _traced(source)
        except Exception as error:
            reader = reader_of(error)
            if reader is None or any(reader is known for known in readers):
                raise
        else:
            reader = next(iter(readers_of_fixed_sizes(joint.fake_mode)), None)
            if reader is None:
                return joint, lost_checkpoints
        readers.append(reader)


def _traced(source: FrontEndInput) -> tuple[aot_autograd.Joint, tuple[str, ...]]:
    model, args, kwargs = source.model, source.args, source.kwargs
    mode, fake_args, fake_kwargs = fake_example(source)
    with observed_python(model) as assigned:
        dry_run = repeat.run_on_fake_tensors(model, args, kwargs)
        _fix_numbers(model, pytree.tree_leaves((args, kwargs)), source.shapes)
        with (
            mode,
            checkpoints.kept_checkpoints() as regions,
            checkpoints.selected(regions),
            own_gradients.traced_own_gradients(),
            recorded_modules(model),
        ):
            joint = aot_autograd.export_joint(
                model, fake_args, fake_kwargs, source.decompositions, observe=source.returned.observe
            )
    return with_dry_run(dry_run, assigned, joint), lost(regions, joint)


def _fix_numbers(model: torch.nn.Module, leaves: Sequence[Any], shapes: DynamicShapes) -> None:
    """Pass static integer arguments to the model as plain numbers.

    AOTAutograd turns all integers into symbols.

    The wrapper is set as the ``forward`` attribute of the instance.
    """
    forward = model.forward

    def fixed(*args: Any, **kwargs: Any) -> Any:
        replaced_leaves, spec = pytree.tree_flatten((args, kwargs))
        values = [
            old if isinstance(old, int) and i not in shapes.integers else new
            for i, (old, new) in enumerate(zip(leaves, replaced_leaves, strict=True))
        ]
        args, kwargs = pytree.tree_unflatten(values, spec)
        return forward(*args, **kwargs)

    if any(isinstance(leaf, int) for leaf in leaves):
        model.forward = fixed
