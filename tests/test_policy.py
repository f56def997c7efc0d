"""Policies: which bundles a machine loads, by where they come from and which keys signed them."""

from __future__ import annotations

import json
import os
import tarfile
import tomllib
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from click.testing import CliRunner
from msgspec import structs
from support.archive import PORTABLE, tiny_graph, tiny_program, write_tiny

from aotpack.signing import sign
from aotpack.tools.cli import main
from aotpack.writer.bundle import BlobStore, TargetEntry, write_bundle
from aotpack.writer.weights import write_weights
from aotpack_loader import load, policy
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError, BundleError, DirectoryError, PolicyError, TrustError
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import encode
from aotpack_loader.format.schema import Requirements
from aotpack_loader.options import LoadOptions
from aotpack_loader.selftest import run_self_test
from aotpack_loader.signing import key_store
from aotpack_loader.signing.keys import PrivateKey
from aotpack_loader.trust import record_built
from devtools.paths import ROOT
from devtools.spec import __main__ as spec

KEY, OTHER = PrivateKey.generate("ed25519"), PrivateKey.generate("ecdsa-p256")
ANY = "**"


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("AOTPACK_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("AOTPACK_POLICY", raising=False)


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "signed")
    sign(tmp_path / "signed", KEY)
    return tmp_path / "signed"


@pytest.fixture
def unsigned(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "unsigned")
    return tmp_path / "unsigned"


def write(folder: Path, *rules: dict[str, Any], version: int = 1) -> Path:
    """A policy file with these rules, and the keys beside it."""
    (folder / "acme.pub").write_bytes(KEY.public.pem)
    (folder / "other.pub").write_bytes(OTHER.public.pem)
    lines = [f"version = {version}"]
    for rule in rules:
        lines += ["[[rules]]", *(f"{name} = {json.dumps(value)}" for name, value in rule.items())]
    (folder / "policy.toml").write_text("\n".join(lines) + "\n")
    return folder / "policy.toml"


def rule(mode: str, match: str = ANY, **fields: Any) -> dict[str, Any]:
    return {"match": [match], "mode": mode, **fields}


def permitted(path: Path, file: Path, **options: Any) -> str:
    """Why the policy lets native code run; empty: it does not say."""
    with Bundle.open(path) as bundle:
        return policy.apply_policies(bundle, LoadOptions(policy=file, source=str(path), **options)).vouched


# ---------------------------------------------------------------- modes


def test_enforce_loads_what_an_accepted_key_signed(signed: Path, tmp_path: Path) -> None:
    file = write(tmp_path, rule("enforce", keys=["other.pub", "acme.pub"]))
    with torch.no_grad():
        assert load(signed, policy=file)(torch.ones(4)).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert permitted(signed, file) == f"rule 1 of {file} accepts the key 'acme.pub', which signed it"


def test_enforce_refuses_all_others_also_for_portable_graphs(signed: Path, unsigned: Path, tmp_path: Path) -> None:
    file = write(tmp_path, rule("enforce", keys=["other.pub"]))
    with Bundle.open(unsigned) as bundle:
        record_built(bundle.digest)  # that it was built here is no way around a policy
    for path in (signed, unsigned):
        for options in ({}, {"backend": "portable"}, {"trust": "all"}):
            with pytest.raises(PolicyError, match="A policy does not allow the bundle") as caught:
                load(path, policy=file, **options)  # type: ignore[arg-type]
            assert isinstance(caught.value, TrustError)
    assert "no accepted key signed it" in str(caught.value) or "it is not signed" in str(caught.value)


def test_warn_loads_with_a_warning(signed: Path, unsigned: Path, tmp_path: Path) -> None:
    file = write(tmp_path, rule("warn", keys=["acme.pub"]))
    with pytest.warns(policy.PolicyWarning, match="rule 1 of .*: keys: it is not signed") as caught:
        load(unsigned, policy=file)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(signed, policy=file)
    assert permitted(signed, file)


