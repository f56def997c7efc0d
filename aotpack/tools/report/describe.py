"""What a bundle holds, as text: types of arguments and results, what a target needs, what a blob is for.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aotpack_loader.devices.tried_releases import tried_releases
from aotpack_loader.format import media_types, schema, subclasses
from aotpack_loader.format.computations import computations

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle


def argument_type(leaf: schema.InputLeaf) -> str:
    if isinstance(leaf, schema.ConstantLeaf):
        return f"= {constant_text(leaf.value)} (fixed)"
    if isinstance(leaf, schema.IntegerLeaf):
        return f"int {leaf.size}"
    notes = [] if leaf.device == "cpu" else [leaf.device]
    if leaf.requires_grad:
        notes.append("requires grad")
    notes += subclass_types(leaf.subclass)
    return tensor_type(leaf.dtype, leaf.shape) + "".join(f", {note}" for note in notes)


def subclass_types(subclass: schema.Subclass | None) -> list[str]:
    """Return the class of a tensor subclass and the types of its inner tensors, as text."""
    if subclass is None:
        return []
    parts = zip(subclasses.part_names(subclass), subclasses.stored_parts(subclass), strict=True)
    held = ", ".join(f"{name.removeprefix('.')} {tensor_type(part.dtype, part.shape)}" for name, part in parts)
    return [f"{subclass.name} of {held}"]


def result_type(method: schema.Method, graph: schema.Graph, result: schema.Result) -> str:
    if isinstance(result, schema.FreshResult):
        notes = ", differentiable" if result.requires_grad else "" if result.sparse_dim is None else ", sparse"
        return value_type(method, graph, result.output) + notes
    if isinstance(result, schema.InputResult):
        return f"is {primal_name(method, result.primal)}"
    if isinstance(result, schema.AliasResult):
        base = f"result {result.output} of the graph" if result.primal is None else primal_name(method, result.primal)
        return f"a view of {base}"
    if isinstance(result, schema.NumberResult):
        return f"a number that depends on data, output {result.output}"
    if isinstance(result, schema.SizeResult):
        return f"int = {result.expr}"
    return f"= {constant_text(result.value)}"


def value_type(method: schema.Method, graph: schema.Graph, output: int) -> str:
    """Return the type of a forward output. It is read from the node that computes the value."""
    outputs = subclasses.of_outputs(method)
    if outputs[output] is not None:
        return ", ".join(subclass_types(outputs[output]))
    found = graph.outputs[subclasses.part_positions(outputs)[output].start]
    if not isinstance(found, schema.ValueRef):
        return repr(found)
    values = {node.name: node.value for node in graph.nodes} | dict(zip(graph.inputs, graph.input_values, strict=True))
    value = values.get(found.name)
    if isinstance(value, schema.TensorValue):
        return tensor_type(value.dtype, value.shape)
    return f"int = {value.expr}" if isinstance(value, schema.IntValue) else "?"


def primal_name(method: schema.Method, index: int) -> str:
    primal = method.primals[index]
    if isinstance(primal, (schema.SyntheticBasePrimal, schema.ViewBasePrimal)):
        return "what " + ", ".join(method.leaves[member.leaf].path for member in primal.members) + " share"
    return method.leaves[primal.leaf].path if isinstance(primal, schema.InputPrimal) else primal.name


def constant_text(value: object) -> str:
    if isinstance(value, schema.ComplexArg):
        return f"{value.real}+{value.imag}j"
    if isinstance(value, schema.Document):
        return str(getattr(value, "value", value))
    return repr(value)


def tensor_type(dtype: str, shape: list[schema.Dim] | list[int]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def code_blobs(target: schema.Target) -> Iterator[tuple[schema.Descriptor, str]]:
    """Yield the blobs with a target's code, and what each contains."""
    for key, executable in target.executables.items():
        yield executable.code, f"code {key}"
        for name, kernel in executable.kernels.items():
            yield kernel.code, f"kernel {name}"
            if kernel.ptx is not None:
                yield kernel.ptx, f"PTX {name}"
    for _, key, computation in computations(target):
        for kind, blob in (("HLO", computation.hlo), ("StableHLO", computation.stablehlo), ("code", computation.code)):
            if blob is not None:
                yield blob, f"{kind} {key}"


def producer_text(bundle: Bundle) -> str:
    """What built a bundle: ``aotpack 0.1.0, torch 2.13.0+cpu``, and whether aotpack was not tried with that torch."""
    producer = bundle.program.producer
    untested = any("untested_torch" in target.toolchain for target in bundle.targets.values())
    return f"aotpack {producer.aotpack}, torch {producer.torch}" + (" (not tried together)" if untested else "")


