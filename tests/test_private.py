"""Directories that another user of the machine cannot use against this one. He is played by the user nobody."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.archive import digest_of
from torch._inductor import codecache
from torch._inductor.runtime.cache_dir_utils import cache_dir as inductor_cache_dir

from aotpack._torch.inductor.toolchain import directories, stub_library
from aotpack._torch.inductor.toolchain.preprocessed_headers import preprocess
from aotpack.writer.cache import CompileCache
from aotpack_loader import trust
from aotpack_loader.archive import cache, private
from aotpack_loader.errors import DirectoryError
from aotpack_loader.format import schema
from aotpack_loader.registry.store import BlobCache

RAW = b"native code"
NOBODY = pwd.getpwnam("nobody").pw_uid

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")


def extract() -> Path:
    return cache.extract("sha256:" + "0" * 64, digest_of(RAW), len(RAW), lambda: RAW, ".so")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``above/cache`` is the cache; the test decides who owns what."""
    (tmp_path / "above").mkdir()
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "above" / "cache"))
    return tmp_path / "above"


def test_missing_ancestors_are_made_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private.private_directory(tmp_path / "a" / "b" / "c", "X")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/c")] == [0o700] * 3


@as_root
def test_an_ancestor_of_another_user_is_refused(folder: Path) -> None:
    extract()
    os.chown(folder, NOBODY, -1)
    with pytest.raises(DirectoryError, match=r"'above' above .* belongs to another user"):
        extract()


@pytest.mark.parametrize("mode", [0o707, 0o770, 0o777])
def test_an_ancestor_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    extract()
    folder.chmod(mode)
    with pytest.raises(DirectoryError, match="Other users may write to the directory 'above'"):
        extract()
    folder.chmod(0o1000 | mode)  # like /tmp: others may not replace what is ours
    assert extract().read_bytes() == RAW


@as_root
def test_a_link_of_another_user_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (folder / "cache").symlink_to(tmp_path / "real")
    assert extract().resolve().is_relative_to(tmp_path / "real")  # this user's own link
    os.chown(folder / "cache", NOBODY, -1, follow_symlinks=False)
    with pytest.raises(DirectoryError, match=r"symbolic link 'cache' of .* belongs to uid"):
        extract()


def test_links_in_a_circle_are_refused(folder: Path) -> None:
    (folder / "cache").symlink_to("other")
    (folder / "other").symlink_to("cache")
    with pytest.raises(DirectoryError, match="too many symbolic links"):
        extract()


def test_relative_links_and_parents_are_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (folder / "cache").symlink_to("../real/inner")
    assert extract().resolve().parents[2] == tmp_path / "real" / "inner"


@as_root
def test_a_planted_file_is_replaced(folder: Path) -> None:
    """Another user's file of the right content could change after it was hashed."""
    path = extract()
    os.chown(path, NOBODY, -1)
    assert extract().stat().st_uid == 0


def test_a_name_by_handle_stays_when_the_path_is_swapped(folder: Path) -> None:
    """What was hashed is what is opened: the name does not pass through the path again."""
    path = extract()
    (folder / "cache").rename(folder / "aside")
    evil = folder / "cache" / "code" / "sha256"
    evil.mkdir(parents=True)
    (evil / path.name).write_bytes(b"evil")
    assert path.read_bytes() == RAW
    assert extract() != path  # the new directory has a handle of its own


def test_a_handle_that_was_closed_is_not_reused(folder: Path) -> None:
    path = extract()
    number = int(path.parts[4])
    os.close(number)
    other = os.open("/", os.O_RDONLY)  # takes the number
    try:
        assert extract().read_bytes() == RAW
    finally:
        os.close(other)


SWAP = """
import os, sys
os.setgid(65534); os.setuid(65534)
os.chdir(sys.argv[1])
print("ready", flush=True)
while True:
    os.rename("cache", "aside"); os.rename("evil", "cache")
    os.rename("cache", "evil"); os.rename("aside", "cache")
"""


@as_root
def test_a_user_who_swaps_the_cache_gets_nothing_opened(folder: Path) -> None:
    """The attack that worked: the owner of the parent puts his own library in place between check and use."""
    evil = folder / "evil" / "code" / "sha256"
    evil.mkdir(parents=True)
    (evil / (digest_of(RAW)[7:] + ".so")).write_bytes(b"evil")
    extract()
    above = [folder, *folder.parents]
    modes = {path: path.stat().st_mode for path in above if not path.stat().st_mode & 0o005}
    for path in modes:
        path.chmod(0o755)  # he can reach it
    os.chown(folder, NOBODY, -1)
    attacker = subprocess.Popen([sys.executable, "-c", SWAP, str(folder)], stdout=subprocess.PIPE)
    try:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"ready\n"
        end = time.monotonic() + 1
        while time.monotonic() < end:
            with pytest.raises(DirectoryError, match="belongs to another user"):
                extract()
        assert attacker.poll() is None
    finally:
        attacker.kill()
        attacker.communicate()
        for path, mode in modes.items():
            path.chmod(mode)


# ---------------------------------------------------------------- the directories of a build


