"""Bundles for GPUs where there is none: NVIDIA's tools read kernels, and Triton's interpreter runs them under the host's code.

Triton compiles in one process and interprets in another, because a variable decides for all of a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.layout import open_layout
from aotpack_loader.format import schema

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: scripts/setup-cuda")
if find_spec("triton") is not None:
    from .cubins import problems

ROOT = Path(__file__).resolve().parents[2]
MODELS = """
    import json, re, sys
    from pathlib import Path
    import torch
    from torch import nn
    import torch.nn.functional as F
    import aotpack

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.n, self.b = nn.Linear(64, 256), nn.LayerNorm(256), nn.Linear(256, 10)

        def forward(self, x, y):
            return F.cross_entropy(self.b(F.gelu(self.n(self.a(x)))), y)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, x):
            return self.inner(x, x, x, need_weights=False)[0].square().mean()

    class Pictures(nn.Module):
        def __init__(self):
            super().__init__()
            first = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
            self.layers = nn.Sequential(*first, nn.Flatten(), nn.Linear(72, 4))

        def forward(self, x):
            return self.layers(x).logsumexp(1).sum()

    class Sizes(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(40, 16), nn.Linear(16, 3)

        def forward(self, x):
            return self.out(self.table(x).mean(1)).softmax(-1).square().sum()

    def made(name):
        torch.manual_seed(0)
        made = globals()[name]()
        x = {"Mlp": lambda: (torch.randn(32, 64), torch.randint(10, (32,))), "Attention": lambda: (torch.randn(2, 8, 32),),
             "Pictures": lambda: (torch.randn(2, 3, 8, 8),), "Sizes": lambda: (torch.randint(40, (6, 5)),)}[name]()
        return made, x
"""
BUILD = """
    from cuda.simulator import sources_kept
    import aotpack._torch.inductor.cuda.lowering as lowering

    name, out, edit, targets = sys.argv[1:5]
    if edit:
        old, new = edit.split("->")
        finished = lowering._CudaLibrary.finished

        def edited(library, wrapper):
            text, count = re.subn(old, new, finished(library, wrapper))
            assert count, text[-3000:]
            return text

        lowering._CudaLibrary.finished = edited
    model, inputs = made(name)
    optimizer = (lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)) if name == "Mlp" else None
    shapes = [{0: torch.export.Dim("rows", min=2, max=64)}] if name == "Sizes" else None
    with sources_kept() as sources:
        kept = {"cache": not edit, "optimizer": optimizer}
        aotpack.build(model, inputs, out=out, targets=targets.split(","), dynamic_shapes=shapes, **kept)
    Path(out + ".json").write_text(json.dumps(sources))
    print(json.dumps(len(sources)))
"""
RUN = """
    from cuda.simulator import simulated

    name, path = sys.argv[1:3]
    model, inputs = made(name)
    folder = Path(path).parent / "driver"
    folder.mkdir(exist_ok=True)
    with simulated(folder, json.loads(Path(path + ".json").read_text())) as driver:
        loaded = aotpack.load(path, backend="cuda:sm80", trust="all")
        worst = 0.0
        for rows in (2, 0):
            given = [x[:rows] if rows else x for x in inputs] if name == "Sizes" else inputs
            there, here = loaded(*given), model(*given)
            there.backward()
            here.backward()
            pairs = [(there, here), *zip(loaded.buffers(), model.buffers(), strict=True)]
            pairs += [(a.grad, b.grad) for a, b in zip(loaded.parameters(), model.parameters(), strict=True)]
            worst = max(worst, *(float((a.double() - b.double()).abs().nan_to_num(nan=1e9).max()) for a, b in pairs))
        if name == "Mlp":
            before = len(driver.launches)
            mine, eager = loaded.aotpack.optimizer(), torch.optim.AdamW(model.parameters(), lr=0.01)
            for step in range(3):
                for optimizer in (mine, eager):
                    optimizer.param_groups[0]["lr"] /= 2
                    optimizer.step()
            assert len(driver.launches) > before
            pairs = zip(loaded.parameters(), model.parameters(), strict=True)
            worst = max(worst, *(float((a - b).detach().abs().nan_to_num(nan=1e9).max()) for a, b in pairs))
    print(json.dumps([worst, len(driver.launches)]))
"""

COMPILE = """
    aotpack.compile_bundle(sys.argv[1], out=sys.argv[2], targets=sys.argv[3].split(","))
    print("null")
