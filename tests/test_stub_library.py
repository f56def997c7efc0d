"""Links to the stub import what links to torch's library import."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from aotpack._torch.inductor.toolchain import stub_library
from aotpack._torch.inductor.toolchain.stub_library import linked_to_stub

SOURCE = """
#include <exception>
#include <filesystem>
extern "C" int aoti_torch_device_type_cpu();
int unused() { return 0; }
extern "C" int used() {
  try {
    return aoti_torch_device_type_cpu() + std::filesystem::path("a/b").has_parent_path();
  } catch (...) {
    std::exception_ptr kept = std::current_exception();
    return kept != nullptr;
  }
}
"""


def link(folder: Path, made: str, *objects: str) -> str:
    """The command of a library of a graph, as Inductor writes it."""
    lib = Path(torch.__file__).parent / "lib"
    return shlex.join(["g++", *objects, "-shared", "-fPIC", "-o", str(folder / made), "-ltorch", "-ltorch_cpu", f"-L{lib}"])


@pytest.fixture
def code(tmp_path: Path) -> str:
    """An object file that uses torch's C interface, and names that libstdc++ and torch both define."""
    source, made = tmp_path / "code.cpp", tmp_path / "code.o"
    source.write_text(SOURCE)
    subprocess.run(["g++", "-std=c++20", "-fPIC", "-O1", "-c", source, "-o", made], check=True)
    return str(made)


def names(library: Path) -> set[str]:
    """The names that a library imports, with the versions that it asks for."""
    out = subprocess.run(["nm", "-D", "--undefined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in out.splitlines()}


def needed(library: Path) -> list[str]:
    out = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    return re.findall(r"NEEDED.*\[(.*)\]", out)


def test_a_link_to_the_stub_asks_for_what_a_link_to_torch_asks_for(code: str, tmp_path: Path) -> None:
    """The same libraries, and each name in the same version, or in none."""
    command = link(tmp_path, "torch.so", code)
    subprocess.run(command, shell=True, check=True)
    stubbed = linked_to_stub(command.replace("torch.so", "stub.so"), tmp_path)
    assert str(tmp_path / "stub-") in stubbed
    subprocess.run(stubbed, shell=True, check=True)
    assert names(tmp_path / "stub.so") == names(tmp_path / "torch.so")
    assert {"aoti_torch_device_type_cpu", "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv"} <= names(tmp_path / "stub.so")
    assert needed(tmp_path / "stub.so") == needed(tmp_path / "torch.so")


def test_torch_is_asked_for_even_by_code_that_calls_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "empty.c").touch()
    subprocess.run(linked_to_stub(link(tmp_path, "empty.so", str(tmp_path / "empty.c")), tmp_path), shell=True, check=True)
    assert "libtorch_cpu.so" in needed(tmp_path / "empty.so")


def test_a_stub_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = linked_to_stub(link(tmp_path, "a.so"), tmp_path)
    monkeypatch.setattr(stub_library, "_run", lambda command: pytest.fail(f"ran {command}"))
    assert linked_to_stub(link(tmp_path, "a.so"), tmp_path) == first
    assert [path.name[:5] for path in tmp_path.iterdir()] == ["stub-"]


def test_without_torchs_library_a_link_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = link(tmp_path, "a.so")
    assert linked_to_stub("g++ a.o -o a.so -lm", tmp_path) == "g++ a.o -o a.so -lm"
    monkeypatch.setattr(stub_library, "_LIBRARY", tmp_path / "libtorch_cpu.so")
    assert linked_to_stub(command, tmp_path) == command
    assert list(tmp_path.iterdir()) == []
