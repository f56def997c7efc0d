"""The lists of options agree: fields, arguments, the command line, provenance, docstrings, and the starts that are recorded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import click
import pytest
from conftest import FreshProcess

import aotpack
from aotpack import capture
from aotpack.pipeline.options import FIELDS, FRONT_ENDS, Options
from aotpack.tools.cli import build, compile
from aotpack_loader import load
from aotpack_loader.opening import record_files
from aotpack_loader.options import LoadOptions

Listed = dict[str, tuple[object, str]]
"""Options by name, with their defaults and types."""

OUTSIDE_OF_COMMANDS = {"dynamic_shapes", "name", "front_ends", "cache", "layout", "entry", "observer"}
"""Options of a build that the file gives, that are for programs alone, or that commands spell otherwise (``--no-cache``)."""
NOT_RECORDED = {"out", "dynamic_shapes", "optimizer", "cache", "layout", "provenance", "sbom", "builder", "entry", "observer"}
"""Options of a build that do not decide what is in a bundle, or that its documents say elsewhere."""
OF_POLICIES = {"source", "vouched"}
NO_DEFAULT = inspect.Parameter.empty


def arguments(function: Callable[..., Any]) -> Listed:
    given = inspect.signature(function).parameters.values()
    return {one.name: (one.default, one.annotation) for one in given if one.kind is one.KEYWORD_ONLY}


def options_of_a_build() -> Listed:
    required = inspect.signature(Options).parameters
    return {name: (required[name].default, str(field.type)) for name, field in FIELDS.items()}


def parameters(command: click.Command) -> dict[str, click.Option]:
    return {str(one.name): one for one in command.params if isinstance(one, click.Option)}


def documented(function: Callable[..., Any]) -> list[str]:
    text = inspect.cleandoc(function.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    return re.findall(r"^    (\w+):", text, re.MULTILINE)


def test_a_build_takes_the_options() -> None:
    assert [*arguments(aotpack.build).items()] == [*options_of_a_build().items()]


def test_a_compilation_takes_options_of_a_build() -> None:
    own = {"trust", "subclasses"}
    found = arguments(aotpack.compile_bundle)
    assert own <= found.keys()
    assert {name: listed for name, listed in found.items() if name not in own}.items() <= options_of_a_build().items()


def test_a_load_takes_the_options() -> None:
    listed = {name: (LoadOptions._field_defaults[name], kind) for name, kind in inspect.get_annotations(LoadOptions).items()}
    shown = {name: (default, _text(kind)) for name, (default, kind) in listed.items() if name not in OF_POLICIES}
    assert [*arguments(load).items()] == [*shown.items()]
    assert listed.keys() > OF_POLICIES


def _text(kind: Any) -> str:
    """An annotation as it is written; a named tuple keeps references."""
    return kind if isinstance(kind, str) else str(kind.__forward_arg__)


@pytest.mark.parametrize("function", [aotpack.build, aotpack.compile_bundle, load])
def test_each_argument_is_explained(function: Callable[..., Any]) -> None:
    assert documented(function) == [*inspect.signature(function).parameters]


@pytest.mark.parametrize(
    ("command", "own"),
    [
        (
            build.command,
            {"directory", "no_cache", "as_json", "verbose", "lr", "optimizer_options", "ema_decay", "master_weights"},
        ),
        (compile.command, {"directory", "no_cache", "as_json", "verbose", "modules", "trust"}),
    ],
)
def test_commands_have_the_defaults_of_the_options(command: click.Command, own: set[str]) -> None:
    found = parameters(command)
    assert found.keys() - FIELDS.keys() == own
    for name in found.keys() & FIELDS.keys():
        if not found[name].required:
            assert found[name].default == FIELDS[name].default, name


def test_the_build_command_has_all_options() -> None:
    assert FIELDS.keys() - parameters(build.command).keys() == OUTSIDE_OF_COMMANDS


def test_provenance_states_what_decides_the_contents() -> None:
    assert FIELDS.keys() - Options(out="m").recorded().keys() == NOT_RECORDED


def test_recorded_options_are_as_they_were_given() -> None:
    given: Mapping[str, Any] = {"methods": None, "autocast": "bf16,none", "tune": True}
    recorded = Options(out="m", **given).recorded()
    assert {name: recorded[name] for name in given} == given


def test_front_ends_are_those_of_capture() -> None:
    assert capture.FRONT_ENDS == FRONT_ENDS


def test_other_choices_are_refused() -> None:
    several = {name: "other" for name, field in FIELDS.items() if field.metadata.get("choices")}
    assert several.keys() == {"partitioner", "rng", "branches", "layout"}
    assert {problem.where for problem in Options(out="m", **several).problems()} == several.keys()


@pytest.mark.parametrize("name", LoadOptions._fields)
def test_which_starts_are_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option is looked at: a record never serves a load that asks for something else."""
    monkeypatch.delenv(record_files.SWITCH, raising=False)
    other: Any = ["x"] if name in ("operators", "subclasses") else "x"
    assert record_files.are_used(LoadOptions())
    assert record_files.are_used(LoadOptions()._replace(**{name: other})) == (name in ("backend", "trust"))


def test_commands_import_no_torch_for_their_options(fresh_process: FreshProcess) -> None:
    code = "import json, sys; import aotpack.tools.cli; print(json.dumps(sorted(sys.modules)))"
    added = fresh_process(code, from_nothing=True)
    assert "aotpack.pipeline.options" in added
    assert "torch" not in added
