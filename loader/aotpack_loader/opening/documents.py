"""Opens a bundle by its documents: chooses the target, opens its code, and makes the calls of its methods."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from msgspec import structs

from ..archive.bundle import Bundle
from ..archive.layout import Layout
from ..archive.weights import View, WeightMap
from ..devices.select import Selection, is_native, select
from ..errors import BundleError, DirectoryError, TargetError
from ..format import schema
from ..format.subclasses import backward_arity, forward_arity, stored_parts, uses_subclasses
from ..format.versions import torch_satisfies
from ..module.info import LoadInfo
from ..module.outline import outline_of
from ..module.program import LoadedProgram
from ..options import LoadOptions, pinned
from ..runtime.call import MethodCall
from ..runtime.loaded_method import LoadedMethod
from ..trust import ALL
from . import recording
from .own_class import class_of

if TYPE_CHECKING:
    from ..devices.base import Executable
    from ..devices.protocols import Device, SizedDevice
    from ..optimizer.updates import OpenedUpdate, OpenUpdate
    from ..runtime.checks import Checks
    from ..runtime.subclasses.wrappers import Classes


def load_with(bundle: str | os.PathLike[str], options: LoadOptions, *, self_test: bool = True) -> tuple[LoadedProgram, str]:
    """Return the module, and a warning about its backend or an empty string.

    With ``self_test``, native code of another release of torch is tested before its first use.
    """
    where: str | os.PathLike[str]
    if isinstance(bundle, str) and "://" in bundle:
        from ..registry.fetch import fetch  # needs an HTTP library, and is not imported for a file

        where, options = fetch(bundle, options)
    else:
        where, options = bundle, pinned(options, options.digest)
    opened = Bundle.open(where)
    _check_pin(opened, options.digest)
    if options.policy or os.environ.get("AOTPACK_POLICY"):
        from ..policy import apply_policies  # rarely needed

        options = apply_policies(opened, options)
    if options.verify == "full":
        opened.verify()
    classes = _classes(opened.program.requirements.subclasses, options.subclasses)
    state = _state(opened, opened.program, options.weights, classes)
    chosen, program, calls = _runnable(opened, classes, options)
    opened = opened.for_target(chosen.target.name)
    reason, warning = chosen.reason, chosen.fallback
    if self_test and _is_of_another_release(chosen.target):
        from .other_release import tested_here  # rarely needed

        same = options._replace(backend=chosen.target.name, weights=True, check="arguments")
        tested, warning = tested_here(
            where, opened.program, chosen.target, options, lambda: load_with(where, same, self_test=False)[0]
        )
        reason = f"{reason}; {tested}"
    made = {name: _natively(call, chosen.device) for name, call in calls.items()}
    info = _info(bundle, opened, program, chosen, reason, made)
    outline = outline_of(program)
    module = class_of(outline)(info, outline, chosen.device.moved(state), calls)
    recording.keep(opened, options, chosen, outline, info, calls)
    return module, warning


def load_candidate(
    bundle: str | os.PathLike[str], target: str, subclasses: Collection[type] = (), *, native: bool = True
) -> tuple[LoadedProgram, Mapping[str, MethodCall]]:
    """The module and the calls of a bundle that this process is making, to check it before it gets its name.

    Its code is the builder's own, so neither trust nor a policy is asked, and nothing is recorded.
    Without ``native``, Python makes all calls.

    Raises:
        TargetError: the target cannot run here.
    """
    opened = Bundle.open(bundle)
    needed = opened.program.requirements
    classes = _classes(needed.subclasses, subclasses)
    state = _state(opened, opened.program, True, classes)
    options = LoadOptions(backend=target, trust=ALL, operators=needed.operators, allow_untested_torch=True)
    chosen, program, calls = _runnable(opened, classes, options)
    made = {name: _natively(call, chosen.device) for name, call in calls.items()} if native else {}
    opened = opened.for_target(chosen.target.name)
    info = _info(bundle, opened, program, chosen, chosen.reason, made)
    outline = outline_of(program)
    return class_of(outline)(info, outline, chosen.device.moved(state), calls), calls


def _info(
    bundle: str | os.PathLike[str],
    opened: Bundle,
    program: schema.Program,
    chosen: Selection,
    reason: str,
    calls: Mapping[str, str],
) -> LoadInfo:
    """How a bundle was loaded. ``program`` is adapted to the device; ``calls`` say what makes the calls of each method."""
    updates = partial(_update, opened, program, chosen)
    return LoadInfo(os.fspath(bundle), opened.digest, chosen.target.name, reason, opened.program, chosen.rejected, calls, updates)


def complete(layout: Layout, digest: str, target: str) -> tuple[schema.Program, dict[str, MethodCall], OpenUpdate]:
    """The program, the calls and the updates of a bundle that was loaded from a record, on the same target.

    The load has checked that its code may run.

    Raises:
        BundleError: the bundle has changed since.
    """
    opened = Bundle(layout)
    _check_pin(opened, digest)
    chosen, program, calls = _runnable(opened, {}, LoadOptions(backend=target, trust=ALL))
    for call in calls.values():
        _natively(call, chosen.device)
    return program, calls, partial(_update, opened, program, chosen)


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
        own = bundle.for_target(chosen.target.name)
        program = chosen.device.adapted(own.program)
        try:
            return chosen, program, _calls(own, program, chosen, classes=classes, check=options.check)
        except DirectoryError as error:
            if options.backend is not None:
                raise
            unusable[chosen.target.name] = error


def _classes(required: list[str], provided: Collection[type]) -> Classes:
    """The tensor subclasses a bundle needs. Most bundles need none, and then the module for them is not imported."""
    if not required and not provided:
        return {}
    from ..runtime.subclasses.wrappers import resolve

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
    from ..runtime.subclasses.wrappers import Wrapper

    parts = iter([stored.tensor(_view(part)) for part in stored_parts(entry.subclass)])
    return Wrapper(entry.subclass, classes).unflatten(parts, {})


def _view(part: schema.InnerTensor) -> View:
    """A view of a stored tensor. Stored sizes are numbers (rule K3)."""
    return View(part.storage, part.dtype, [int(size) for size in part.shape], [int(step) for step in part.stride], part.offset)


def _calls(bundle: Bundle, program: schema.Program, chosen: Selection, *, classes: Classes, check: str) -> dict[str, MethodCall]:
    """Calls by method name. ``program`` is adapted to the device."""
    entries = {entry.name: entry for entry in program.state}
    # Updates are opened when an optimizer is asked for.
    methods = {name: method for name, method in program.methods.items() if not method.step}
    constants = _constants(bundle, methods.values(), chosen.device.device)
    made: dict[str, MethodCall] = {}
    for name, method in methods.items():
        if name in chosen.target.constraints:
            method = structs.replace(method, constraints=[*method.constraints, *chosen.target.constraints[name]])
        loaded = LoadedMethod(name, method, constants, entries, chosen.device.device, classes)
        call = partial(_call, loaded, bundle, chosen, check)
        codes = chosen.target.specializations.get(name)
        if not codes:
            made[name] = call(chosen.device)
            continue
        from ..runtime.specialized import SpecializedCall  # rarely needed, so not imported at every start

        sized = cast("SizedDevice", chosen.device)  # C14
        calls = [call(sized.specialized(name, code)) for code in codes]
        made[name] = SpecializedCall(loaded, calls, [code.sizes for code in codes])
    for name, method in methods.items():
        if method.backward is not None and method.backward.second is not None:
            made[name].differentiate_again(made[method.backward.second.method])
    return made


def _update(bundle: Bundle, program: schema.Program, chosen: Selection, name: str) -> OpenedUpdate:
    """The update of an optimizer."""
    from ..optimizer.updates import BySize, OpenedUpdate  # a start does not need it

    target, device, key = chosen.target, chosen.device, f"{name}.forward"
    codes = target.specializations.get(name, [])
    if target.kind != "portable" and not codes and key not in target.executables and key not in target.xla:
        raise TargetError(
            f"The target {target.name} holds no step of an optimizer.",
            hint="Make an optimizer of torch.optim over the module's parameters, or load another target.",
        )
    method = program.methods[name]
    entries = {entry.name: entry for entry in program.state}

    def opened(device: Device) -> Executable:
        return device.executable(key, method.forward, forward_arity(method, entries))

    sized = {size: opened(cast("SizedDevice", device).specialized(name, code)) for code in codes for size in code.sizes.values()}
    code = BySize(sized) if sized else opened(device)
    constants = _constants(bundle, [method], device.device)
    return OpenedUpdate(method, code, constants, device.call_library[0], device.scalars)


def _natively(call: MethodCall, device: Device) -> str:
    """What makes the calls of a method: ``native``, or ``python`` and the reason."""
    library, reason = device.call_library
    if library is None:
        return f"python: {reason}"
    from ..runtime.native import use  # not imported without a library

    return use(call, library)


def _call(loaded: LoadedMethod, bundle: Bundle, chosen: Selection, check: str, code: Device) -> MethodCall:
    """A method with its executables from ``code``."""
    name, method = loaded.name, loaded.method
    forward = code.executable(f"{name}.forward", method.forward, forward_arity(method, loaded.entries))
    backward = None
    if method.backward is not None:
        backward = code.executable(f"{name}.backward", method.backward.graph, backward_arity(method.backward))
    checks = _checks(loaded, bundle, chosen) if check == "full" else None
    native = is_native(chosen.target)
    if _is_plain(loaded):
        return MethodCall(loaded, forward, backward, checks, native=native)
    from ..runtime.subclasses.call import SubclassCall  # rarely needed, so not imported at every start

    return SubclassCall(loaded, forward, backward, checks, native=native)


def _checks(loaded: LoadedMethod, bundle: Bundle, chosen: Selection) -> Checks:
    """The checks of a method."""
    from ..runtime.checks import Checks  # rarely needed, so not imported at every start

    chosen.device.require_memory()
    backward = loaded.method.backward
    graphs = bundle.graph(loaded.method.forward), None if backward is None else bundle.graph(backward.graph)
    if _is_plain(loaded):
        return Checks(loaded, *graphs, own_layout=is_native(chosen.target))

    from ..runtime.subclasses.full_checks import SubclassChecks

    return SubclassChecks(loaded, *graphs, own_layout=is_native(chosen.target))


def _is_plain(loaded: LoadedMethod) -> bool:
    """Whether a method's values are plain tensors, and its forward takes no sizes."""
    return not uses_subclasses(loaded.method, loaded.entries)


def _is_of_another_release(target: schema.Target) -> bool:
    """Whether a target is native code for the CPU that was compiled for another minor release of torch."""
    return target.kind == "aoti" and not torch_satisfies(str(torch.__version__), target.torch)


def _constants(bundle: Bundle, methods: Iterable[schema.Method], device: torch.device) -> Mapping[str, torch.Tensor]:
    used = [p for method in methods for p in method.primals if isinstance(p, schema.ConstantPrimal)]
    stored = bundle.weights()
    return {p.name: stored.constant(p.name, p.dtype, p.shape).to(device) for p in used}
