"""Notes and warnings of a build: what of a model is not in its bundle, and what a capture has changed or left out."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from .._torch.api.state_dict_code import loading_code, saving_code
from ..capture import Captured
from ..capture.result_classes import left_out
from ..model.modules import modes_after
from .progress import Run


def warn_of_state_code(run: Run, model: nn.Module) -> None:
    """Say what of the model is not in the bundle."""
    if saving := saving_code(model):
        run.warn(
            f"state_dict() of the bundle has its parameters and buffers as they are, and does not run {', '.join(saving)}. "
            "Register such hooks on the loaded module."
        )
    if loading := loading_code(model):
        run.note(f"load_state_dict() of the bundle does not run {', '.join(loading)}: register such hooks on the loaded module")


def remark_on(captured: Captured, method: str, run: Run, *, asked_for_regions: bool) -> None:
    """Write the notes and warnings about a captured method."""
    run.note(f"captured {method!r} with the {captured.front_end} front end")
    if captured.regions:
        run.note(f"{method!r}: {captured.regions} repeated layers are regions, each compiled once")
    if captured.regions_refused:
        refused = f"layers are not compiled once: {captured.regions_refused}"
        if asked_for_regions:
            run.warn(refused, once=refused)
        else:
            run.note(f"{method!r}: {refused}")
    for problem in captured.rejected:
        run.note(f"the {problem.where} front end{'s' * (',' in problem.where)} refused {method!r}: {problem.message}")
    for line in dict.fromkeys(branch.where for branch in captured.branches):
        run.warn(f"{method!r} has only the branch that the example inputs take; a call that takes another fails: {line}")
    for lacking in left_out(captured.returned.spec):
        run.warn(f"results: {lacking}", once=lacking)
    for line in captured.lost_checkpoints:
        run.warn(f"{method!r}: the {captured.front_end} front end ignored a checkpoint, so all in it is saved: {line}")
    if captured.joint.side_effects:
        changed = ", ".join(captured.joint.side_effects)
        run.warn(f"{method!r}: the model changes Python objects while it runs ({changed}); a bundle keeps tensors only")


def remark_on_modes(model: nn.Module, method: str, flags: Mapping[str, bool], run: Run, *, training: bool) -> None:
    """Warn of submodules that ``train()`` or ``eval()`` of the model would leave in another mode than the method needs."""
    after = modes_after(model, training)
    other = [path for path, flag in flags.items() if after.get(id(model.get_submodule(path)), training) is not flag]
    if not other:
        return
    usual, needed = ("train()", "eval()") if training else ("eval()", "train()")
    named = ", ".join(other[:3]) + (f" and {len(other) - 3} more" if len(other) > 3 else "")
    run.warn(
        f"{method!r} needs {named} in {needed}, as here. A loaded bundle refuses calls after the usual {usual}: override "
        f"{usual[:-2]}() of the model so that it keeps these modes, or call {needed} of these modules after it"
    )
