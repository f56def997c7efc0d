"""``aotpack build``: builds a bundle from model.py, and shows the stages with their times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from aotpack.pipeline.options import Options

from .build_output import (
    TARGETS_HELP,
    build_option,
    directory_option,
    layout_of,
    no_cache_option,
    optimizer_values,
    papers_options,
    print_report,
    progress_shown,
    specialize_option,
    tune_option,
    untested_torch_option,
)
from .console import json_option, verbose_option


@click.command("build", short_help="Build a bundle from model.py.")
@click.argument("entry")
@click.option("-o", "--out", required=True, metavar="PATH", help="The bundle to write.")
@build_option("--target", "targets", multiple=True, show_default=True, metavar="NAME", help=TARGETS_HELP)
@build_option("--partitioner")
@build_option(
    "--memory-budget",
    type=click.FloatRange(0, 1),
    metavar="0..1",
    help="Share of the activations to save for the backward; the others are recomputed.",
)
@build_option(
    "--method",
    "methods",
    multiple=True,
    callback=lambda context, option, value: value or None,
    metavar="NAME",
    help="train, infer, eval (gradients in eval mode). May be repeated. Default: train, and infer where it can be built.",
)
@build_option("--rng", help="eager: dropout and the like draw eager's numbers under one seed.")
@build_option(
    "--branches",
    help="Python branches on values of tensors (bool(), item(), int()): refuse the model, or trace the branches that the "
    "example inputs take and check them at each call.",
)
@build_option(
    "--autocast",
    metavar="LIST",
    help="Autocast modes to build for: none, bf16, fp16, or several (none,bf16). A call uses its own mode. Default: none.",
)
@build_option(
    "--check/--no-check",
    show_default=True,
    help="Compare each method with the model in eager before the bundle is written, on the example inputs and on others.",
)
@build_option("--self-test/--no-self-test", help="Record inputs, outputs and gradients for `verify`.")
@build_option(
    "--warm-up",
    is_flag=True,
    help="First call a copy of the model in eager, so that caches which a first call creates exist before it is traced.",
)
@build_option(
    "--regional/--no-regional",
    help="Compile layers that a ModuleList or Sequential repeats once, so that a deep model builds faster. "
    "Default: where a model has at least 12 such layers.",
)
@build_option(
    "--optimizer",
    metavar="NAME",
    help="An optimizer of torch.optim (adamw) whose step the bundle holds, over all parameters. Default: what model.py "
    "defines as `optimizer(model)`, if it does.",
)
@click.option("--lr", type=float, metavar="NUMBER", help="The optimizer's learning rate.")
@click.option(
    "--optimizer-option",
    "optimizer_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the optimizer: weight_decay=0.1, betas=(0.9, 0.95). May be repeated.",
)
@click.option("--ema-decay", type=float, metavar="NUMBER", help="The optimizer keeps an average of the weights, with this decay.")
@click.option("--master-weights", is_flag=True, help="The optimizer updates copies in float32 of weights of half types.")
@tune_option
@build_option("--second-derivatives", is_flag=True, help="Also build gradients of gradients (create_graph=True).")
@papers_options
@specialize_option
@untested_torch_option
@no_cache_option
@directory_option
@json_option
@verbose_option
def command(
    *,
    entry: str,
    out: str,
    directory: bool,
    no_cache: bool,
    as_json: bool,
    verbose: bool,
    lr: float | None,
    optimizer_options: Sequence[str],
    ema_decay: float | None,
    master_weights: bool,
    **options: Any,
) -> None:
    """Build a bundle from ENTRY, `model.py` or `model.py:factory`.

    The file defines `model` (a module, a factory or a function) and `example_inputs()`; optionally `dynamic_shapes`,
    `optimizer(model)` and `methods`, a dict of functions of the model.
    """
    progress = progress_shown(verbose=verbose)
    with progress.stage("import"):
        import aotpack
        from aotpack.model.entry import check_file, directory_on_path, load_entry, split_spec
        from aotpack.optimizer.asked import named
        from aotpack.pipeline.preflight import check_build
    layout = layout_of(out, directory=directory)
    name, given = options.pop("optimizer"), optimizer_values(lr, optimizer_options)
    copies = {"ema_decay": ema_decay, "master_weights": master_weights}
    kept = {option: value for option, value in copies.items() if value not in (None, False)}
    if (given or kept) and name is None:
        raise click.UsageError("--lr, --optimizer-option, --ema-decay and --master-weights need --optimizer.")
    optimizer = None if name is None else named(name, given, **kept)
    check_build(Options(out=out, layout=layout, **options), lambda: check_file(split_spec(entry)[0]))
    with directory_on_path(split_spec(entry)[0]):
        with progress.stage("load", entry):
            loaded = load_entry(entry)
        options["methods"] = loaded.methods_in(options["methods"])
        report = aotpack.build(
            loaded.model,
            loaded.args,
            loaded.kwargs,
            out=out,
            layout=layout,
            dynamic_shapes=loaded.dynamic_shapes,
            name=loaded.name,
            entry=split_spec(entry)[0],
            cache=not no_cache,
            optimizer=optimizer or loaded.optimizer,
            observer=progress,
            **options,
        )
    print_report(report, as_json=as_json)
