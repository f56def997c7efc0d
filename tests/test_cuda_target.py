"""The cuda target where there is neither a GPU nor Triton: names, what is asked of a machine, and what a load refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

import aotpack
from aotpack._torch.inductor.cuda import toolkit
from aotpack._torch.inductor.cuda.chips import CHIPS
from aotpack._torch.inductor.cuda.kernels import chosen, minimum_driver
from aotpack.targets import find_targets
from aotpack.tools.report.describe import code_blobs, gpus_of
from aotpack_loader import _torch_compat
from aotpack_loader.devices import cuda
from aotpack_loader.devices.backends import backend_of, unfit
from aotpack_loader.devices.packages import package_of
from aotpack_loader.errors import BuildError, CorruptBundleError, Problem
from aotpack_loader.format import schema
from aotpack_loader.format.validate_target import validate_target

SM80 = schema.Gpu("8.0", "12.0", ptx="8.7", ptx_driver="12.8")
SM90 = schema.Gpu("9.0", "12.0", is_exact=True)
A100, A10, H100, B200 = (8, 0), (8, 6), (9, 0), (10, 0)


def target(gpu: schema.Gpu | None, **fields: object) -> schema.Target:
    return schema.Target("cuda:sm80", "aoti", "cuda", gpu=gpu, **fields)  # type: ignore[arg-type]


def test_the_name_alone_stands_for_two_architectures() -> None:
    assert [found.name for found in find_targets("cuda")] == ["cuda:sm80", "cuda:sm90"]
    assert [found.name for found in find_targets("cuda:sm120")] == ["cuda:sm120"]


@pytest.mark.parametrize("name", ["cuda:sm75", "cuda:90", "cuda:sm90a", "cuda:"])
def test_an_architecture_that_there_is_not(name: str) -> None:
    if name == "cuda:":
        assert len(find_targets(name)) == 2
        return
    with pytest.raises(BuildError, match=rf"There is no target '{name}'\.\nKnown: cuda \(sm80 and sm90\), cuda:sm80, "):
        find_targets(name)


def test_a_build_without_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"the package triton is not installed\.\nInstall it: pip install triton"):
        aotpack.build(torch.nn.Linear(2, 2), (torch.ones(1, 2),), out=tmp_path / "x.aotpack", targets=("cuda:sm90",))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("gpu", "capability", "kind"),
    [
        (SM80, A100, "code"),
        (SM80, A10, "code"),  # code runs on later ones of the same major number
        (SM80, H100, "ptx"),
        (SM80, B200, "ptx"),
        (SM80, (7, 5), ""),
        (schema.Gpu("8.6", "12.0"), A100, ""),
        (schema.Gpu("8.6", "12.0"), H100, ""),
        (SM90, H100, "code"),
        (SM90, B200, ""),
        (SM90, A100, ""),
        (schema.Gpu("x", "12.0", ptx="8.7"), A100, ""),
    ],
)
def test_which_code_a_gpu_runs(gpu: schema.Gpu, capability: tuple[int, int], kind: str) -> None:
    assert cuda.kind_of_code(gpu, capability) == kind


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU that torch tells of."""
    found = SimpleNamespace(capability=A100, driver=(13, 0), name="NVIDIA A100")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: found.capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: found.name)
    monkeypatch.setattr(_torch_compat, "cuda_driver", lambda: found.driver)
    return found


def test_a_gpu_that_fits(gpu: SimpleNamespace) -> None:
    assert cuda.unfit(target(SM80), None) == ""
    gpu.capability, gpu.driver = H100, (12, 8)
    assert cuda.unfit(target(SM80), None) == ""