@as_root
def test_a_planted_inductor_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user made ``torchinductor_<user>`` before this one ran Inductor for the first time."""
    planted = tmp_path / "torchinductor"
    planted.mkdir(mode=0o755)
    os.chown(planted, NOBODY, -1)
    monkeypatch.setattr(directories, "default_cache_dir", lambda: str(planted))
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    for given in (None, str(planted)):  # Inductor sets the variable to its default
        if given:
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", given)
        with directories.private_directories():
            assert inductor_cache_dir() == str(tmp_path / "cache" / "inductor" / "aotpack")
            assert Path(codecache._HEADER_DIR).is_relative_to(tmp_path / "cache")
    assert os.listdir(planted) == []


def test_a_chosen_inductor_directory_must_be_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "chosen"))
    with directories.private_directories():
        assert inductor_cache_dir() == str(tmp_path / "chosen" / "aotpack")
        assert (tmp_path / "chosen" / "aotpack").stat().st_mode & 0o777 == 0o700
    (tmp_path / "chosen").chmod(0o777)
    with pytest.raises(DirectoryError, match="TORCHINDUCTOR_CACHE_DIR"), directories.private_directories():
        pass


# ---------------------------------------------------------------- what a cache holds


SOURCE, OPTIONS, FILES = b"source", {"target": "cpu"}, {"code": b"\x7fELF", "facts": b"{}"}
BLOB = schema.Descriptor("application/octet-stream", digest_of(RAW), len(RAW))
BUNDLE = "sha256:" + "1" * 64


def compiled() -> bool:
    """Fill the compile cache, or find what it holds."""
    found = CompileCache().find(SOURCE, OPTIONS)
    if found is None:
        CompileCache().keep(SOURCE, OPTIONS, FILES)
    return found is not None


def header_record() -> bool:
    folder = private.private_directory(cache.cache_root() / "headers", "AOTPACK_CACHE")
    header, made = folder.parent.with_name("header.hpp"), folder.parent.with_name("header.i")
    header.write_text("")
    ran = []

    def run(command: str, cwd: str) -> None:
        ran.append(command)
        made.write_text("text")
        made.with_suffix(".d").write_text(f"header.i: {header}\n")

    preprocess(f"g++ -E {header} -o {made}", "", compiler="g++ 13", folder=folder, run=run)
    return not ran


def stub() -> bool:
    folder = private.private_directory(cache.cache_root() / "headers", "AOTPACK_CACHE")
    before = stub_library._run
    ran = []
    try:
        stub_library._run = lambda command: ran.append(command) or before(command)  # type: ignore[func-returns-value]
        stub_library.linked_to_stub("g++ -ltorch_cpu", folder)
    finally:
        stub_library._run = before
    return not ran


def blob() -> bool:
    return not BlobCache().add(BLOB, lambda sink: sink.write(RAW))


def unpacked_blob() -> bool:
    store = BlobCache()
    store.add_bytes(BLOB, RAW)
    target = store.bundle(BUNDLE) / "blobs" / "sha256" / BLOB.digest[7:]
    before = os.lstat(target).st_ino if target.exists() else None
    store.link(store.bundle(BUNDLE), BLOB)
    return before == os.lstat(target).st_ino


def built_here() -> bool:
    if trust.decide_trust(BUNDLE, None).trusted:
        return True
    trust.record_built(BUNDLE)
    return False


HOLDERS = [compiled, header_record, stub, blob, unpacked_blob, built_here]


@pytest.fixture
def own_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AOTPACK_STATE", str(folder / "state"))
    return folder


@pytest.fixture
def shared_group(own_folders: Path) -> Iterator[None]:
    """The usual umask where each user has a group."""
    assert own_folders.is_dir()
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
@pytest.mark.usefixtures("shared_group")
def test_nobody_of_the_group_may_write_into_a_cache(own_folders: Path, hold: Callable[[], bool]) -> None:
    """A cache in a project's directory (``chmod g+s``) of a user with umask 002."""
    for name in ("cache", "state"):
        (own_folders / name).mkdir()
        (own_folders / name).chmod(0o2755)
    assert not hold()
    made = [path for name in ("cache", "state") for path in (own_folders / name).rglob("*")]
    assert made
    assert not [path for path in made if path.is_dir() and path.stat().st_mode & 0o077]
    assert hold()


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
def test_a_directory_of_a_cache_that_others_may_write_to_is_refused(own_folders: Path, hold: Callable[[], bool]) -> None:
    assert not hold()
    for path in [path for path in own_folders.rglob("*") if path.is_dir() and path.name != "partial"]:
        mode = path.stat().st_mode
        path.chmod(0o770)
        if any(file.is_file() for file in path.rglob("*")):
            with pytest.raises(DirectoryError, match="Other users may write"):
                hold()
        path.chmod(mode)
    assert hold()


@as_root
@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
def test_a_file_of_another_user_is_not_taken_from_a_cache(own_folders: Path, hold: Callable[[], bool]) -> None:
    """He put it there while he could write to the directory."""
    assert not hold()
    for path in own_folders.rglob("*"):
        if path.is_file():
            os.chown(path, NOBODY, -1)
    assert not hold()
    assert hold()
