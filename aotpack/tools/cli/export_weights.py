"""``aotpack export-weights``: writes the weights of a bundle or a checkpoint as plain safetensors."""

from __future__ import annotations

from pathlib import Path

import click

from .console import json_option, print_json, say, size_text
from .paths import BundlePath


@click.command("export-weights", short_help="Write weights as plain safetensors.")
@click.argument("source", metavar="BUNDLE|CHECKPOINT", type=BundlePath())
@click.option("-o", "--out", required=True, metavar="FILE.safetensors", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def command(source: Path, out: Path, as_json: bool) -> None:
    """Write the weights of a bundle, or of a checkpoint, for the original model: with the names of its state dict.

    More than 5 GB become several files, FILE-00001-of-00002.safetensors and so on, with FILE.safetensors.index.json.
    """
    from ..training.export import export_weights

    report = export_weights(source, out)
    if as_json:
        print_json({"files": [str(file) for file in report.files], "tensors": report.tensors, "size": report.size})
        return
    for file in report.files:
        say(str(file))
    say(f"{report.tensors} tensors, {size_text(report.size)}")