def test_off_demands_and_permits_nothing(signed: Path, unsigned: Path, tmp_path: Path) -> None:
    file = write(tmp_path, rule("off", keys=["missing.pub"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(unsigned, policy=file)
    assert permitted(signed, file) == ""


@pytest.mark.parametrize("trusted", [True, False])
def test_a_policy_permits_native_code(signed: Path, tmp_path: Path, trusted: bool) -> None:
    """What ``select`` asks. Digests and keys that the caller names stay final beside a policy."""
    from aotpack_loader.devices import select

    file = write(tmp_path, rule("enforce", keys=["acme.pub"]))
    other = "sha256:" + "0" * 64
    with Bundle.open(signed) as bundle:
        options = LoadOptions(policy=file, source=str(signed), trust=None if trusted else other)
        permitted = policy.apply_policies(bundle, options)
        assert (select._untrusted(bundle, permitted) == "") is trusted
        assert select._untrusted(bundle, options)  # without the policy's word


def test_a_digest_is_accepted_by_itself(unsigned: Path, signed: Path, tmp_path: Path) -> None:
    """How one bundle is let through: named by itself."""
    with Bundle.open(unsigned) as bundle:
        digest = bundle.digest
    write_tiny(tmp_path / "another", name="another")
    file = write(tmp_path, rule("enforce", keys=["other.pub"], digests=[digest]))
    assert permitted(unsigned, file) == f"rule 1 of {file} lists its digest"
    with pytest.raises(PolicyError):
        permitted(tmp_path / "another", file)
    only = write(tmp_path, rule("enforce", digests=["sha256:" + "0" * 64]))
    with pytest.raises(PolicyError, match="is not listed"):
        permitted(signed, only)


def test_a_key_may_stand_in_the_policy(signed: Path, tmp_path: Path) -> None:
    file = write(tmp_path, rule("enforce", keys=[KEY.public.pem.decode()]))
    assert permitted(signed, file) == f"rule 1 of {file} accepts the key 'key 1 of rule 1 of {file}', which signed it"


# ---------------------------------------------------------------- which rule counts


@pytest.mark.parametrize(
    ("pattern", "source", "matches"),
    [
        ("**", "/srv/m", True),
        ("/srv/*", "/srv/m", True),
        ("/srv/*", "/srv/a/m", False),
        ("/srv/**", "/srv/a/m", True),
        ("/srv/**", "/srvx/m", False),
        ("/srv/m.aotpack", "/srv/mxaotpack", False),
        ("oci://ghcr.io/acme/**", "oci://ghcr.io/acme/a/b", True),
        ("oci://ghcr.io/acme/*", "oci://ghcr.io/acme/a/b", False),
        ("oci://GHCR.io/acme/*", "oci://ghcr.IO/acme/a", True),
        ("oci://ghcr.io/acme/*", "oci://ghcr.io.evil.org/acme/a", False),
        ("oci://ghcr.io/acme/a", "oci://ghcr.io/acme/a-b", False),
        ("oci://127.0.0.1:5000/*", "oci://127.0.0.1:5000/a", True),
        ("s3://models/**", "s3://models/a.aotpack", True),
        ("**/prod/*", "oci://any.org/prod/m", True),
        ("/srv/[ab]", "/srv/a", False),
        ("/srv/*", "/srv/a\nb", True),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, source: str, matches: bool) -> None:
    file = write(tmp_path, rule("off", pattern), rule("off", "/another"))
    if matches:
        assert policy.rules_for(source, file)[0].number == 1
        return
    with pytest.raises(PolicyError, match="has no rule for"):
        policy.rules_for(source, file)


def test_the_first_rule_that_matches_counts(unsigned: Path, tmp_path: Path) -> None:
    file = write(tmp_path, rule("off", str(unsigned)), rule("enforce", keys=["acme.pub"]))
    load(unsigned, policy=file)
    file = write(tmp_path, rule("enforce", keys=["acme.pub"]), rule("off", str(unsigned)))
    with pytest.raises(PolicyError):
        load(unsigned, policy=file)


def test_without_a_rule_it_is_refused(unsigned: Path, tmp_path: Path) -> None:
    file = write(tmp_path, rule("off", "oci://**"))
    with pytest.raises(PolicyError, match=f"has no rule for {unsigned}") as caught:
        load(unsigned, policy=file)
    assert 'match = ["**"]' in caught.value.hint


def test_a_link_is_the_file_that_it_leads_to(unsigned: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(unsigned)
    file = write(tmp_path, rule("off", str(tmp_path / "link")))
    with pytest.raises(PolicyError, match="has no rule"):
        load(tmp_path / "link", policy=file)
    load(tmp_path / "link", policy=write(tmp_path, rule("off", str(unsigned))))


@pytest.mark.parametrize("directory", [False, True])
def test_a_policy_judges_the_bundle_that_is_open(unsigned: Path, signed: Path, tmp_path: Path, directory: bool) -> None:
    """Somebody else's link showed a refused bundle to the loader, and an accepted path to the policy."""
    accepted, refused = unsigned, signed
    if directory:
        accepted, refused = tmp_path / "accepted", tmp_path / "refused"
        accepted.mkdir()
        refused.mkdir()
        for path, source in ((accepted, unsigned), (refused, signed)):
            with tarfile.open(source) as archive:
                archive.extractall(path, filter="data")
    link = tmp_path / "link"
    link.symlink_to(refused)
    options = LoadOptions(policy=write(tmp_path, rule("off", str(accepted))))
    with Bundle.open(link) as bundle:
        with pytest.raises(PolicyError, match=f"has no rule for {refused}"):
            policy.apply_policies(bundle, options)
        link.unlink()
        link.symlink_to(accepted)
        with pytest.raises(BundleError, match="was replaced while it was opened"):
            policy.apply_policies(bundle, options)
        link.unlink()
        with pytest.raises(BundleError, match="was replaced while it was opened"):
            policy.apply_policies(bundle, options)
    with Bundle.open(accepted) as bundle:
        policy.apply_policies(bundle, options)


def test_a_self_test_is_of_the_bundle_that_was_checked(unsigned: Path, tmp_path: Path) -> None:
    bundle = ROOT / "tests/hostile/selftest_empty.aotpack"
    with pytest.raises(BundleError, match="was replaced while it was checked"):
        run_self_test(bundle, "portable", digest=f"sha256:{'0' * 64}")


def test_a_directory_is_no_policy_and_no_key(unsigned: Path, tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match="is not a file"):
        load(unsigned, policy=tmp_path)
    with pytest.raises(DirectoryError, match="is not a file"):
        load(unsigned, policy=write(tmp_path, rule("enforce", keys=["."])))
    with pytest.raises(DirectoryError, match="is not a file"):
        key_store.read_key(tmp_path)


def test_the_variable_and_the_argument_both_apply(signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strict, lax = tmp_path / "strict", tmp_path / "lax"
    strict.mkdir()
    lax.mkdir()
    refuses = write(strict, rule("enforce", keys=["other.pub"]))
    allows = write(lax, rule("enforce", keys=["acme.pub"]))
    load(signed, policy=allows)
    monkeypatch.setenv("AOTPACK_POLICY", str(refuses))
    for argument in (None, allows, refuses):
        with pytest.raises(PolicyError):
            load(signed, policy=argument)
    monkeypatch.setenv("AOTPACK_POLICY", str(allows))
    load(signed)
    monkeypatch.setenv("AOTPACK_POLICY", str(tmp_path / "nowhere.toml"))
    with pytest.raises(AotpackError, match="cannot be read"):
        load(signed)


# ---------------------------------------------------------------- untrusted use


def needing(path: Path, operators: list[str], subclasses: list[str]) -> Path:
    """A bundle that says that it needs operators and classes."""
    with BlobStore(path) as blobs:
        weights = write_weights([("scale", torch.arange(4.0))], blobs)
        graph = blobs.add_compressed(encode(tiny_graph()), media_types.GRAPH)
        needs = Requirements(">=2.9", operators, subclasses)
        program = structs.replace(tiny_program(graph, weights), requirements=needs)
        write_bundle(path, blobs, program, [TargetEntry(PORTABLE, None, [graph, *weights])])
    return path


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({"operators": ["a"]}, ["operators: an untrusted bundle may not require b"]),
        ({"subclasses": ["m.C"]}, []),
        ({"operators": [], "subclasses": []}, [f"{n}: an untrusted bundle may not require {w}" for n, w in
                                              (("operators", "a"), ("operators", "b"), ("subclasses", "m.C"))]),
        ({"operators": ["a", "b"], "subclasses": ["m.C", "m.D"]}, []),
    ],
)  # fmt: skip
def test_operators_and_subclasses_of_untrusted_bundles(tmp_path: Path, fields: dict[str, Any], problems: list[str]) -> None:
    path = needing(tmp_path / "m", ["a", "b"], ["m.C"])
    file = write(tmp_path, rule("enforce", **fields))
    with Bundle.open(path) as bundle:
        (judged,) = policy.judge(bundle, policy.rules_for(str(path), file))
        assert list(map(str, judged.problems)) == problems
        (judged,) = policy.judge(bundle, policy.rules_for(str(path), file), "all")
        assert judged.problems == ()  # it is trusted
        (judged,) = policy.judge(bundle, policy.rules_for(str(path), write(tmp_path, rule("off", **fields))))
        assert judged.problems == ()
    if problems:
        with pytest.raises(PolicyError, match=problems[0]):
            load(path, policy=write(tmp_path, rule("enforce", **fields)), operators=["a", "b"])


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([rule("off", key=["a"])], r"unknown field `key` - at `\$\.rules\[0\]`"),
        ([rule("on")], r"Invalid enum value 'on' - at `\$\.rules\[0\]\.mode`"),
        ([{"match": [], "mode": "off"}], r"length >= 1 - at `\$\.rules\[0\]\.match`"),
        ([{"match": "**", "mode": "off"}], "Expected `array`"),
        ([{"mode": "off"}], "missing required field `match`"),
        ([rule("enforce")], r"\$\.rules\[0\]: it demands nothing, and its mode is 'enforce'"),
        ([rule("warn")], "it demands nothing"),
        ([rule("off", "models/*")], r"\$\.rules\[0\]\.match\[0\]: 'models/\*' begins neither"),
        ([rule("off", "oci://h/r:v1")], "has a tag or a digest"),
        ([rule("off", "oci://h/r@sha256:00")], "has a tag or a digest"),
        ([rule("off", digests=["sha256:12"])], r"digests\[0\]: 'sha256:12' is no digest"),
        ([], "missing required field `rules`"),
    ],
)
def test_a_wrong_policy_is_refused(tmp_path: Path, unsigned: Path, rules: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load(unsigned, policy=write(tmp_path, *rules))


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        policy.read_policy(write(tmp_path, rule("off", "x", digests=["y"]), rule("warn")))
    assert len(caught.value.problems) == 3


def test_other_files_are_no_policies(tmp_path: Path, unsigned: Path) -> None:
    file = tmp_path / "policy.toml"
    for text in (b"rules = [", b"\xff", b"version = 2\nrules = []", b""):
        file.write_bytes(text)
        with pytest.raises(PolicyError, match="is no policy"):
            load(unsigned, policy=file)


def test_a_policy_or_key_that_others_may_write_is_refused(signed: Path, tmp_path: Path) -> None:
    file = write(tmp_path, rule("enforce", keys=["acme.pub"]))
    for path in (file, tmp_path / "acme.pub"):
        path.chmod(0o666)
        with pytest.raises(DirectoryError, match="Other users may write"):
            load(signed, policy=file)
        path.chmod(0o644)
    (tmp_path / "acme.pub").unlink()
    with pytest.raises(AotpackError, match=r"acme\.pub cannot be read"):
        load(signed, policy=file)


def test_the_json_schema_agrees(tmp_path: Path) -> None:
    """Tools that check the file while it is written say the same as the loader, as far as types go."""
    schema = json.loads((spec.ROOT / "spec/schema/policy.v1.schema.json").read_text())
    good = write(tmp_path, rule("enforce", keys=["acme.pub"], operators=[]), rule("off", "oci://**", subclasses=["m.C"]))
    jsonschema.validate(tomllib.loads(good.read_text()), schema)
    for bad in ([rule("on")], [rule("off", key=[])], [{"match": [], "mode": "off"}], []):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tomllib.loads(write(tmp_path, *bad).read_text()), schema)


# ---------------------------------------------------------------- the command line


def verify(*words: object, code: int = 0) -> dict[str, str]:
    result = CliRunner().invoke(main, ["verify", "--json", *map(str, words)])
    assert result.exit_code == code, result.output
    checks = json.loads(result.stdout)["checks"]
    return {check["name"]: f"{check['status']}: {check['detail']}" for check in checks}


def test_verify(signed: Path, unsigned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, rule("enforce", "oci://ghcr.io/**", keys=["acme.pub"]), rule("warn", "/**", keys=["acme.pub"]))
    assert verify(signed, "--policy", file)["policy"] == f"ok: rule 2 of {file} accepts the key 'acme.pub', which signed it"
    assert verify(unsigned, "--policy", file)["policy"].startswith("warning: rule 2")
    found = verify(unsigned, "--policy", file, "--as", "oci://GHCR.io/acme/m:v1", code=1)
    assert found["policy"] == f"failed: rule 1 of {file} (enforce)\nkeys: it is not signed"
    assert found["self-test"] == "skipped: nothing of a bundle that a policy refuses is run"
    assert "has no rule" in verify(unsigned, "--policy", file, "--as", "s3://x/y", code=1)["policy"]
    assert "policy" not in verify(signed)
    monkeypatch.setenv("AOTPACK_POLICY", str(file))
    assert verify(signed)["policy"].startswith("ok: ")


def test_trusted_keys_do_not_replace_a_policys_keys(signed: Path, tmp_path: Path) -> None:
    key_store.add(KEY.public, "acme")
    with pytest.raises(PolicyError):
        load(signed, policy=write(tmp_path, rule("enforce", keys=["other.pub"])))


def test_no_policy_costs_no_import(unsigned: Path) -> None:
    import subprocess
    import sys

    code = "import sys, aotpack_loader; aotpack_loader.load(sys.argv[1]); print('aotpack_loader.policy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(unsigned)], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == "False\n"