def test_what_a_machine_lacks(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda.unfit(target(None), None) == "does not say which GPUs it is for"
    gpu.driver = (11, 8)
    assert cuda.unfit(target(SM80), None) == "needs a driver of CUDA 12.0 or later; this one is of CUDA 11.8"
    gpu.driver, gpu.capability = (12, 4), H100
    assert cuda.unfit(target(SM80), None) == "needs a driver of CUDA 12.8 or later; this one is of CUDA 12.4"
    gpu.capability, gpu.name = A10, "NVIDIA A10"
    told = (
        "has code for compute capability 9.0, and this is NVIDIA A10 (compute capability 8.6); 'aotpack compile' adds cuda:sm86"
    )
    assert cuda.unfit(target(SM90), None) == told
    lacking = target(SM80, imports=["aoti_torch_device_type_cpu", "aoti_torch_of_tomorrow"])
    assert cuda.unfit(lacking, None).endswith("lacks: aoti_torch_of_tomorrow")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.unfit(target(SM80), None) == "runs on NVIDIA's GPUs, and torch finds none here"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert cuda.unfit(target(SM80), None).endswith(f"and torch {torch.__version__} is built without CUDA")


def test_a_driver_that_nobody_knows_is_too_new(gpu: SimpleNamespace) -> None:
    assert cuda.unfit(target(schema.Gpu("8.0", "next")), None).startswith("needs a driver of CUDA next or later")


def test_code_for_gpus_is_used_where_it_is_asked_for() -> None:
    backend = backend_of(target(SM80))
    assert backend is not None
    assert backend.unasked(target(SM80), None) == "runs on a GPU: load with device='cuda'"
    assert backend.unasked(target(SM80), torch.device("cuda", 0)) == ""
    assert backend.elsewhere(torch.device("cpu")) == "runs on NVIDIA's GPUs, and device='cpu' was asked for"
    assert backend.rank(target(SM90)) > backend.rank(target(SM80)), "the same GPU runs both, the one as PTX"


def test_code_of_another_release_is_not_run(gpu: SimpleNamespace) -> None:
    program = SimpleNamespace(requirements=SimpleNamespace(torch=">=2.9"))
    other = target(SM80, torch="==2.14.*", imports=["aoti_torch_device_type_cpu"], architecture="amd64")
    reason = unfit(other, program, device=torch.device("cuda", 0))  # type: ignore[arg-type]
    assert "compiled for torch ==2.14.*" in reason or reason.startswith("built for amd64")


def test_kernels_are_beside_the_library(tmp_path: Path) -> None:
    library, kernel = tmp_path / "a.so", tmp_path / "b"
    library.write_bytes(b"library")
    kernel.write_bytes(b"\x7fELF")
    package = package_of(library, None, device="cuda", kernels={"triton_0": kernel})
    folder = package / "data" / "aotinductor" / "model"
    assert (folder / "triton_0.cubin").read_bytes() == b"\x7fELF"
    assert b'"cuda"' in (folder / "code.wrapper_metadata.json").read_bytes()
    assert package_of(library, None, device="cuda", kernels={"triton_1": kernel}) != package
    (folder / "triton_0.cubin").unlink()
    (folder / "triton_0.cubin").write_bytes(b"torn")
    package_of(library, None, device="cuda", kernels={"triton_0": kernel})
    assert (folder / "triton_0.cubin").read_bytes() == b"\x7fELF", "a damaged one is made again"


class _Bundle:
    def __init__(self, path: Path) -> None:
        self.path = path

    def code(self, descriptor: schema.Descriptor) -> Path:
        return self.path


@pytest.mark.parametrize(
    ("name", "kind", "content", "told"),
    [
        ("../x", "code", b"\x7fELF", "'../x' is no name of a kernel"),
        ("triton_0", "code", b"\x00torn", "the kernel triton_0 of cuda:sm80 is no cubin"),
        ("triton_0", "ptx", b"\x7fELF", "the kernel triton_0 of cuda:sm80 is no PTX"),
    ],
)
def test_torn_kernels(tmp_path: Path, name: str, kind: str, content: bytes, told: str) -> None:
    blob = schema.Descriptor("x", "sha256:" + 64 * "0", 4)
    device = object.__new__(cuda.CudaDevice)
    (tmp_path / "kernel").write_bytes(content)
    device._bundle, device._target, device._kind = _Bundle(tmp_path / "kernel"), target(SM80), kind  # type: ignore[assignment]
    with pytest.raises(CorruptBundleError, match=told):
        device._kernel(name, schema.CudaKernel(blob, blob))
    device._kind = "ptx"
    with pytest.raises(CorruptBundleError, match="has no PTX of the kernel triton_0"):
        device._kernel("triton_0", schema.CudaKernel(blob))


def config(warps: int, **blocks: int) -> SimpleNamespace:
    return SimpleNamespace(num_warps=warps, kwargs=blocks)


def test_block_sizes_are_chosen_by_rule() -> None:
    configs = [config(2, XBLOCK=1), config(2, XBLOCK=8), config(8, XBLOCK=32), config(8, XBLOCK=128)]
    assert chosen(configs, {"x": 32, "r0_": 16}).kwargs["XBLOCK"] == 1, "few rows: as many blocks as there are"
    assert chosen(configs, {"x": 1 << 20, "r0_": 16}).kwargs["XBLOCK"] == 128, "many rows: enough work for each thread"
    assert chosen(list(reversed(configs)), {"x": 1 << 20, "r0_": 16}).kwargs["XBLOCK"] == 128, "not the first one"


@pytest.mark.parametrize(
    ("architecture", "assembler", "driver"), [("sm80", "12.8", "12.0"), ("sm100", "12.9", "12.8"), ("sm100", "13.1", "13.0")]
)
def test_the_first_driver(architecture: str, assembler: str, driver: str) -> None:
    assert architecture in CHIPS
    assert minimum_driver(architecture, assembler) == driver


def test_a_kernels_name_is_checked_with_the_documents() -> None:
    blob = schema.Descriptor("x", "sha256:" + 64 * "0", 4)
    code = schema.Executable(blob, [], [], kernels={"a/b": schema.CudaKernel(blob)})
    program = SimpleNamespace(methods={}, state=[])
    with pytest.raises(CorruptBundleError) as caught:
        validate_target(target(SM80, executables={"infer.forward": code}), program, "target")  # type: ignore[arg-type]
    assert Problem("$.executables['infer.forward'].kernels", "C44: 'a/b' is no name of a kernel") in caught.value.problems


def test_documents_of_kernels_keep_all() -> None:
    blob = schema.Descriptor("x", "sha256:" + 64 * "0", 4)
    kernel = schema.CudaKernel(blob, blob, ["-((x) // -(256))", "1", "1"], 4, 128, ["*fp32", "i32"], {"XBLOCK": 256})
    found = target(SM80, executables={"infer.forward": schema.Executable(blob, [], [], kernels={"triton_0": kernel})})
    assert msgspec.json.decode(msgspec.json.encode(found), type=schema.Target) == found


def test_what_inspect_says_of_gpus() -> None:
    assert gpus_of(SM80) == "a GPU of 8.x from 8.0 on, a driver of CUDA 12.0; as PTX later ones, CUDA 12.8"
    assert gpus_of(SM90) == "a GPU of 9.0, a driver of CUDA 12.0"
    blob = schema.Descriptor("x", "sha256:" + 64 * "0", 4)
    code = schema.Executable(blob, [], [], kernels={"triton_0": schema.CudaKernel(blob, blob)})
    found = [what for _, what in code_blobs(target(SM80, executables={"infer.forward": code}))]
    assert found == ["code infer.forward", "kernel triton_0", "PTX triton_0"]
