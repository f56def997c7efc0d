"""``aotpack inspect``: shows what a bundle contains. It runs nothing and never imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as RichTree

from aotpack_loader.format import media_types, schema
from aotpack_loader.format.containers import shown
from aotpack_loader.format.labels import Labels

from ..report.describe import (
    argument_type,
    blob_purposes,
    code_blobs,
    media_kind,
    primal_name,
    requirements_of,
    result_type,
    subclass_types,
    tensor_type,
    total_size,
)
from . import attached
from .console import json_option, print_json, size_text, stdout, verbose_option
from .transfers import connection_options, documents, mirror_option

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle


@click.command("inspect", short_help="Show what is in a bundle.")
@click.argument("bundle")
@mirror_option
@connection_options
@json_option
@verbose_option
def command(
    bundle: str,
    mirrors: tuple[str, ...],
    plain_http: tuple[str, ...],
    ca_file: str,
    concurrency: int,
    as_json: bool,
    verbose: bool,
) -> None:
    """Show what is in BUNDLE: methods, signatures, state, targets, sizes. With -v, every parameter and buffer too.

    Attachments are listed with the trusted key that signed them. BUNDLE is a file, a directory, or
    oci://HOST/REPOSITORY:TAG. Of a bundle in a registry only the
    manifests, the program and the targets' documents are fetched.
    """
    from aotpack_loader.archive.bundle import Bundle

    with documents(bundle, plain_http, ca_file, concurrency, mirrors) if "://" in bundle else Bundle.open(bundle) as opened:
        if as_json:
            print_json(_as_json(bundle, opened))
        else:
            _show(stdout(), bundle, opened, verbose=verbose)


def _as_json(path: str, bundle: Bundle) -> dict[str, Any]:
    """Return the contents of all documents, with the names of the format."""
    return {
        "bundle": str(path),
        "digest": bundle.digest,
        "size": total_size(bundle),
        "program": _plain(bundle.program),
        "targets": {
            name: {
                "platform": _plain(found.platform),
                "target": _plain(found.target),
                "manifest": _plain(found.manifest),
            }
            for name, found in bundle.manifests.items()
        },
        "blobs": [_plain(descriptor) for descriptor in bundle.descriptors()],
        "attachments": [asdict(row) for row in attached.rows(bundle)],
    }


def _plain(document: schema.Document | None) -> Any:
    return msgspec.to_builtins(document)


def _show(console: Console, path: str, bundle: Bundle, *, verbose: bool) -> None:
    console.print(_overview(path, bundle))
    for name, method in bundle.program.methods.items():
        console.print()
        console.print(Text.assemble((name, "bold"), f"  serves {', '.join(map(_mode, method.serves)) or 'nothing'}"))
        console.print(Padding(_inputs(method), (0, 0, 0, 2), expand=False))
        console.print(Padding(_outputs(bundle, method), (0, 0, 0, 2), expand=False))
        for line in _details(bundle, method):
            console.print(Text(f"  {line}"))
    if verbose and bundle.program.state:
        console.print()
        console.print(_state_table(bundle.program))
    console.print()
    console.print(_target_table(bundle))
    console.print()
    console.print(_blob_table(bundle))
    if bundle.has_attachments:
        console.print()
        console.print(attached.table(attached.rows(bundle)))


# ---------------------------------------------------------------- the program


def _overview(path: str, bundle: Bundle) -> Table:
    program = bundle.program
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("program", Text(program.name))
    table.add_row("bundle", Text(str(path)))
    table.add_row("digest", bundle.digest)
    table.add_row("size", f"{size_text(total_size(bundle))} in {len(bundle.descriptors())} blobs")
    table.add_row("format", f"{program.format.major}.{program.format.minor}")
    table.add_row("built with", Text(f"aotpack {program.producer.aotpack}, torch {program.producer.torch}"))
    needs = [
        f"torch {program.requirements.torch}",
        *(f"operators of {name}" for name in program.requirements.operators),
        *(f"class {name}" for name in program.requirements.subclasses),
    ]
    table.add_row("needs", Text(", ".join(needs + program.features)))
    table.add_row("state", Text(_state(program)))
    table.add_row("self-test", "recorded" if program.self_test is not None else "none")
    libraries = {f"torch {call.torch}, {call.python}" for found in bundle.targets.values() if (call := found.call) is not None}
    if libraries:
        elsewhere = "elsewhere Python makes them, which takes some 20 µs more a call"
        table.add_row("native calls", Text(f"{'; '.join(sorted(libraries))} ({elsewhere})"))
    return table


def _state(program: schema.Program) -> str:
    """Summarise the state: ``6 parameters (5 trainable, 1 tied), 3 buffers, 41.2 kB``."""
    parameters = [entry for entry in program.state if entry.kind == "parameter"]
    buffers = [entry for entry in program.state if entry.kind == "buffer"]
    notes = []
    frozen = sum(not entry.requires_grad for entry in parameters)
    tied = sum(entry.tied_to is not None for entry in program.state)
    if frozen:
        notes.append(f"{frozen} frozen")
    if tied:
        notes.append(f"{tied} tied")
    elements = sum(math.prod(entry.shape) for entry in program.state if entry.tied_to is None)
    size = sum(descriptor.size for descriptor in program.weights)
    counts = f"{_count(len(parameters), 'parameter')}, {_count(len(buffers), 'buffer')}"
    remarks = f" ({', '.join(notes)})" if notes else ""
    return f"{counts}{remarks}: {elements:,} elements, {size_text(size)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _state_table(program: schema.Program) -> Table:
    table = Table("state", "kind", "type", "", box=None, pad_edge=False, header_style="bold")
    for entry in program.state:
        notes = []
        if entry.tied_to is not None:
            notes.append(f"tied to {entry.tied_to}")
        if entry.kind == "parameter" and not entry.requires_grad:
            notes.append("frozen")
        if not entry.persistent:
            notes.append("not in the state dict")
        notes += subclass_types(entry.subclass)
        table.add_row(Text(entry.name), entry.kind, tensor_type(entry.dtype, entry.shape), Text(", ".join(notes)))
    return table


# ---------------------------------------------------------------- methods


def _mode(mode: schema.Mode) -> str:
    return f"{'train()' if mode.training else 'eval()'} {'with grad' if mode.grad else 'without grad'}"


def _details(bundle: Bundle, method: schema.Method) -> Iterator[str]:
    labels = Labels(method.symbols)
    for symbol in method.symbols:
        name, top = labels.name(symbol.name), symbol.maximum
        yield f"{name} >= {symbol.minimum}" if top is None else f"{symbol.minimum} <= {name} <= {top}"
    yield from map(labels.text, method.constraints)
    if not bundle.has(method.forward):
        yield "graphs: not fetched"
    elif method.backward is None:
        forward = len(bundle.graph(method.forward).nodes)
        yield f"graph: {_count(forward, 'operation')}"
    else:
        forward, backward = len(bundle.graph(method.forward).nodes), len(bundle.graph(method.backward.graph).nodes)
        saved = sum(isinstance(item, schema.SavedOutput) for item in method.backward.saved)
        saved_text = _count(saved, "activation")
        yield f"graphs: {_count(forward, 'operation')} forward, {backward} backward; {saved_text} saved"
    mutated = [primal_name(method, mutation.primal) for mutation in method.mutations]
    if mutated:
        more = f" and {len(mutated) - 3} more" if len(mutated) > 3 else ""
        yield f"changes in place: {', '.join(mutated[:3])}{more}"
    if method.rng == "eager":
        yield "random numbers: eager's"
    if method.autocast is not None:
        yield f"for calls under autocast to {method.autocast}"
    if method.captured_with:
        yield f"captured with {method.captured_with}"
    yield from method.notes


def _inputs(method: schema.Method) -> RichTree:
    """Return the arguments by name. The tree of a method is always ``(args, kwargs)``."""
    root = RichTree("arguments")
    leaves = map(Labels(method.symbols).text, map(argument_type, method.leaves))
    args, kwargs = getattr(method.inputs, "items", (method.inputs, schema.DictNode([], [])))
    for position, item in enumerate(getattr(args, "items", [])):
        label = method.parameters[position] if position < len(method.parameters) else f"args[{position}]"
        _grow(root, label, item, leaves)
    if isinstance(kwargs, schema.DictNode):
        for key, item in zip(kwargs.keys, kwargs.items, strict=True):
            _grow(root, str(key), item, leaves)
    if not root.children:
        root.label = "no arguments"
    return root


def _outputs(bundle: Bundle, method: schema.Method) -> RichTree:
    graph = bundle.graph(method.forward) if bundle.has(method.forward) else None
    found = ["tensor" if graph is None else result_type(method, graph, result) for result in method.results]
    leaves = map(Labels(method.symbols).text, found)
    root = RichTree("results")
    if isinstance(method.outputs, schema.LeafNode):
        root.label = Text(f"result: {next(leaves, '')}")
    else:
        root.label = Text(f"results: {_container(method.outputs)}")
        for label, item in _children(method.outputs):
            _grow(root, label, item, leaves)
    for update in method.updates:
        _grow(root, f"changes {shown(method, update.path)}:", update.tree, leaves)
    return root


def _grow(parent: RichTree, label: str, tree: schema.Tree, leaves: Iterator[str]) -> None:
    if isinstance(tree, schema.LeafNode):
        parent.add(Text(f"{label}  {next(leaves, '')}"))
        return
    if isinstance(tree, schema.GivenNode):
        parent.add(Text(f"{label}  as the caller gave it"))
        return
    branch = parent.add(Text(f"{label}  {_container(tree)}"))
    for child, item in _children(tree):
        _grow(branch, child, item, leaves)


def _container(tree: schema.Tree) -> str:
    if isinstance(tree, schema.RecordNode):
        return tree.name
    return {schema.TupleNode: "tuple", schema.ListNode: "list"}.get(type(tree), "dict")


def _children(tree: schema.Tree) -> Iterator[tuple[str, schema.Tree]]:
    if isinstance(tree, schema.DictNode):
        yield from ((repr(key), item) for key, item in zip(tree.keys, tree.items, strict=True))
    elif isinstance(tree, schema.RecordNode):
        yield from ((f".{field}", item) for field, item in zip(tree.fields, tree.items, strict=True))
    elif not isinstance(tree, (schema.LeafNode, schema.GivenNode)):
        yield from ((f"[{position}]", item) for position, item in enumerate(tree.items))


# ---------------------------------------------------------------- targets and blobs


def _target_table(bundle: Bundle) -> Table:
    table = Table("target", "platform", "instruction set", "code", "needs", box=None, pad_edge=False, header_style="bold")
    for name, found in bundle.manifests.items():
        target = found.target
        code = {blob.digest: blob.size for blob, _ in code_blobs(target)}
        table.add_row(
            Text(name),
            _platform(found.platform),
            target.instruction_set or "-",
            size_text(sum(code.values())) if code else "none: interpreted",
            Text(requirements_of(target, bundle.program)),
        )
    return table


def _platform(platform: schema.Platform | None) -> str:
    if platform is None:
        return "any"
    return "/".join(part for part in (platform.os, platform.architecture, platform.variant) if part)


def _blob_table(bundle: Bundle) -> Table:
    table = Table("blob", "size", "unpacked", "of", "digest", box=None, pad_edge=False, header_style="bold")
    table.columns[1].justify = table.columns[2].justify = "right"
    purposes = blob_purposes(bundle)
    for descriptor in bundle.descriptors():
        users = [
            name
            for name, found in bundle.manifests.items()
            if descriptor.digest in {found.descriptor.digest, *(layer.digest for layer in found.manifest.layers)}
        ]
        raw = descriptor.annotations.get(media_types.ANNOTATION_RAW_SIZE, "")
        table.add_row(
            Text(purposes.get(descriptor.digest) or media_kind(descriptor.media_type)),
            size_text(descriptor.size),
            size_text(int(raw)) if raw.isdecimal() else "",
            Text("all" if len(users) in (0, len(bundle.manifests)) else ", ".join(users)),
            descriptor.digest.removeprefix("sha256:")[:12],
        )
    return table