def requirements_of(target: schema.Target, program: schema.Program) -> str:
    """Return what a machine must have, and the accepted sizes.

    An instruction set is named instead of its CPU features.
    """
    needs = [f"{target.device} {target.topology}"] if target.topology else []
    needs += [torch_releases_of(target)] if target.torch else []
    needs += [gpus_of(target.gpu)] if target.gpu is not None else []
    needs += [f"{package} {releases}" for package, releases in target.packages.items()]
    if not target.instruction_set:
        needs += target.cpu_features
    labels = {symbol.name: symbol.label for method in program.methods.values() for symbol in method.symbols}
    sizes = [
        ",".join(dict.fromkeys(f"{labels.get(name) or name}={size}" for name, size in code.sizes.items()))
        for codes in target.specializations.values()
        for code in codes
    ]
    needs += [" or ".join(dict.fromkeys(sizes))] if sizes else []
    return ", ".join(needs) or "-"


def torch_releases_of(target: schema.Target) -> str:
    """The releases that run a target: ``torch 2.13, 2.14 or 2.15``."""
    if not (others := tried_releases(target)):
        return f"torch {target.torch}"
    releases = [target.torch.removeprefix("==").removesuffix(".*"), *others]
    *first, last = sorted(releases, key=lambda release: [int(number) for number in release.split(".")])
    return f"torch {', '.join(first)} or {last}"


def gpus_of(gpu: schema.Gpu) -> str:
    """The GPUs and drivers that run a target: ``a GPU of 8.x from 8.0 on, a driver of CUDA 12.0``."""
    major = gpu.capability.partition(".")[0]
    which = f"a GPU of {gpu.capability}" if gpu.is_exact else f"a GPU of {major}.x from {gpu.capability} on"
    later = f"; as PTX later ones, CUDA {gpu.ptx_driver}" if gpu.ptx else ""
    return f"{which}, a driver of CUDA {gpu.driver}{later}"


def platform_text(platform: schema.Platform | None) -> str:
    if platform is None:
        return "any"
    return "/".join(part for part in (platform.os, platform.architecture, platform.variant) if part)


@dataclass(frozen=True)
class BlobRow:
    """A blob as tables show it. ``size`` and ``raw``, the size when unpacked, are in bytes; null: it is not compressed."""

    purpose: str
    size: int
    raw: int | None
    users: str
    digest: str


def blob_rows(bundle: Bundle) -> Iterator[BlobRow]:
    """Yield a row for each blob of a bundle. ``users`` are the targets that it belongs to."""
    purposes = blob_purposes(bundle)
    for blob in bundle.descriptors():
        users = [
            name
            for name, found in bundle.manifests.items()
            if blob.digest in {found.descriptor.digest, *(layer.digest for layer in found.manifest.layers)}
        ]
        raw = blob.annotations.get(media_types.ANNOTATION_RAW_SIZE, "")
        yield BlobRow(
            purposes.get(blob.digest) or media_kind(blob.media_type),
            blob.size,
            int(raw) if raw.isascii() and raw.isdecimal() and len(raw) < 20 else None,
            "all" if len(users) in (0, len(bundle.manifests)) else ", ".join(users),
            blob.digest,
        )


def blob_purposes(bundle: Bundle) -> dict[str, str]:
    """Return the purpose of each blob, by digest.

    A blob may have two purposes, because equal graphs are stored once.
    """
    uses: dict[str, list[str]] = {}

    def use(descriptor: schema.Descriptor, purpose: str) -> None:
        found = uses.setdefault(descriptor.digest, [])
        if purpose not in found:
            found.append(purpose)

    for name, method in bundle.program.methods.items():
        use(method.forward, f"graph {name}.forward")
        if method.backward is not None:
            use(method.backward.graph, f"graph {name}.backward")
    for descriptor in bundle.program.weights:
        use(descriptor, "weights")
    if bundle.program.self_test is not None:
        use(bundle.program.self_test, "self-test")
    if bundle.program.origins is not None:
        use(bundle.program.origins, "origins of nodes")
    for found in bundle.manifests.values():
        use(found.manifest.layers[0], f"target {found.target.name}")
        use(found.descriptor, f"manifest {found.target.name}")
        for blob, purpose in code_blobs(found.target):
            use(blob, purpose)
        if found.target.call is not None:
            use(found.target.call.code, "call library")
    return {digest: ", ".join(purposes) for digest, purposes in uses.items()}


def media_kind(media_type: str) -> str:
    return {media_types.OCI_INDEX: "bundle index", media_types.PROGRAM: "program"}.get(media_type, media_type)


def total_size(bundle: Bundle) -> int:
    return sum(descriptor.size for descriptor in bundle.descriptors())
