"""The vectors show the whole format: every property, arm of a union, word of an enumeration and rule of the spec has one.

What cannot have one stands in a short list with its reason. An entry of the list that has a vector is an error, too.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.coverage import SchemaCoverage
from test_spec import documents

from aotpack_loader.errors import AotpackError
from devtools.spec import replay

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "spec"
VECTORS = SPEC / "vectors/v1"
VALID = sorted((VECTORS / "valid").iterdir())
INVALID = sorted((VECTORS / "invalid").iterdir())

WITHOUT_VALID_VECTOR = {
    **dict.fromkeys(
        ("OptimizerUpdate.sparse", "allowed/never/required: allowed", "allowed/never/required: required"),
        "vectors make no steps: tests/test_optimizers.py",
    ),
    "data/data_and_metadata/metadata/resize/storage: storage": "version 1.0 refuses it: invalid/replaced_storage has one",
}
"""Properties, arms and words that no valid vector can have, with the reason."""

RULES_WITHOUT_VECTOR = {
    "O1": "vectors call methods, and make no steps: tests/test_optimizers.py",
    "X1": "what code of two targets saves differs by what the compiler chose: tests/test_layouts.py",
    "X9": "no machine that replays vectors is known to have a GPU: tests/test_cuda_target.py",
    "X6": "a program's own views are seen by its backward alone: tests/xla",
}
"""Rules that no vector can show, with the reason."""


def coverage() -> SchemaCoverage:
    """What the valid vectors hold of the schema."""
    found = SchemaCoverage(json.loads((SPEC / "schema/v1.schema.json").read_text())["$defs"])
    for folder in VALID:
        with tarfile.open(folder / "bundle.aotpack") as archive:
            top = archive.extractfile("index.json")
            assert top is not None
            found.see("ImageIndex", json.load(top))
        for name, document in documents(folder / "bundle.aotpack"):
            found.see(name, document)
    return found


def test_every_property_arm_and_word_is_in_a_valid_vector() -> None:
    found = coverage()
    missing = found.everything - found.seen - WITHOUT_VALID_VECTOR.keys()
    assert sorted(missing) == [], "add a case to scripts/devtools/spec/cases_*.py that has each of these"
    assert WITHOUT_VALID_VECTOR.keys() & found.seen == set(), "these have a valid vector: take them off the list"
    assert WITHOUT_VALID_VECTOR.keys() <= found.everything, "the schema has these no more"


def rules() -> set[str]:
    """The numbers that the prose gives to rules."""
    prose = "\n".join(path.read_text() for path in SPEC.glob("*.md"))
    return set(re.findall(r"\*\*\(([A-Z]\d+)\)\*\*", prose))


def cited() -> set[str]:
    """The numbers that vectors cite: of valid ones what they show, of invalid ones and refused calls what they break."""
    found: set[str] = set()
    for folder in (*VALID, *INVALID):
        expect = json.loads((folder / "expect.json").read_text())
        found |= {expect["constraint"]} if "constraint" in expect else set(expect["covers"])
        found |= {call["refused"]["rule"] for call in expect.get("calls", ()) if "refused" in call}
    return found


def test_every_rule_is_cited_by_a_vector() -> None:
    assert sorted(rules() - cited() - RULES_WITHOUT_VECTOR.keys()) == []
    assert sorted(cited() - rules()) == [], "a vector cites a rule that the spec does not have"
    assert RULES_WITHOUT_VECTOR.keys() & cited() == set(), "these have a vector: take them off the list"
    assert rules() >= RULES_WITHOUT_VECTOR.keys(), "the spec has these no more"


def test_an_invalid_vector_breaks_its_rule_alone() -> None:
    """So that a reader without the rule fails it. An earlier vector that breaks two has one beside it that does not."""
    for folder in INVALID:
        rule = json.loads((folder / "expect.json").read_text())["constraint"]
        try:
            replay.load(folder)
        except AotpackError as error:
            named = set(re.findall(r"\b([A-Z]\d+):", str(error))) - {rule}
        else:
            continue  # only a trusted load on another target fails
        if rule[0] == "E":
            named -= {"C13"}  # which says where expressions are
        assert not named or (folder.parent / f"{folder.name}_alone").exists(), (folder.name, named)


def test_no_rule_is_defined_twice() -> None:
    prose = "\n".join(path.read_text() for path in SPEC.glob("*.md"))
    found = re.findall(r"\*\*\(([A-Z]\d+)\)\*\*", prose)
    assert sorted({rule for rule in found if found.count(rule) > 1}) == []


def test_every_refusal_of_a_call_names_its_rule() -> None:
    """A refused call says which rule it breaks and what kind of error it is; there are such calls for many rules."""
    refused = [call["refused"] for folder in VALID for call in _calls(folder) if "refused" in call]
    assert all(item.keys() == {"rule", "kind"} for item in refused)
    assert len({item["rule"] for item in refused}) >= 15


def test_every_member_is_described() -> None:
    """What expectations have stands in the vectors' README."""
    found = [json.loads((folder / "expect.json").read_text()) for folder in (*VALID, *INVALID)]
    members = {member for expect in found for part in (expect, *expect.get("calls", ())) for member in part}
    prose = (SPEC / "vectors/README.md").read_text()
    assert sorted(member for member in members if f"**{member}**" not in prose and f"`{member}`" not in prose) == []


def test_new_vectors_record_facts() -> None:
    """Calls of the second kind record what is seen beside elements: identity, views, strides, memory, versions."""
    facts = [call["facts"] for folder in VALID for call in _calls(folder) if "facts" in call]
    words = {key for fact in facts for item in fact.values() if isinstance(item, dict) for key in item}
    assert words >= {"is", "is_view", "base", "stride", "offset", "requires_grad", "is_leaf", "written"}
    assert any("shared_memory" in fact for fact in facts)


def _calls(folder: Path) -> list[Any]:
    found: list[Any] = json.loads((folder / "expect.json").read_text())["calls"]
    return found


# ---------------------------------------------------------------- the walk itself

SMALL = {
    "Box": {
        "properties": {
            "kind": {"enum": ["open", "shut"], "default": "shut"},
            "what": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Thing"}, {"type": "null"}], "default": None},
            "all": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}},
        },
    },
    "Thing": {"properties": {"type": {"enum": ["thing"]}, "name": {"type": "string"}}},
}


@pytest.mark.parametrize(
    ("document", "missing"),
    [
        ({}, {"Box.kind", "Box.what", "Box.all", "Thing.name", "open/shut: open", "Box.what: integer", "Box.what: Thing",
              "Box.all: string", "Box.all: array"}),
        ({"kind": "open", "what": 3, "all": ["a"]}, {"Thing.name", "Box.what: Thing", "Box.all: array"}),
        ({"kind": "open", "what": {"type": "thing", "name": "x"}, "all": [["a"], "b"]}, {"Box.what: integer"}),
    ],
)  # fmt: skip
def test_the_walk(document: Any, missing: set[str]) -> None:
    found = SchemaCoverage(SMALL)
    found.see("Box", document)
    assert found.everything - found.seen == missing