"""

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(code, *arguments)``: run code in a process of its own, and return the JSON that it printed last."""

    def of(code: str, *arguments: object, refused: str = "", **given: str) -> Any:
        paths = [ROOT / "tests", ROOT / "scripts", ROOT, ROOT / "loader"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1", **given}
        text = textwrap.dedent(MODELS) + textwrap.dedent(code)
        command = [sys.executable, "-W", "ignore", "-c", text, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if refused:
            assert done.returncode == 1
            assert refused in done.stderr, done.stderr[-4000:]
            return None
        assert done.returncode == 0, done.stderr[-6000:]
        return json.loads(done.stdout.splitlines()[-1])

    return of


@pytest.mark.parametrize("name", ["Mlp", "Attention", "Pictures", "Sizes"])
def test_a_step_as_in_eager(tmp_path: Path, run: Run, name: str) -> None:
    bundle = tmp_path / "m.aotpack"
    assert run(BUILD, name, bundle, "", "cuda:sm80") > 0
    worst, launches = run(RUN, name, bundle, TRITON_INTERPRET="1")
    assert launches > 0
    assert worst < 2e-6


PLANTED = {
    "another grid": (r"uint32_t grid_0 = xnumel;->uint32_t grid_0 = xnumel + 1;", "blocks, and its rule gives"),
    "other threads": (r"grid_2, \d+, AOTPACK->grid_2, 16, AOTPACK", "is launched with 512 threads"),
    "another number of elements": (r"(int32_t var_\d+ = xnumel);->\1 + 1000000;", "blocks, and its rule gives"),
    "a missing argument": (r"(CUdeviceptr var_\d+ = )reinterpret_cast<CUdeviceptr>\(in_ptr0.data_ptr\(\)\)->\g<1>0", "is at 0x0"),
}
"""Faults of the code that launches kernels, as changes of its source, and what is seen of them."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_in_host_code_is_seen(tmp_path: Path, run: Run, name: str) -> None:
    edit, seen = PLANTED[name]
    bundle = tmp_path / "m.aotpack"
    run(BUILD, "Mlp", bundle, edit, "cuda:sm80")
    run(RUN, "Mlp", bundle, refused=seen, TRITON_INTERPRET="1")


def test_swapped_arguments_give_other_numbers(tmp_path: Path, run: Run) -> None:
    """The second and third of a kernel with many: vectors of one length."""
    bundle, one = tmp_path / "m.aotpack", r"(&var_\d+)"
    run(BUILD, "Mlp", bundle, r"\{" + ", ".join([one] * 6) + r"->{\1, \3, \2, \4, \5, \6", "cuda:sm80")
    assert run(RUN, "Mlp", bundle, TRITON_INTERPRET="1")[0] > 1e-3


def test_builds_for_several_architectures(tmp_path: Path, run: Run) -> None:
    first, again = tmp_path / "a.aotpack", tmp_path / "b.aotpack"
    run(BUILD, "Mlp", first, "", "portable,cuda")
    run(BUILD, "Mlp", again, "", "portable", AOTPACK_CACHE=str(tmp_path / "c"), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "i"))
    added = tmp_path / "c.aotpack"
    elsewhere = {"AOTPACK_CACHE": str(tmp_path / "c"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "i")}
    run(COMPILE, again, added, "cuda", **elsewhere)
    with Bundle(open_layout(first)) as one, Bundle(open_layout(added)) as other:
        assert one.targets.keys() == {"portable", "cuda:sm80", "cuda:sm90"}
        for name in ("cuda:sm80", "cuda:sm90"):
            made = one.targets[name]
            assert other.targets[name].executables == made.executables, (
                "bytes depend on neither caches, folders nor the model's source"
            )
            assert made.gpu is not None
            for code in made.executables.values():
                for kernel, found in code.kernels.items():
                    cubin = one.code(found.code).read_bytes()
                    assert not problems(kernel, name[5:], cubin, found.warps, found.shared, found.arguments)
                    assert (found.ptx is not None) == (name == "cuda:sm80"), "the lowest has PTX, too"
        host = [{code.code.digest for code in one.targets[name].executables.values()} for name in ("cuda:sm80", "cuda:sm90")]
        assert host[0] == host[1], "one host library for both"
        assert one.targets["cuda:sm80"].gpu == schema.Gpu("8.0", "12.0", ptx="8.7", ptx_driver="12.8")
        assert one.targets["cuda:sm90"].gpu == schema.Gpu("9.0", "12.0", is_exact=True)


def test_what_nvidias_tools_say_of_planted_faults() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        problems("triton_0", "sm80", b"\x7fELF torn", 4, 0, [])
