"""Trust: the ways in which native code may run, and nothing else that looks like one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aotpack_loader import trust
from aotpack_loader.archive.cache import user_directory
from aotpack_loader.errors import AotpackError, TrustError

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("AOTPACK_STATE", str(folder))
    return folder


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("all", 'the caller passed trust="all"'),
        (DIGEST, "the caller pinned its digest"),
        ([OTHER, DIGEST], "the caller pinned its digest"),
        ({DIGEST}, "the caller pinned its digest"),
    ],
)
def test_a_caller_vouches(argument: object, reason: str) -> None:
    assert trust.check_trust(DIGEST, argument) == reason  # type: ignore[arg-type]


def test_what_this_user_built_is_trusted(state: Path) -> None:
    trust.record_built(DIGEST)
    assert trust.check_trust(DIGEST, None) == "this user built it on this machine"
    assert (state / "built").stat().st_mode & 0o777 == 0o700
    assert not trust.decide_trust(OTHER, None).trusted


def test_a_stranger_is_told_every_way() -> None:
    with pytest.raises(TrustError) as caught:
        trust.check_trust(DIGEST, None)
    assert str(caught.value) == (
        "The native code of this bundle may not run: this user did not build it on this machine and the caller did "
        "not vouch for it.\n"
        "Either build the bundle as this user on this machine, or pin it: "
        f'trust="{DIGEST}" (or a collection of digests), or trust a key that signed it: '
        '`aotpack trust add KEY.pub` or trust="key:KEY.pub", or accept any bundle: trust="all". '
        "The portable target runs without trust."
    )


@pytest.mark.parametrize("argument", [OTHER, [OTHER], (OTHER,)])
def test_another_pin_is_final_even_for_a_bundle_built_here(argument: object) -> None:
    trust.record_built(DIGEST)
    with pytest.raises(TrustError, match="not one the caller pinned"):
        trust.check_trust(DIGEST, argument)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "argument",
    ["", "ALL", "yes", True, 1, [], (), b"all", "sha256:abc", DIGEST.upper(), DIGEST + "\n", ["all"], [DIGEST, 3]],
)
def test_an_argument_of_another_form_is_refused(argument: object) -> None:
    with pytest.raises(ValueError, match="is not understood") as caught:
        trust.check_trust(DIGEST, argument)  # type: ignore[arg-type]
    assert isinstance(caught.value, AotpackError)
    assert 'Pass None, "all"' in str(caught.value)


@pytest.mark.parametrize("content", ["", "0" * 64, "\N{SNOWMAN}"])
def test_a_record_of_another_machine_does_not_count(state: Path, content: str) -> None:
    trust.record_built(DIGEST)
    (state / "built" / DIGEST[7:]).write_text(content, encoding="utf-8")
    assert not trust.decide_trust(DIGEST, None).trusted


def test_a_state_directory_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trust.record_built(DIGEST)
    trust.record_built(DIGEST)  # again is no error
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(AotpackError, match="belongs to another user"):
        trust.check_trust(DIGEST, None)


@pytest.mark.parametrize("part", ["", "built"])
def test_a_directory_that_others_may_write_to_is_refused(state: Path, part: str) -> None:
    trust.record_built(DIGEST)
    (state / part).chmod(0o777)
    with pytest.raises(AotpackError, match="Other users may write"):
        trust.check_trust(DIGEST, None)
    with pytest.raises(AotpackError, match="Other users may write"):
        trust.record_built(OTHER)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"AOTPACK_STATE": "/a/b"}, "/a/b"),
        ({"AOTPACK_STATE": "", "XDG_STATE_HOME": "/x"}, "/x/aotpack"),
        ({"AOTPACK_STATE": "", "XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/aotpack"),
        ({"AOTPACK_STATE": "", "XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/aotpack"),
    ],
)
def test_where_the_record_is_kept(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(user_directory("AOTPACK_STATE", "XDG_STATE_HOME", ".local/state")) == expected
