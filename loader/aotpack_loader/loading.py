"""``load``: from a path to a trainable module. Reads as the order of the steps."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

import torch

from . import _collector
from .archive.bundle import Bundle
from .archive.weights import View
from .devices.select import Selection, select
from .errors import AotpackError
from .format import schema
from .format.validate import backward_arity
from .program import LoadedProgram, LoadInfo, Mode
from .runtime.call import MethodCall

if TYPE_CHECKING:
    from .runtime.checks import Checks


class BackendWarning(UserWarning):
    """A bundle fell back from native code to the portable interpreter."""


def load(
    bundle: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    backend: str | None = None,
    weights: bool = True,
    trust: str | Collection[str] | None = None,
    operators: Collection[str] = (),
    verify: Literal["code", "full"] = "code",
    check: Literal["arguments", "full"] = "arguments",
) -> LoadedProgram:
    """Load a bundle as a trainable ``nn.Module``.

    Args:
        bundle: a ``.aotpack`` file or an unpacked bundle directory.
        device: where to run, ``"cpu"`` for now the only one; null: the target's own.
        backend: a target by name (``"cpu:x86-64-v3"``) or kind (``"cpu"``, ``"portable"``); null: the best that fits this
            machine and is trusted.
        weights: false leaves parameters and persistent buffers uninitialised, to be filled by ``load_state_dict``.
        trust: what lets native code run besides having been built here: ``"all"``, or the bundle's digest
            (``sha256:…``), or several digests.
        operators: namespaces of operators beyond torch's own (``("torchvision",)``) that the graphs of a bundle may call
            although it is not trusted; the packages that register them must have been imported.
        verify: ``"code"`` checks every digest but those of the weights, which are mapped; ``"full"`` reads and checks them too.
        check: ``"arguments"`` refuses calls that do not fit; ``"full"`` also asserts at every call all that the build assumed and
            raises :class:`~aotpack_loader.errors.CheckError`. Slow: for finding out what is wrong.

    Raises:
        BundleError: the file is not a valid bundle.
        TargetError: no target can run here, or not the one asked for.
        TrustError: a native target was asked for, or operators of others are called, and nothing says they may run.
    """
    if verify not in ("code", "full"):
        raise AotpackError(f"verify={verify!r} is not known.", hint='Use "code" or "full".')
    if check not in ("arguments", "full"):
        raise AotpackError(f"check={check!r} is not known.", hint='Use "arguments" or "full".')
    if isinstance(operators, str):
        raise AotpackError(f"operators={operators!r} is not understood.", hint=f"Pass a collection: operators=({operators!r},).")
    with _collector.paused():
        module, fallback = _load(bundle, device, backend, weights, trust, operators, verify, check)
    if fallback:
        warnings.warn(fallback, BackendWarning, stacklevel=2)
    return module


def _load(
    bundle: str | os.PathLike[str],
    device: str | torch.device | None,
    backend: str | None,
    weights: bool,
    trust: str | Collection[str] | None,
    operators: Collection[str],
    verify: str,
    check: str,
) -> tuple[LoadedProgram, str]:
    """The module, and a warning about its backend, or nothing."""
    opened = Bundle.open(bundle)
    if verify == "full":
        opened.verify()
    chosen = select(opened, backend=backend, device=device, trust=trust, agreed=operators)
    program = opened.program
    info = LoadInfo(
        path=os.fspath(bundle),
        digest=opened.digest,
        backend=chosen.target.name,
        reason=chosen.reason,
        program=program,
        rejected=chosen.rejected,
    )
    return LoadedProgram(info, _state(opened, program, weights), _calls(opened, chosen, check)), chosen.fallback


def _state(bundle: Bundle, program: schema.Program, weights: bool) -> dict[str, torch.Tensor]:
    """Tensors of all entries; without weights only what no state dict can fill is read."""
    stored = bundle.weights()
    blank = stored if weights else bundle.weights(blank=True)
    entries = [entry for entry in program.state if not entry.tied_to]
    return {entry.name: (blank if entry.persistent else stored).tensor(entry) for entry in entries}


def _calls(bundle: Bundle, chosen: Selection, check: str) -> dict[Mode, MethodCall]:
    """By the modes (train/eval, gradients on/off) that they serve."""
    program = bundle.program
    entries = {entry.name: entry for entry in program.state}
    constants = _constants(bundle, program)
    made: dict[str, MethodCall] = {}
    for name, method in program.methods.items():
        forward = chosen.device.executable(f"{name}.forward", method.forward, (len(method.primals), method.num_outputs))
        backward = None
        if method.backward is not None:
            arity = backward_arity(method.backward)
            backward = chosen.device.executable(f"{name}.backward", method.backward.graph, arity)
        made[name] = MethodCall(
            name,
            method,
            forward,
            backward,
            constants,
            entries,
            chosen.device.device,
            _checks(name, method, bundle, chosen) if check == "full" else None,
            native=_is_native(chosen),
        )
    for name, method in program.methods.items():
        if method.backward is not None and method.backward.second is not None:
            made[name].differentiate_again(made[method.backward.second.method])
    return {(mode.training, mode.grad): made[name] for name, method in program.methods.items() for mode in method.serves}


def _checks(name: str, method: schema.Method, bundle: Bundle, chosen: Selection) -> Checks:
    from .runtime.checks import Checks  # rarely wanted: not part of what every start imports

    backward = None if method.backward is None else bundle.graph(method.backward.graph)
    return Checks(name, method, bundle.graph(method.forward), backward, chosen.device.device, own_layout=_is_native(chosen))


def _is_native(chosen: Selection) -> bool:
    return chosen.target.kind != "portable"


def _constants(bundle: Bundle, program: schema.Program) -> Mapping[str, torch.Tensor]:
    used = [p for m in program.methods.values() for p in m.primals if isinstance(p, schema.ConstantPrimal)]
    stored = bundle.weights()
    return {p.name: stored.tensor(View.contiguous(p.name, p.dtype, p.shape)) for p in used}
