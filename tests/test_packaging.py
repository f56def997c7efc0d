"""What both distributions say of themselves, read from their pyproject.toml: no network, nothing is built."""

from __future__ import annotations

import importlib.metadata
import json
import tarfile
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import aotpack
import aotpack_loader
from aotpack._torch.fixes.register import INDUCTOR_SUPPORTED, SUPPORTED
from devtools.files import import_file

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = {"aotpack": ROOT, "aotpack_loader": ROOT / "loader"}
MODULES = {"aotpack": aotpack, "aotpack_loader": aotpack_loader}
VENDORED = "aotpack/tools/report/html/vendor/vendor.json"


@pytest.fixture(params=DISTRIBUTIONS)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def settings(package: str) -> dict[str, Any]:
    return tomllib.loads((DISTRIBUTIONS[package] / "pyproject.toml").read_text())


def test_the_names_and_versions_agree(package: str) -> None:
    project = settings(package)["project"]
    assert project["name"] == package.replace("_", "-")
    assert project["version"] == MODULES[package].__version__


def test_what_a_registry_shows_is_there(package: str) -> None:
    project, folder = settings(package)["project"], DISTRIBUTIONS[package]
    assert project["description"]
    assert (folder / project["readme"]).read_text().startswith("# ")
    vendored = {library["licence"] for library in json.loads((folder / VENDORED).read_text())} if package == "aotpack" else set()
    assert set(project["license"].split(" AND ")) == {"Apache-2.0", *vendored}
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= set(project["classifiers"])
    assert not [each for each in project["classifiers"] if each.startswith("License ::")]  # PEP 639: the expression says it


def test_both_distributions_hold_the_licence() -> None:
    for package, folder in DISTRIBUTIONS.items():
        patterns = settings(package)["project"]["license-files"]
        listed = {path for pattern in patterns for path in folder.glob(pattern)}
        assert listed == {folder / "LICENSE", *(folder / "aotpack").rglob("*.LICENSE.txt")}
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_files_that_are_no_modules_are_packaged(package: str) -> None:
    folder = DISTRIBUTIONS[package]
    patterns = settings(package)["tool"]["setuptools"]["package-data"][package]
    named = {file for each in patterns for file in (folder / package).glob(each) if file.is_file()}
    others = {
        file
        for file in (folder / package).rglob("*")
        if file.is_file() and file.suffix not in {".py", ".pyc"} and "__pycache__" not in file.parts
    }
    assert named == others
    assert folder / package / "py.typed" in named


def test_every_package_is_found(package: str) -> None:
    folder = DISTRIBUTIONS[package]
    include = settings(package)["tool"]["setuptools"]["packages"]["find"]["include"]
    found = set(setuptools.find_packages(str(folder), include=include))
    modules = {file.parent for file in (folder / package).rglob("*.py")}
    assert found == {str(each.relative_to(folder)).replace("/", ".") for each in modules}


def test_the_loader_takes_every_torch_of_the_compiler() -> None:
    """The bound is the newest release that was tried; the gate refuses builds on the ones between that were not."""
    compiler, loader = (settings(package)["project"] for package in DISTRIBUTIONS)
    assert requirement(compiler, "torch") == SpecifierSet(">=2.11,<2.16")
    assert requirement(loader, "torch") == SpecifierSet(">=2.9,<2.16"), "torch_xla has no release for a later torch than 2.9"
    supported = [Version(release) for release in (*SUPPORTED, *INDUCTOR_SUPPORTED)]
    assert all(release in requirement(compiler, "torch") for release in supported)
    assert max(supported) == Version("2.15"), "raise the compiler's bound with the register"
    assert requirement(compiler, "aotpack-loader") == SpecifierSet(f"=={loader['version']}")
    assert compiler["requires-python"] == loader["requires-python"]


def requirement(project: dict[str, Any], name: str) -> SpecifierSet:
    [found] = [each.specifier for each in map(Requirement, project["dependencies"]) if each.name == name]
    return found


def test_extras_name_distributions_and_extras_that_exist() -> None:
    extras = {
        settings(package)["project"]["name"]: settings(package)["project"]["optional-dependencies"] for package in DISTRIBUTIONS
    }
    for every in extras.values():
        for requirements in every.values():
            for each in map(Requirement, requirements):
                assert each.extras <= set(extras.get(each.name, {})), each
                assert each.name in extras or each.specifier


def test_commands_and_targets_exist() -> None:
    project = settings("aotpack")["project"]
    points = [*project["scripts"].values(), *project["entry-points"]["aotpack.targets"].values()]
    for point in points:
        module, _, attribute = point.partition(":")
        assert hasattr(import_module(module), attribute), point


def test_what_is_imported_is_declared() -> None:
    """Dependencies of the environment that the tests run in: each that is declared is there, at a version that is allowed."""
    for package in DISTRIBUTIONS:
        for each in map(Requirement, settings(package)["project"]["dependencies"]):
            assert each.specifier.contains(importlib.metadata.version(each.name), prereleases=True), each


def test_equal_source_distributions_are_equal_bytes(tmp_path: Path) -> None:
    release_check = import_file(ROOT / "scripts" / "release_check.py", "release_check")
    (tmp_path / "b.py").write_text("b")
    (tmp_path / "a.py").write_text("a")
    made = []
    for time, names in ((1_000_000_000, ["a.py", "b.py"]), (1_500_000_000, ["b.py", "a.py"])):
        archive = tmp_path / f"{time}.tar.gz"
        with tarfile.open(archive, "w:gz") as file:
            for each in names:
                member = file.gettarinfo(tmp_path / each, each)
                member.mtime, member.uid = time, time % 1000
                with (tmp_path / each).open("rb") as data:
                    file.addfile(member, data)
        release_check.repack(archive, 1_700_000_000)
        made.append(archive.read_bytes())
    assert made[0] == made[1]
