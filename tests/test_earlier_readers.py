"""A reader of an earlier minor version refuses a vector of today, or computes what the vector says (V2 to V4).

Such a reader is made from today's: it takes no feature that its version lacks, and it never sees a property that its
version lacks. That is what V3 says it does.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import UnsupportedVersionError
from aotpack_loader.format import codec, features, schema, versions
from devtools.spec.calls import MismatchError
from devtools.spec.replay import BUNDLE, replay_valid

ROOT = Path(__file__).resolve().parent.parent
ADDED: dict[str, str] = json.loads((ROOT / "spec/schema/v1.lock.json").read_text())["added"]
VALID = sorted((ROOT / "spec/vectors/v1/valid").iterdir())
KNOWN: dict[int, frozenset[str]] = {
    0: frozenset(),
    1: versions.KNOWN_FEATURES - {versions.FUNCTIONS, versions.MODULE_FLAGS, versions.RESULT_SOURCES, versions.STATE_WRITES},
}
"""The features of the readers of each earlier minor version."""
SILENT = {"flags", "result_sources"}
"""Vectors of 1.1 that a reader of 1.0 takes and runs otherwise: the fault that V4 ends. No program of 1.2 does that."""


def lacks(name: str, minor: int) -> bool:
    return name in ADDED and int(ADDED[name].partition(".")[2]) > minor


def as_seen(value: Any, minor: int) -> Any:
    """``value`` of a document without the properties that a reader of 1.``minor`` lacks."""
    if isinstance(value, list):
        return [as_seen(item, minor) for item in value]
    if isinstance(value, dict):
        return {key: as_seen(item, minor) for key, item in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    kind = type(value).__name__
    assert not lacks(kind, minor), f"{kind} cannot be decoded, and no feature says so"
    changed = {}
    for field in structs.fields(value):
        if not lacks(f"{kind}.{field.encode_name}", minor):
            changed[field.name] = as_seen(getattr(value, field.name), minor)
        else:
            changed[field.name] = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return structs.replace(value, **changed)


@pytest.fixture(params=sorted(KNOWN))
def minor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Today's loader reads as one of this minor version."""
    earlier: int = request.param

    def decode(data: Any, kind: Any, *, where: str) -> Any:
        found = codec.decode(data, kind, where=where)
        if isinstance(found, schema.Program):
            versions.check_version(found)  # before it decodes the rest
        return as_seen(found, earlier)

    monkeypatch.setattr(versions, "KNOWN_FEATURES", KNOWN[earlier])
    for module in ("aotpack_loader.archive.bundle.decode", "aotpack_loader.archive.manifests.decode"):
        monkeypatch.setattr(module, decode)
    return earlier


@pytest.mark.parametrize("folder", VALID, ids=lambda folder: folder.name)
def test_an_earlier_reader_is_right_or_refuses(folder: Path, minor: int) -> None:
    if minor == 0 and folder.name in SILENT:
        with pytest.raises((MismatchError, AttributeError)):  # a reader of 1.0 shows no submodules
            replay_valid(folder)
        return
    with contextlib.suppress(UnsupportedVersionError):
        assert replay_valid(folder) > 0


def test_programs_of_today_declare_what_they_use() -> None:
    """So that no program of 1.2 is among SILENT."""
    for folder in VALID:
        with Bundle.open(folder / BUNDLE) as bundle:
            program = bundle.program
        if program.format.minor >= 2:
            assert set(features.used(program)) <= set(program.features), folder.name


def test_every_feature_has_an_entry() -> None:
    assert {feature.name for feature in features.FEATURES} | {versions.OWN_GRAPHS} == versions.KNOWN_FEATURES
