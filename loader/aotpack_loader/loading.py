"""``load``: reads a bundle and returns a trainable module."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import torch
from msgspec import structs
from msgspec.structs import replace

from . import _collector
from .archive.bundle import Bundle
from .archive.weights import View, WeightMap
from .devices.select import Selection, select
from .errors import BundleError, DirectoryError
from .format import schema
from .format.subclasses import backward_arity, forward_arity, stored_parts, uses_subclasses
from .format.versions import torch_satisfies
from .options import LoadOptions, pinned
from .own_class import class_of
from .program import LoadedProgram, LoadInfo, Mode
from .runtime.call import MethodCall

if TYPE_CHECKING:
    from .devices.protocols import Device, SizedDevice
    from .runtime.checks import Checks
    from .runtime.subclasses import Classes


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
    subclasses: Collection[type] = (),
    verify: Literal["code", "full"] = "code",
    check: Literal["arguments", "full"] = "arguments",
    donate: bool = False,
    allow_untested_torch: bool = False,
    digest: str | None = None,
    lock: str | os.PathLike[str] | None = None,
    policy: str | os.PathLike[str] | None = None,
) -> LoadedProgram:
    """Load a bundle as a trainable ``nn.Module``.

    Args:
        bundle: a ``.aotpack`` file, an unpacked bundle directory, or a bundle in a registry
            (``"oci://host/repository:tag"``), which is pulled to the cache. That needs
            ``aotpack-loader[registry]``. Files of other stores (``s3://``, ``gs://``) come through
            fsspec.
        device: where to run. ``"cpu"``, or an XLA device (``"xla"``, ``"xla:1"``), which then holds
            parameters and buffers. None: the CPU, or the device of a target named by ``backend``.
        backend: a target by name (``"cpu:x86-64-v3"``, ``"xla:cpu"``) or kind (``"cpu"``,
            ``"portable"``). None: the best target that fits this machine and is trusted.
        weights: False leaves parameters and persistent buffers uninitialised, to be filled by
            ``load_state_dict``.
        trust: permission to run native code that was not built here. ``"all"``, or the bundle's
            digest (``sha256:…``), or a key that signed it (``key:acme.pub``), or several of these.
        operators: namespaces of operators beyond torch's own (``("torchvision",)``) that the graphs
            of an untrusted bundle may call. The packages that register them must be imported first.
        subclasses: classes of tensors (``[TwoTensor]``) that arguments, state, results or gradients
            may have. A bundle only names them, and never causes an import. The class itself defines
            how such a tensor behaves.
        verify: ``"code"`` checks all digests except those of the weights, which are mapped.
            ``"full"`` reads and checks the weights too.
        check: ``"arguments"`` refuses calls that do not fit. ``"full"`` also asserts at every call
            what the build assumed, and raises :class:`~aotpack_loader.errors.CheckError`. It is
            slow, and meant for debugging.
        donate: on an XLA device, True updates buffers and arguments in their own memory if the
            model writes to them. Tensors that share this memory (after ``other.copy_(buffer)`` or
            ``load_state_dict``) must not be used any more; torch_xla raises an error then. False:
            each call allocates new memory.
        allow_untested_torch: run native code on a release of torch on which it was not tried. torch
            must have all functions that the code calls. Compare the results with
            ``backend="portable"``.
        digest: the digest that the bundle must have. It also permits its native code, as the same
            digest does in ``trust`` or in a reference (``"oci://host/repository@sha256:…"``).
        lock: a lock file that must have an entry for the reference. None: ``aotpack.lock`` in the
            working directory (or ``$AOTPACK_LOCK``) is used where it has one.
        policy: a policy file, which must allow the bundle. It applies beside the one that
            ``$AOTPACK_POLICY`` names.

    Raises:
        BundleError: the file is not a valid bundle, or has another digest.
        RegistryError: the bundle cannot be pulled.
        TargetError: no target can run here, or not the requested one.
        SubclassError: the bundle holds tensors of a class that is not among ``subclasses``.
        TrustError: a native target was requested, or third-party operators are called, and it is
            not trusted.
        PolicyError: a policy does not allow the bundle.
        DirectoryError: a native target was requested, and the directory for its code cannot be
            used.
    """
    options = LoadOptions(
        device=device,
        backend=backend,
        weights=weights,
        trust=trust,
        operators=operators,
        subclasses=subclasses,
        verify=verify,
        check=check,
        donate=donate,
        allow_untested_torch=allow_untested_torch,
        digest=digest,
        lock=lock,
        policy=policy,
    )
    with _collector.paused():
        module, fallback = load_with(bundle, options)
    if fallback:
        from .text import visible_lines  # only for warnings

        warnings.warn(visible_lines(fallback), BackendWarning, stacklevel=2)
    return module


def load_with(bundle: str | os.PathLike[str], options: LoadOptions, *, self_test: bool = True) -> tuple[LoadedProgram, str]:
    """Return the module, and a warning about its backend or an empty string.

    With ``self_test``, native code of another release of torch is tested before its first use.
    """
    where: str | os.PathLike[str]
    if isinstance(bundle, str) and "://" in bundle:
        from .registry.fetch import fetch  # needs an HTTP library, and is not imported for a file

        where, options = fetch(bundle, options)
    else:
        where, options = bundle, pinned(options, options.digest)
    opened = Bundle.open(where)
    _check_pin(opened, options.digest)
    if options.policy or os.environ.get("AOTPACK_POLICY"):
        from .policy import apply_policies, source_of  # rarely needed

        options = apply_policies(opened, replace(options, source=options.source or source_of(bundle)))
    if options.verify == "full":
        opened.verify()
    classes = _classes(opened.program.requirements.subclasses, options.subclasses)
    state = _state(opened, opened.program, options.weights, classes)
    chosen, program, calls = _runnable(opened, classes, options)
    reason, warning = chosen.reason, chosen.fallback
    if self_test and _is_of_another_release(chosen.target):
        from .other_release import tested_here  # rarely needed

        same = replace(options, backend=chosen.target.name, weights=True, check="arguments")
        tested, warning = tested_here(
            where, opened.program, chosen.target, options, lambda: load_with(where, same, self_test=False)[0]
        )
        reason = f"{reason}; {tested}"
    info = LoadInfo(
        path=os.fspath(bundle),
        digest=opened.digest,
        backend=chosen.target.name,
        reason=reason,
        program=opened.program,
        rejected=chosen.rejected,
        calls={name: _natively(call, chosen.device) for name, call in calls.items()},
    )
    return class_of(program)(info, chosen.device.moved(state), _by_mode(program, calls)), warning


def _check_pin(bundle: Bundle, digest: str | None) -> None:
    """Refuse a bundle of another digest than the caller's."""
    if digest is not None and bundle.digest != digest:
        bundle.close()
        raise BundleError(f"The bundle {bundle.path!r} has the digest {bundle.digest}, and {digest} is wanted.")


def _runnable(bundle: Bundle, classes: Classes, options: LoadOptions) -> tuple[Selection, schema.Program, dict[str, MethodCall]]:
    """A target, the program adapted to its device, and the calls.

    If no target was requested and the code of one cannot be extracted, the next target is used.
    """
    unusable: dict[str, DirectoryError] = {}
    while True:
        chosen = select(bundle, options, unusable)
        if options.donate:
            chosen = structs.replace(chosen, device=chosen.device.updating_in_place(chosen.target.name))
        program = chosen.device.adapted(bundle.program)
        try:
            return chosen, program, _calls(bundle, program, chosen, classes=classes, check=options.check)
        except DirectoryError as error:
            if options.backend is not None:
                raise
            unusable[chosen.target.name] = error


def _classes(required: list[str], provided: Collection[type]) -> Classes:
    """The tensor subclasses a bundle needs. Most bundles need none, and then the module for them is not imported."""
    if not required and not provided:
        return {}
    from .runtime.subclasses import resolve

    return resolve(required, provided)


def _state(bundle: Bundle, program: schema.Program, weights: bool, classes: Classes) -> dict[str, torch.Tensor]:
    """Tensors of all entries. Without weights only the entries that no state dict contains are read."""
    stored = bundle.weights()
    blank = stored if weights else bundle.weights(blank=True)
    entries = [entry for entry in program.state if not entry.tied_to]
    return {entry.name: _tensor(entry, blank if entry.persistent else stored, classes) for entry in entries}


def _tensor(entry: schema.StateEntry, stored: WeightMap, classes: Classes) -> torch.Tensor:
    """The tensor of an entry; a subclass is rebuilt from its stored parts."""
    if entry.subclass is None:
        return stored.tensor(entry)
    from .runtime.subclasses import Wrapper

    parts = iter([stored.tensor(_view(part)) for part in stored_parts(entry.subclass)])
    return Wrapper(entry.subclass, classes).unflatten(parts, {})


def _view(part: schema.InnerTensor) -> View:
    """A view of a stored tensor. Stored sizes are numbers (rule K3)."""
    return View(part.storage, part.dtype, [int(size) for size in part.shape], [int(step) for step in part.stride], part.offset)


def _by_mode(program: schema.Program, calls: Mapping[str, MethodCall]) -> dict[Mode, list[MethodCall]]:
    """Calls by the modes (train/eval, gradients on/off) that they serve.

    Several calls of one mode differ in autocast.
    """
    found: dict[Mode, list[MethodCall]] = {}
    for name, method in program.methods.items():
        for mode in method.serves:
            found.setdefault((mode.training, mode.grad), []).append(calls[name])
    return found


def _calls(bundle: Bundle, program: schema.Program, chosen: Selection, *, classes: Classes, check: str) -> dict[str, MethodCall]:
    """Calls by method name. ``program`` is adapted to the device."""
    entries = {entry.name: entry for entry in program.state}
    constants = {name: tensor.to(chosen.device.device) for name, tensor in _constants(bundle, program).items()}
    made: dict[str, MethodCall] = {}
    for name, method in program.methods.items():
        if name in chosen.target.constraints:
            method = structs.replace(method, constraints=[*method.constraints, *chosen.target.constraints[name]])
        call = partial(_call, name, method, constants, entries, bundle, chosen, classes, check)
        codes = chosen.target.specializations.get(name)
        if not codes:
            made[name] = call(chosen.device)
            continue
        from .runtime.specialized import SpecializedCall  # rarely needed, so not imported at every start

        sized = cast("SizedDevice", chosen.device)  # C14
        calls = [call(sized.specialized(name, code)) for code in codes]
        sizes = [code.sizes for code in codes]
        made[name] = SpecializedCall(name, method, calls, sizes, constants, entries, chosen.device.device)
    for name, method in program.methods.items():
        if method.backward is not None and method.backward.second is not None:
            made[name].differentiate_again(made[method.backward.second.method])
    return made


def _natively(call: MethodCall, device: Device) -> str:
    """What makes the calls of a method: ``native``, or ``python`` and the reason."""
    library, reason = device.call_library
    if library is None:
        return f"python: {reason}"
    from .runtime.native import use  # not imported without a library

    return use(call, library)


def _call(
    name: str,
    method: schema.Method,
    constants: Mapping[str, torch.Tensor],
    entries: Mapping[str, schema.StateEntry],
    bundle: Bundle,
    chosen: Selection,
    classes: Classes,
    check: str,
    code: Device,
) -> MethodCall:
    """A method with its executables from ``code``."""
    forward = code.executable(f"{name}.forward", method.forward, forward_arity(method, entries))
    backward = None
    if method.backward is not None:
        backward = code.executable(f"{name}.backward", method.backward.graph, backward_arity(method.backward))
    device = code.device
    held = uses_subclasses(method, entries)
    is_plain = not held and not method.sizes
    checks = _checks(name, method, entries, bundle, chosen, None if is_plain else classes) if check == "full" else None
    native = _is_native(chosen)
    if is_plain:
        return MethodCall(name, method, forward, backward, constants, entries, device, checks, native=native)
    from .runtime.subclass_call import SubclassCall

    return SubclassCall(name, method, forward, backward, constants, entries, device, classes, checks, native=native)


def _checks(
    name: str,
    method: schema.Method,
    entries: Mapping[str, schema.StateEntry],
    bundle: Bundle,
    chosen: Selection,
    classes: Classes | None,
) -> Checks:
    """The checks of a method. Without ``classes`` its tensors are plain."""
    from .runtime.checks import Checks  # rarely needed, so not imported at every start

    chosen.device.require_memory()
    backward = None if method.backward is None else bundle.graph(method.backward.graph)
    graphs = bundle.graph(method.forward), backward, chosen.device.device
    if classes is None:
        return Checks(name, method, *graphs, entries, own_layout=_is_native(chosen))

    from .runtime.full_subclass_checks import SubclassChecks

    return SubclassChecks(name, method, *graphs, entries, classes, own_layout=_is_native(chosen))


def _is_of_another_release(target: schema.Target) -> bool:
    """Whether a target is native code for the CPU that was compiled for another minor release of torch."""
    return target.kind == "aoti" and not torch_satisfies(str(torch.__version__), target.torch)


def _is_native(chosen: Selection) -> bool:
    return chosen.target.kind != "portable"


def _constants(bundle: Bundle, program: schema.Program) -> Mapping[str, torch.Tensor]:
    used = [p for m in program.methods.values() for p in m.primals if isinstance(p, schema.ConstantPrimal)]
    stored = bundle.weights()
    return {p.name: stored.tensor(View.contiguous(p.name, p.dtype, p.shape)) for p in used}
