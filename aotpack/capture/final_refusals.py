"""Refuses what no front end can trace, so that no other one is tried."""

from __future__ import annotations

import contextlib

from aotpack_loader.errors import Problem, UnsupportedError

from .._torch.api import fake_tensors
from .._torch.fixes.aot_autograd import overlaps
from .._torch.refusals import dirty_arguments, gradient_writes, undefined_gradients
from .._torch.tracing import aot_autograd, fake_run
from ..graph import source_line
from .front_end_input import FrontEndInput
from .modes import modes
from .reasons import line_of


def final_refusal(source: FrontEndInput, front_end: str, error: Exception) -> UnsupportedError | None:
    """Return the error for the user, if no other front end can trace what ``error`` is about."""
    match error:
        case aot_autograd.AliasedOutputsError():
            return _refused_aliases(error)
        case overlaps.OverlapError():
            return _refused_overlap(source, error)
        case gradient_writes.GradientWriteError():
            return _refused_gradient_write(error)
        case dirty_arguments.DirtyArgumentError():
            return _refused_dirty_argument(error)
        case undefined_gradients.UndefinedGradientError() if front_end != "dynamo":
            return _refused_undefined_gradients(error)  # Dynamo loses the request for None, also where tracing keeps it
    return None


def _refused_aliases(error: aot_autograd.AliasedOutputsError) -> UnsupportedError:
    return UnsupportedError(
        "The model has tensor subclasses, and returns tensors that share memory with each other, which torch cannot trace.",
        [Problem(where, "is a view of another result") for where in error.paths],
        hint="Return copies (clone()), or return one of them and create the views outside the model.",
    )


def _refused_overlap(source: FrontEndInput, error: overlaps.OverlapError) -> UnsupportedError:
    where = line_of(error)
    if not where:  # Dynamo's graph has no lines of the user's, so run the model itself
        mode = fake_tensors.fake_mode_with_shapes()
        with modes(source), contextlib.suppress(Exception):  # the model may fail earlier, for another reason
            try:
                fake_run.run_on_fake_tensors(mode, source.model, source.args, source.kwargs)
            except overlaps.OverlapError as found:
                where = line_of(found)
    return UnsupportedError(
        "One operation of the model writes to overlapping memory: eager raises, or its result depends on the order of loops.",
        [Problem(where or "the model", str(error))],
        hint="Write to a copy (clone()), or to its base.",
    )


def _refused_gradient_write(error: gradient_writes.GradientWriteError) -> UnsupportedError:
    where = error.line if error.node is None else source_line(error.node)
    return UnsupportedError(
        f"The model has {error.writer} writes to a gradient {error.gradient}.",
        [Problem(where or "the model", str(error))],
        hint="Write to a clone() of the gradient, or return a new tensor. Autograd does not allow changing it in place.",
    )


def _refused_dirty_argument(error: dirty_arguments.DirtyArgumentError) -> UnsupportedError:
    return UnsupportedError(
        "The model has an autograd.Function that writes to an argument of the model.",
        [Problem(error.line or "the model", str(error))],
        hint="Pass a copy to the function (x.clone()), or return a new tensor from its forward.",
    )


def _refused_undefined_gradients(error: undefined_gradients.UndefinedGradientError) -> UnsupportedError:
    return UnsupportedError(
        "The model has an autograd.Function whose gradients may be undefined.",
        [Problem(error.line or "the model", str(error))],
        hint="Treat zeros like None in its backward, and leave out ctx.set_materialize_grads(False).",
    )
