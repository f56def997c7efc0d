"""The spec is true: its examples decode, its schemas are those of the loader, its hex dump is that of a real bundle."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import torch

from aotpack_loader.archive import compression
from aotpack_loader.archive.bundle import Bundle, raw_size
from aotpack_loader.devices.operators import BUILTINS
from aotpack_loader.format import media_types, schema
from devtools.spec import __main__ as generator

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "spec"

PAGES = sorted(SPEC.rglob("*.md"))
BUNDLES = sorted((SPEC / "vectors/v1/valid").glob("*/bundle.aotpack"))
_EXAMPLE = re.compile(r"(<!-- example: (?P<type>\w+)(?: of (?P<vector>\w+))? -->\n)?```json\n(?P<json>.*?)```", re.DOTALL)


OTHERS = {kind.__name__: (kind, name) for name, (kind, _) in generator.OTHERS.items()}
"""Types of documents that are in no bundle, with their schemas."""


def examples() -> Iterator[Any]:
    for page in PAGES:
        for found in _EXAMPLE.finditer(page.read_text()):
            line = page.read_text()[: found.start()].count("\n") + 1
            yield pytest.param(page, found, id=f"{page.relative_to(SPEC)}:{line}")


def validator(name: str) -> Any:
    if name in OTHERS:
        return jsonschema.Draft202012Validator(json.loads((SPEC / f"schema/{OTHERS[name][1]}.schema.json").read_text()))
    document = json.loads((SPEC / "schema/v1.schema.json").read_text())
    return jsonschema.Draft202012Validator({**document, "$ref": f"#/$defs/{name}", "anyOf": [True]})


# ---------------------------------------------------------------- examples


@pytest.mark.parametrize(("page", "found"), list(examples()))
def test_example(page: Path, found: re.Match[str]) -> None:
    """Every JSON block names its type, decodes as it, and is canonical: no unknown field, no default written out."""
    assert found["type"], f"a JSON block of {page} is not marked with <!-- example: TypeName -->"
    written = json.loads(found["json"])
    kind = OTHERS[found["type"]][0] if found["type"] in OTHERS else getattr(schema, found["type"])
    decoded = msgspec.json.decode(json.dumps(written), type=kind)
    assert json.loads(msgspec.json.encode(decoded)) == written
    if found["type"] in OTHERS or found["type"] in json.loads((SPEC / "schema/v1.schema.json").read_text())["$defs"]:
        validator(found["type"]).validate(written)
    if found["vector"]:
        assert written in [document for _, document in documents(SPEC / f"vectors/v1/valid/{found['vector']}/bundle.aotpack")]


def test_there_are_examples() -> None:
    assert len(list(examples())) >= 15


# ---------------------------------------------------------------- schemas


def test_schema_is_in_step() -> None:
    assert generator.check() == []


def documents(path: Path) -> list[tuple[str, Any]]:
    """Every JSON document of a bundle with the name of its type."""
    kinds = {
        media_types.OCI_INDEX: "ImageIndex",
        media_types.OCI_MANIFEST: "Manifest",
        media_types.PROGRAM: "Program",
        media_types.TARGET: "Target",
        media_types.GRAPH: "Graph",
        media_types.ORIGINS: "Origins",
    }
    with Bundle.open(path) as bundle:
        found = []
        for descriptor in bundle.descriptors():
            if descriptor.media_type not in kinds:
                continue
            data = bytes(bundle.read(descriptor))
            if descriptor.media_type.endswith("+zstd"):
                data = compression.decompress(data, raw_size(descriptor))
            found.append((kinds[descriptor.media_type], json.loads(data)))
        return found


@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.parent.name)
def test_real_documents_hold_the_json_schema(path: Path) -> None:
    found = documents(path)
    assert {name for name, _ in found} - {"Origins"} == {"ImageIndex", "Manifest", "Program", "Target", "Graph"}
    for name, document in found:
        validator(name).validate(document)


def test_json_schema_refuses_what_the_loader_refuses() -> None:
    (program,) = [
        document for name, document in documents(SPEC / "vectors/v1/valid/attention/bundle.aotpack") if name == "Program"
    ]
    for change in (
        lambda d: d.pop("format"),
        lambda d: d["state"].append({}),
        lambda d: d["methods"]["train"].update(results=[{"type": "nothing"}]),
        lambda d: d["weights"][0].update(digest="sha256:00"),
    ):
        broken = copy.deepcopy(program)
        change(broken)
        assert not validator("Program").is_valid(broken)
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(json.dumps(broken), type=schema.Program)
    validator("Program").validate(program | {"a_field_of_a_later_version": 1})


# ---------------------------------------------------------------- the lock


def changed(edit: Any, version: str = "1.0") -> list[str]:
    """What the lock says about the schema after ``edit``."""
    old = generator.lock(generator.json_schema(), json.loads(generator.LOCK.read_text()))
    old["format"] = "1.0"
    new = copy.deepcopy(old)
    edit(new["types"])
    return generator.unaccounted(old, new | {"format": version, "checksum": "other"})


def test_lock_asks_for_a_minor_version_for_a_new_optional_field() -> None:
    def edit(types: Any) -> None:
        types["Program"]["fields"]["licence"] = {"kind": "optional", "checksum": "0"}

    assert changed(edit) == [
        "Program.licence is a new optional field. This requires a new minor version; the version is still 1.0."
    ]
    assert changed(edit, "1.1") == []


def test_lock_asks_for_a_feature_for_a_new_arm() -> None:
    def edit(types: Any) -> None:
        types["NewPrimal"] = {"tag": "new", "fields": {}}
        types["Method"]["fields"]["primals"]["checksum"] = "0"

    found = changed(edit)
    assert len(found) == 2
    assert all("a feature flag (Program.features) and a new minor version" in line for line in found)


@pytest.mark.parametrize(
    "edit",
    [
        lambda types: types["Program"]["fields"].pop("weights"),
        lambda types: types.pop("Symbol"),
        lambda types: types["Program"]["fields"].update(licence={"kind": "required", "checksum": "0"}),
        lambda types: types["Program"]["fields"]["weights"].update(kind="required"),
        lambda types: types["LeafNode"].update(tag="leaves"),
    ],
)
def test_lock_asks_for_a_major_version(edit: Any) -> None:
    found = changed(edit, "1.1")
    assert len(found) == 1
    assert "requires a new major version" in found[0]
    assert changed(edit, "2.0") == []


# ---------------------------------------------------------------- prose against code


def test_hex_dump_is_of_the_real_bundle() -> None:
    data = (SPEC / "vectors/v1/valid/scale/bundle.aotpack").read_bytes()
    lines = re.findall(r"^([0-9a-f]{8})  ((?:[0-9a-f]{2} ?){1,16})", (SPEC / "container.md").read_text(), re.MULTILINE)
    assert len(lines) > 10
    for offset, octets in lines:
        wanted = bytes.fromhex(octets)
        assert data[int(offset, 16) :][: len(wanted)] == wanted, offset


def test_every_builtin_is_described() -> None:
    described = set(re.findall(r"`builtin\.(\w+)", (SPEC / "graph.md").read_text()))
    assert described == set(BUILTINS)


def test_every_field_is_described() -> None:
    """Each property of each document stands in the spec in backquotes, at least once."""
    prose = "\n".join(path.read_text() for path in PAGES)
    words = {word for code in re.findall(r"`([^`\n]+)`", prose) for word in re.findall(r"[\w.]+", code)}
    lock = json.loads((SPEC / "schema/v1.lock.json").read_text())
    missing = {f"{name}.{field}" for name, kind in lock["types"].items() for field in kind["fields"] if field not in words}
    assert missing == set()


def test_every_media_type_and_annotation_is_described() -> None:
    prose = "\n".join(path.read_text() for path in PAGES)
    values = [value for name, value in vars(media_types).items() if name.isupper() and isinstance(value, str)]
    assert [value for value in values if value not in prose] == []


_KINDS = [
    [torch.bool],
    [torch.int8, torch.int64],
    [torch.float16, torch.float32, torch.float64],
    [torch.complex64, torch.complex128],
]
_NUMBERS = {True: torch.bool, 2: torch.int64, 2.5: torch.float32, 2j: torch.complex64}
_TYPES = [dtype for kind in _KINDS for dtype in kind]


@pytest.mark.parametrize("first", _TYPES, ids=str)
def test_ranks_of_operands_decide_a_type(first: torch.dtype) -> None:
    """graph.md, numbers beside tensors: the rule in words is ``torch.result_type``."""

    def kind(dtype: torch.dtype) -> int:
        return next(number for number, kind in enumerate(_KINDS) if dtype in kind)

    def decided(above: torch.dtype, below: torch.dtype) -> torch.dtype:
        if kind(below) <= kind(above):
            return above
        return above.to_complex() if kind(below) == 3 and kind(above) == 2 else below

    wide, single = torch.ones(2, dtype=first), torch.ones((), dtype=first)
    for dtype in _TYPES:
        assert torch.result_type(wide, torch.ones((), dtype=dtype)) == decided(first, dtype)
    for number, dtype in _NUMBERS.items():
        assert torch.result_type(wide, number) == torch.result_type(single, number) == decided(first, dtype)


def test_each_page_says_who_may_skip_it() -> None:
    pages = [page for page in SPEC.glob("*.md") if page.name != "README.md"]
    assert [page.name for page in pages if "may skip" not in page.read_text()] == []


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_tests_that_the_threat_model_names_exist() -> None:
    """A promise of spec/security.md names the tests that show it."""
    text = (ROOT / "spec/security.md").read_text()
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", text))
    assert len(named) > 30
    files = (ROOT / "tests").rglob("test_*.py")
    defined = {name for file in files for name in re.findall(r"^def (test_[a-z0-9_]+)", file.read_text(), re.MULTILINE)}
    assert sorted(named - defined) == []
