"""What malloc does with the memory of a step on XLA's CPU device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from conftest import FreshProcess

import aotpack

pytestmark = pytest.mark.skipif(
    os.confstr("CS_GNU_LIBC_VERSION") is None or os.environ.get("PJRT_DEVICE") != "CPU", reason="glibc's malloc, XLA's CPU device"
)

ROWS = 5 << 20
"""Of float32: 20 MB, more than the quarter and less than the half of a heap."""

FAULTS = """
    import json, resource, sys
    import torch
    from aotpack_loader import load

    model = load(sys.argv[1], device="xla").eval()
    import torch_xla
    import torch_xla.core.xla_model as xla_model

    x = torch.ones(int(sys.argv[2]), device="xla")
    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with torch.no_grad():
            results = model(x)
        xla_model.wait_device_ops()
        del results
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    print(json.dumps([faults() for _ in range(12)]))
"""


class Wide(torch.nn.Module):
    """Its results take more than a heap."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x * i for i in range(5)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("xla") / "model.aotpack"
    aotpack.build(Wide(), (torch.ones(ROWS),), out=out, targets=("xla",), methods=("infer",))
    return out


@pytest.mark.parametrize(
    ("environment", "keeps"),
    [({}, True), ({"MALLOC_MMAP_THRESHOLD_": str(32 << 20)}, False)],
    ids=["as it is", "set up by the user"],
)
def test_a_calls_memory_is_kept_for_the_next(
    environment: dict[str, str], keeps: bool, bundle: Path, fresh_process: FreshProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    counts = fresh_process(FAULTS, bundle, ROWS, **environment)
    pages = 4 * ROWS // os.sysconf("SC_PAGE_SIZE")
    # torch_xla has a thread for each processor, with heaps of its own: the first calls may well take new memory.
    assert (min(counts) < pages / 10) == keeps, counts
