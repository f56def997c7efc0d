"""Large buffers of compiled code ask the kernel for large pages, from the second step on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import aotpack
from aotpack_loader.archive.bundle import Bundle

pytestmark = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="the kernel has no transparent large pages"
)

ELEMENTS = 4 << 20

# Prints for each of three runs whether the memory of its result was advised to have large pages ("hg").
_RUNS = f"""
import sys, torch, aotpack_loader

def advised(tensor):
    address, inside = tensor.data_ptr() + (4 << 20), False
    for line in open("/proc/self/smaps"):
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(bound, 16) for bound in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return "hg" in line.split()

model = aotpack_loader.load(sys.argv[1]).eval()
given = torch.randn({ELEMENTS})
kept = [model(given) for _ in range(3)]
assert all(torch.equal(each, kept[0]) for each in kept)
print([advised(each) for each in kept])
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("large") / "m.aotpack"
    aotpack.build(lambda x: x * 2 + 1, (torch.randn(ELEMENTS),), out=out, methods=("infer",))
    return out


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + 1


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        first: Tensor = self.inner(x)
        return first.sin()


@pytest.mark.parametrize(("setting", "advised"), [(None, [False, True, True]), ("0", [False] * 3)])
def test_large_results_have_large_pages(bundle: Path, setting: str | None, advised: list[bool]) -> None:
    assert _advised(bundle, setting) == str(advised)


def test_repeated_layers_have_large_pages_from_the_second_step_on(tmp_path: Path) -> None:
    """A step runs the code of the layer three times."""
    out = tmp_path / "m.aotpack"
    model = nn.Sequential(Layer(), Layer(), Layer())
    aotpack.build(model, (torch.randn(ELEMENTS),), out=out, methods=("infer",), regional=True)
    with Bundle.open(out) as opened:
        (target,) = opened.targets.values()
    assert [len(sequence.calls) for sequence in target.sequences.values()] == [3]
    assert _advised(out, None) == "[False, True, True]"


def _advised(bundle: Path, setting: str | None) -> str:
    """Whether the results of three steps were advised to have large pages."""
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    environment |= {} if setting is None else {"THP_MEM_ALLOC_ENABLE": setting}
    command = [sys.executable, "-c", _RUNS, os.fspath(bundle)]
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return found.stdout.strip()
