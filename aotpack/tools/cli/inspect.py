"""``aotpack inspect``: shows what a bundle contains. It runs nothing of it, and imports torch for a page only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as RichTree

from aotpack_loader.errors import AotpackError
from aotpack_loader.format import schema

from ..report.describe import (
    blob_rows,
    code_blobs,
    platform_text,
    primal_name,
    producer_text,
    requirements_of,
    subclass_types,
    tensor_type,
    total_size,
)
from ..report.optimizers import optimizer_texts
from ..report.signature import Row, argument_rows, mode_text, ranges, result_rows
from ..report.text import visible
from . import attached
from .console import json_option, plain, print_bytes, print_json, say, size_text, stdout, verbose_option, write_page
from .transfers import connection_options, mirror_option, open_bundle

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle


@click.command("inspect", short_help="Show what is in a bundle.")
@click.argument("bundle")
@click.option("--html", "page", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write a page to FILE.")
@click.option("--graph", "graph", metavar="METHOD.HALF", help="Print one graph: train.forward, train.backward, infer.forward.")
@click.option("--format", "form", type=click.Choice(["text", "dot", "svg", "onnx"]), help="Of --graph.  [default: text]")
@click.option("--target", "target", metavar="NAME", help="Show the graphs of this target.  [default: those of the first]")
@mirror_option
@connection_options
@json_option
@verbose_option
def command(
    *,
    bundle: str,
    page: str | None,
    graph: str | None,
    form: str | None,
    target: str | None,
    mirrors: tuple[str, ...],
    plain_http: tuple[str, ...],
    ca_file: str,
    concurrency: int,
    as_json: bool,
    verbose: bool,
) -> None:
    """Show what is in BUNDLE: methods, signatures, state, targets, sizes. With -v, every parameter and buffer too.

    Attachments are listed with the trusted key that signed them. BUNDLE is a file, a directory,
    oci://HOST/REPOSITORY:TAG, or a URL such as s3://bucket/model.aotpack. Of a bundle in a registry
    only the manifests, the program and the targets' documents are fetched.

    --html writes one page that needs no network: signature, state, graphs by module, memory of a step, targets.
    --graph prints the operations of one graph by module; SVG needs Graphviz. ONNX is for viewers such as Netron.
    """
    if graph is None and form is not None:
        raise click.UsageError(f"--format {form} is for one graph: add --graph train.forward.")
    if graph is not None and page is not None:
        raise click.UsageError("--html writes a page of all graphs, and --graph prints one: leave one of them out.")
    with open_bundle(bundle, plain_http, ca_file, concurrency, mirrors) as found:
        opened = found if target is None else _of_target(found, target)
        if page is not None:
            _write_page(page, bundle, opened)
        elif graph is not None:
            drawn = _drawn(opened, graph, form or "text")
            print_bytes(drawn) if isinstance(drawn, bytes) else say(drawn, nl=False)
        elif as_json:
            print_json(_as_json(bundle, opened))
        else:
            _show(stdout(), bundle, opened, verbose=verbose)


def _of_target(bundle: Bundle, name: str) -> Bundle:
    if name not in bundle.targets:
        raise AotpackError(f"The bundle has no target {visible(name)!r}.", hint=f"It has: {visible(', '.join(bundle.targets))}.")
    return bundle.for_target(name)


def _write_page(path: str, name: str, bundle: Bundle) -> None:
    from ..report.html.inspect import inspect_page  # imports torch, whose version decides which targets run here

    write_page(path, inspect_page(bundle, name, attached.rows(bundle)))


def _drawn(bundle: Bundle, key: str, form: str) -> str | bytes:
    """Return one graph in the form that was asked for."""
    from ..report import drawing
    from ..report.operations import views

    name = key.rpartition(".")[0]
    keys = [f"{name}.{half}" for name, method in bundle.program.methods.items() for half in _halves(method)]
    if key not in keys:
        raise AotpackError(f"The bundle has no graph {visible(key)!r}.", hint=f"It has: {visible(', '.join(keys))}.")
    view = next((view for view in views(bundle, name).values() if view.key == key), None)
    if view is None:
        raise AotpackError(f"The graph {key} is not in this copy of the bundle.", hint="Pull the bundle, then inspect the copy.")
    if form == "text":
        return "".join(f"{line}\n" for line in drawing.as_text(view))
    if form == "onnx":
        from ..report.onnx_file import as_onnx

        return as_onnx(view)
    return drawing.as_dot(view) if form == "dot" else drawing.as_svg(view)


def _halves(method: schema.Method) -> list[str]:
    return ["forward"] if method.backward is None else ["forward", "backward"]


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
        if method.step:
            continue
        console.print()
        served = ", ".join(map(mode_text, method.serves)) or "nothing"
        of = f"  of {visible(method.function)}," if method.function else " "
        console.print(Text.assemble((visible(name), "bold"), f"{of} serves {served}"))
        console.print(Padding(_inputs(method), (0, 0, 0, 2), expand=False))
        console.print(Padding(_outputs(bundle, method), (0, 0, 0, 2), expand=False))
        for line in _details(bundle, method):
            console.print(plain(f"  {line}"))
    for optimizer in optimizer_texts(bundle.program):
        console.print()
        console.print(Text.assemble((visible(optimizer.name), "bold"), f"  {visible(optimizer.kind)}"))
        for line in optimizer.groups + optimizer.updates:
            console.print(Padding(plain(line), (0, 0, 0, 2), expand=False))
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
    table.add_row("program", plain(program.name))
    table.add_row("bundle", plain(str(path)))
    table.add_row("digest", bundle.digest)
    table.add_row("size", f"{size_text(total_size(bundle))} in {len(bundle.descriptors())} blobs")
    table.add_row("format", f"{program.format.major}.{program.format.minor}")
    table.add_row("built with", plain(producer_text(bundle)))
    needs = [
        f"torch {program.requirements.torch}",
        *(f"operators of {name}" for name in program.requirements.operators),
        *(f"class {name}" for name in program.requirements.subclasses),
    ]
    table.add_row("needs", plain(", ".join(needs + program.features)))
    shown = [name for name, found in bundle.manifests.items() if found.manifest.config.digest == bundle.config.digest]
    if others := [name for name in bundle.targets if name not in shown]:
        table.add_row("graphs", plain(f"of {', '.join(shown)}; --target {others[0]} shows its own"))
    table.add_row("state", plain(_state(program)))
    table.add_row("self-test", "recorded" if program.self_test is not None else "none")
    libraries = {f"torch {call.torch}, {call.python}" for found in bundle.targets.values() if (call := found.call) is not None}
    if libraries:
        elsewhere = "elsewhere Python makes them, which takes some 20 µs more a call"
        table.add_row("native calls", plain(f"{'; '.join(sorted(libraries))} ({elsewhere})"))
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
        table.add_row(plain(entry.name), entry.kind, tensor_type(entry.dtype, entry.shape), plain(", ".join(notes)))
    return table


# ---------------------------------------------------------------- methods


def _details(bundle: Bundle, method: schema.Method) -> Iterator[str]:
    yield from ranges(method)
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


def _tree(title: str, rows: Sequence[Row]) -> RichTree:
    root = RichTree(visible(title))
    for row in rows:
        _grow(root, row)
    return root


def _grow(parent: RichTree, row: Row) -> None:
    branch = parent.add(plain(f"{row.label}  {row.text}"))
    for child in row.children:
        _grow(branch, child)


def _inputs(method: schema.Method) -> RichTree:
    rows = argument_rows(method)
    return _tree("arguments" if rows else "no arguments", rows)


def _outputs(bundle: Bundle, method: schema.Method) -> RichTree:
    result, *changes = result_rows(bundle, method)
    leaf = isinstance(method.outputs, schema.LeafNode)
    title = f"result: {result.text}" if leaf else f"results: {result.text}"
    return _tree(title, [*result.children, *(Row(f"{row.label}:", row.text, row.children) for row in changes)])


# ---------------------------------------------------------------- targets and blobs


def _target_table(bundle: Bundle) -> Table:
    table = Table("target", "platform", "instruction set", "code", "needs", box=None, pad_edge=False, header_style="bold")
    for name, found in bundle.manifests.items():
        target = found.target
        code = {blob.digest: blob.size for blob, _ in code_blobs(target)}
        table.add_row(
            plain(name),
            platform_text(found.platform),
            target.instruction_set or "-",
            size_text(sum(code.values())) if code else "none: interpreted",
            plain(requirements_of(target, bundle.program)),
        )
    return table


def _blob_table(bundle: Bundle) -> Table:
    table = Table("blob", "size", "unpacked", "of", "digest", box=None, pad_edge=False, header_style="bold")
    table.columns[1].justify = table.columns[2].justify = "right"
    for blob in blob_rows(bundle):
        table.add_row(
            plain(blob.purpose),
            size_text(blob.size),
            "" if blob.raw is None else size_text(blob.raw),
            plain(blob.users),
            blob.digest.removeprefix("sha256:")[:12],
        )
    return table
