"""The cpu target: native code computes what eager computes, frees what it has used, and follows the machine it runs on."""

from __future__ import annotations

import copy
import functools
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FreshProcess
from torch import nn
from torch._inductor import memory

import aotpack
from aotpack._torch.inductor import lowering
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices import cpuinfo
from aotpack_loader.errors import AotpackError, AutogradError, BuildError

# ---------------------------------------------------------------- training steps

TRAIN = """
import json, sys
import torch, aotpack_loader
bundle, backend, given = sys.argv[1:]
model = aotpack_loader.load(bundle, backend=backend)
batches = torch.load(given, weights_only=True)
steps = []
for images, labels in batches:
    model.zero_grad()
    out = model(images, labels)
    out["loss"].backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    seen = {"loss": out["loss"].detach(), "logits": out["logits"].detach()}
    seen |= {f"grad {name}": p.grad.clone() for name, p in model.named_parameters()}
    seen |= {f"state {name}": value.clone() for name, value in model.state_dict().items()}
    steps.append(seen)
torch.save(steps, given + ".out")
print(json.dumps(model.aotpack.backend))
"""


def eager_steps(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    steps = []
    for images, labels in batches:
        model.zero_grad()
        out = model(images, labels)
        out["loss"].backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        seen = {"loss": out["loss"].detach(), "logits": out["logits"].detach()}
        seen |= {f"grad {name}": p.grad.clone() for name, p in model.named_parameters()}
        steps.append(seen | {f"state {name}": value.clone() for name, value in model.state_dict().items()})
    return steps


@pytest.mark.parametrize("backend", ["cpu", "portable"])
def test_digits_trains_like_eager_where_its_source_is_not(
    digits_bundle: Path, digits_model: nn.Module, fresh_process: FreshProcess, tmp_path: Path, backend: str
) -> None:
    """Loss, results, every gradient, every parameter and buffer, for several steps with batches of several sizes."""
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.rand(size, 1, 8, 8, generator=generator), torch.randint(10, (size,), generator=generator))
        for size in (64, 64, 7, 2)
    ]
    torch.save(batches, tmp_path / "batches.pt")
    expected = eager_steps(copy.deepcopy(digits_model), batches)
    used = fresh_process(TRAIN, digits_bundle, backend, tmp_path / "batches.pt")
    assert used.partition(":")[0] == backend
    found = torch.load(tmp_path / "batches.pt.out", weights_only=True)
    for number, (ours, eagers) in enumerate(zip(found, expected, strict=True)):
        assert ours.keys() == eagers.keys()
        for name, value in eagers.items():
            torch.testing.assert_close(
                ours[name], value, rtol=2e-3, atol=2e-4, msg=lambda text, where=f"step {number} {name}": f"{where}: {text}"
            )


@pytest.mark.parametrize("batch", [2, 3, 64, 500])
def test_inference_with_any_batch(digits_bundle: Path, digits_model: nn.Module, batch: int) -> None:
    loaded, eager = aotpack.load(digits_bundle, backend="cpu").eval(), copy.deepcopy(digits_model).eval()
    images, labels = torch.rand(batch, 1, 8, 8), torch.randint(10, (batch,))
    with torch.no_grad():
        torch.testing.assert_close(dict(loaded(images, labels)), eager(images, labels), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 1798])
def test_a_batch_outside_the_range_never_reaches_native_code(digits_bundle: Path, batch: int) -> None:
    loaded = aotpack.load(digits_bundle, backend="cpu")
    with pytest.raises(aotpack.AotpackError, match=r"2\.\.1797"):
        loaded(torch.rand(batch, 1, 8, 8), torch.randint(10, (batch,)))


# ---------------------------------------------------------------- memory

LAYERS, SIZE = 8, 16
ROWS, COLUMNS = 16384, 256


class Wide(nn.Module):
    """Each layer saves an activation as large as its parameter: 16 MB. The product keeps layers from being fused into one."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([torch.ones(ROWS, COLUMNS) for _ in range(LAYERS)])
        self.register_buffer("mix", torch.eye(COLUMNS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = (x * scale) @ self.mix
        return x.sum()


@pytest.fixture(scope="module")
def wide_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wide") / "wide.aotpack"
    report = aotpack.build(Wide(), (torch.zeros(ROWS, COLUMNS),), out=out, targets=("cpu", "portable"), methods=("train",))
    assert report.saved_bytes["train"] >= (LAYERS - 1) * SIZE * 2**20
    return out


PEAK = """
import json, sys
import torch, aotpack_loader

def resident(kind):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(kind))

def peak_of(backward):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    backward()
    return before, resident("VmHWM") - before, resident("VmRSS") - before

torch.set_num_threads(1)
model = aotpack_loader.load(sys.argv[1], backend=sys.argv[2])
x = torch.zeros(16384, 256)
start = resident("VmRSS")
loss = model(x)
forward = resident("VmRSS") - start
keep = loss.detach().clone()
before, peak, after = peak_of(loss.backward)
print(json.dumps({"forward": forward, "peak": peak, "after": after}))
"""


@pytest.mark.parametrize("backend", ["cpu", "portable"])
def test_saved_activations_are_freed_as_the_backward_uses_them(
    wide_bundle: Path, fresh_process: FreshProcess, backend: str
) -> None:
    """The gradients take the place of the activations: the peak stays far below both together."""
    saved = (LAYERS - 1) * SIZE  # the first activation is the input, the last is not needed
    seen = fresh_process(
        PEAK, wide_bundle, backend, MALLOC_MMAP_THRESHOLD_="1048576", MALLOC_TRIM_THRESHOLD_="1048576", from_nothing=True
    )
    assert seen["forward"] > 0.8 * saved, seen
    # All gradients (as large as all that was saved) are there at the end; nothing that was saved is.
    assert seen["peak"] < 0.5 * saved, seen
    assert seen["after"] < 0.5 * saved, seen


# ---------------------------------------------------------------- layouts


def test_what_only_the_backward_reads_lies_in_memory_as_the_code_likes(digits_bundle: Path) -> None:  # X1
    """Convolutions compute channels-last; X1: what they save is handed to the backward as it is, what the caller sees is not."""
    model = aotpack.load(digits_bundle, backend="cpu")
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(torch.rand(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64))
    assert out["logits"].is_contiguous()  # X1
    images = [tensor for tensor in saved if tensor.dim() == 4 and min(tensor.shape[1:]) > 1 and len(tensor) == 8]
    assert images
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in images)


class Narrowing(nn.Module):
    """Its first convolution has a large image and a small weight, and the second one the opposite."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=8, padding=1)
        self.normal = nn.BatchNorm2d(32)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.normal(self.first(images)).relu().mean((2, 3), keepdim=True).expand(-1, -1, 8, 8).sin())


def test_convolutions_of_large_weights_stay_contiguous(tmp_path: Path) -> None:
    """Their weights and gradients need no conversion; what other convolutions save is channels-last."""
    torch.manual_seed(0)
    model, images = Narrowing(), torch.randn(2, 3, 16, 16)
    aotpack.build(model, (images,), out=tmp_path / "m", targets=("cpu",), methods=("train",))
    loaded = aotpack.load(tmp_path / "m", backend="cpu", check="full")
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = loaded(images)
    expected = model(images)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    for other, own in zip(model.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)
    torch.testing.assert_close(dict(loaded.named_buffers()), dict(model.named_buffers()))
    shapes = {tuple(tensor.shape): tensor for tensor in saved}
    assert shapes[2, 32, 16, 16].is_contiguous(memory_format=torch.channels_last)
    assert shapes[2, 32, 8, 8].is_contiguous()


class Depthwise(nn.Module):
    """A block of ConvNeXt: between permutations, so images are channels-last everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(24, 24, 5, padding=2, groups=24)
        self.norm, self.linear = nn.LayerNorm(24), nn.Linear(24, 24)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norm(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        found: torch.Tensor = self.linear(self.norm(self.convolution(x).permute(0, 2, 3, 1)))
        return x + found.permute(0, 3, 1, 2)


def test_arguments_of_convolution_gradients_are_not_copied(tmp_path: Path) -> None:
    """Nor does their layout fix sizes that vary."""
    torch.manual_seed(0)
    model = Depthwise()
    sizes = {"images": {0: torch.export.Dim("batch", min=2), 2: torch.export.Dim("height", min=6)}}
    example = torch.randn(2, 24, 8, 6, requires_grad=True)
    aotpack.build(model, (example,), out=tmp_path / "m", targets=("cpu",), methods=("train",), dynamic_shapes=sizes)
    loaded = aotpack.load(tmp_path / "m", backend="cpu")
    for shape in ((2, 24, 8, 6), (3, 24, 10, 6)):
        images = torch.randn(shape, requires_grad=True)
        expected, found = (
            torch.autograd.grad(each(images).square().mean(), [images, *each.parameters()]) for each in (model, loaded)
        )
        torch.testing.assert_close(found, expected)
    result = loaded(images).sum()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        torch.autograd.grad(result, images)
    events: Any = profile.events()
    copies = [event.input_shapes[0] for event in events if event.name == "aten::copy_" and _of_convolution(event)]
    assert copies == []  # torch's kernel would also copy the weight; windows of 5 columns have a function of ours


def _of_convolution(event: Any) -> bool:
    """Whether the kernel for the gradients of a convolution did this."""
    return event is not None and ("convolution_backward" in event.name or _of_convolution(event.cpu_parent))


class Flattened(nn.Module):
    """What a convolution returns is kept, and the backward views it once more with other dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(64, 5))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.convolution(images)
        return found.sin().mean() + (found.view(-1, 64) @ self.weight).square().mean()


def test_what_lies_otherwise_is_viewed_in_the_backward(tmp_path: Path) -> None:
    """No view of channels-last memory has channels and pixels as its rows: the backward copies."""
    model = Flattened()
    images = torch.randn(4, 3, 8, 8)
    aotpack.build(model, (images,), out=tmp_path / "m", targets=("cpu",), methods=("train",), cache=False)
    loaded = aotpack.load(tmp_path / "m", backend="cpu", check="full")
    for step in (model, loaded):
        step(images).backward()
    for expected, found in zip(model.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


def test_images_of_one_channel_are_channels_last_already(digits_bundle: Path) -> None:
    """Their first convolution returns channels-last at once: nothing of its size is allocated besides but what follows it."""
    model = aotpack.load(digits_bundle, backend="cpu")
    images, labels = torch.rand(64, 1, 8, 8), torch.zeros(64, dtype=torch.int64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        model(images, labels)
    events: Any = profile.events()
    allocated = [event.cpu_memory_usage for event in events if event.name in ("[memory]", "aten::mkldnn_convolution")]
    # The convolution, and what ReLU makes of it, of which the profiler does not always tell; no copy between them.
    assert allocated.count(64 * 32 * 8 * 8 * 4) in (1, 2)


@pytest.mark.parametrize("batch", [8, 3])
def test_code_does_what_the_graphs_say(digits_bundle: Path, batch: int) -> None:
    model = aotpack.load(digits_bundle, backend="cpu", check="full")
    images, labels = torch.rand(batch, 1, 8, 8), torch.randint(10, (batch,))
    for _ in range(2):
        loss = model(images, labels)["loss"]
        loss.backward(retain_graph=True)
        loss.backward()
    with torch.no_grad():
        model.eval()(images, labels)


def test_views_of_what_is_transposed_share_its_memory(tmp_path: Path) -> None:
    def views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.t() * 2
        return y[1:], y[:-1]

    aotpack.build(views, (torch.randn(3, 5),), out=tmp_path / "m.aotpack", targets=("cpu",), methods=("infer",), cache=False)
    with torch.no_grad():
        later, earlier = aotpack.load(tmp_path / "m.aotpack", backend="cpu").eval()(torch.ones(3, 5))
    later.zero_()
    assert earlier.sum(1).tolist() == [6, 0, 0, 0]


class Upsampled(nn.Module):
    """Its backward adds at an index, halves what comes of it, and gives that to two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = (self.one(x) + self.two(x.sin())) / 2
        return self.last(nn.functional.interpolate(half, scale_factor=2.0))


def test_what_reads_a_write_follows_it_in_every_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor takes the order in which memory peaks lowest; here, one of those it chooses from."""
    plan, breadth_first = memory.prepare_planning_info, [memory.topological_sort_bfs]
    monkeypatch.setattr(memory, "prepare_planning_info", lambda *args: (math.inf, plan(*args)[1]))  # as things lie, it is worst
    reorder = functools.partial(memory.reorder_for_peak_memory, methods=breadth_first)
    monkeypatch.setattr(memory, "reorder_for_peak_memory", reorder)
    model, x = Upsampled(), torch.randn(2, 8, 8, 8)
    aotpack.build(copy.deepcopy(model), (x,), out=tmp_path / "m.aotpack", targets=("cpu",), methods=("train",), cache=False)
    loaded = aotpack.load(tmp_path / "m.aotpack", backend="cpu")
    for module in (model, loaded):
        module(x).square().sum().backward()
    for (name, expected), found in zip(model.named_parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4, msg=name)


def test_code_asks_for_no_executable_stack(digits_bundle: Path) -> None:
    """Loading a library that does makes every stack of the process executable, or is refused (glibc 2.41)."""
    bundle = Bundle.open(digits_bundle)
    target: Any = next(t for t in bundle.targets.values() if t.kind == "aoti")
    for executable in target.executables.values():
        elf = bundle.code(executable.code).read_bytes()
        (offset,) = struct.unpack_from("<Q", elf, 32)  # of the program headers (Elf64_Ehdr.e_phoff)
        size, count = struct.unpack_from("<HH", elf, 54)
        headers = [struct.unpack_from("<II", elf, offset + i * size) for i in range(count)]
        assert [flags & 1 for kind, flags in headers if kind == 0x6474E551] == [0]  # PT_GNU_STACK, PF_X


# ---------------------------------------------------------------- sizes


def test_sizes_that_only_the_code_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Inductor assumes of sizes while it compiles is checked at every call; the portable graphs do without."""  # X2
    really = lowering.lower_with_aoti

    def guarded(graph: lowering.GraphToLower, codes: Any) -> Any:
        (size,) = next(node.meta["val"] for node in graph.module.graph.find_nodes(op="placeholder")).shape
        (library,) = really(graph, codes)
        library.guards.append(size.node.expr <= 16)
        return [library]

    monkeypatch.setattr(lowering, "lower_with_aoti", guarded)
    out, sizes = tmp_path / "m.aotpack", ({0: torch.export.Dim("n", min=2)},)
    build = functools.partial(aotpack.build, targets=("cpu", "portable"), dynamic_shapes=sizes, methods=("infer",), cache=False)
    build(lambda x: x.sin(), (torch.zeros(8),), out=out)
    native, portable = (aotpack.load(out, backend=backend) for backend in ("cpu", "portable"))
    with torch.no_grad():
        torch.testing.assert_close(native(torch.ones(16)), torch.ones(16).sin())
        with pytest.raises(AotpackError, match=r"<= 16\)"):
            native(torch.ones(17))
        torch.testing.assert_close(portable(torch.ones(17)), torch.ones(17).sin())


# ---------------------------------------------------------------- threads

THREADS = """
import json, sys, time
import torch, aotpack_loader

def others():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Threads"))

model = aotpack_loader.load(sys.argv[1], backend="cpu")
x = torch.randn(16384, 256)
seen = []
for threads in (1, 3):
    torch.set_num_threads(threads)
    model.zero_grad()
    loss = model(x)
    seen.append({"threads": others(), "loss": loss.item()})
print(json.dumps(seen))
"""


def test_the_number_of_threads_is_chosen_at_run_time(wide_bundle: Path, fresh_process: FreshProcess) -> None:
    one, three = fresh_process(THREADS, wide_bundle, from_nothing=True)
    assert three["threads"] == one["threads"] + 2
    assert three["loss"] == pytest.approx(one["loss"], rel=1e-3)


# ---------------------------------------------------------------- several instruction sets


@pytest.mark.skipif(cpuinfo.best_x86_level() is None, reason="needs an x86-64 processor")
def test_the_widest_instruction_set_that_fits_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [level for level, needed in cpuinfo.X86_LEVELS.items() if cpuinfo.features().issuperset(needed)]
    out = tmp_path / "m"
    aotpack.build(
        lambda x: x.sin() + 1,
        (torch.zeros(64),),
        out=out,
        targets=[f"cpu:{level}" for level in reversed(levels)],
        methods=("infer",),
    )
    with Bundle.open(out) as bundle:
        assert set(bundle.targets) == {f"cpu:{level}" for level in levels}
        assert {m.platform.variant for m in bundle.manifests.values() if m.platform} == {level[-2:] for level in levels}
    x = torch.randn(64)
    for level in levels:
        monkeypatch.setattr(cpuinfo, "features", lambda level=level: frozenset(cpuinfo.X86_LEVELS[level]))
        loaded = aotpack.load(out)
        assert loaded.aotpack.backend == f"cpu:{level}"
        wider = levels[: levels.index(level)]
        assert all("this processor lacks" in loaded.aotpack.rejected[f"cpu:{other}"] for other in wider)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), x.sin() + 1)
    monkeypatch.setattr(cpuinfo, "features", frozenset)
    with pytest.raises(aotpack.AotpackError, match="No target of this bundle can run here") as caught:
        aotpack.load(out)
    assert len(caught.value.problems) == len(levels)


def test_code_compiled_for_a_level_uses_no_wider_vectors(digits_bundle: Path) -> None:
    """The options that decide the instruction set are in the bundle."""
    target: Any = next(t for t in Bundle.open(digits_bundle).targets.values() if t.kind == "aoti")
    assert target.name == f"cpu:{target.instruction_set}"
    assert set(target.cpu_features) <= cpuinfo.features()
    assert json.loads(json.dumps(target.toolchain)) == target.toolchain


def test_code_reads_the_name_of_its_device_without_a_regular_expression(digits_bundle: Path) -> None:
    """Half of the code of a small network, and work at every load; torch's header has it."""
    bundle = Bundle.open(digits_bundle)
    target = next(t for t in bundle.targets.values() if t.kind == "aoti")
    for executable in target.executables.values():
        assert b"regex" not in bundle.code(executable.code).read_bytes()


# ---------------------------------------------------------------- sizes


def masked(x: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, int, float]:
    """A size that depends on data, in results and in the backward, beside a batch that varies; two kinds of numbers."""
    chosen = (x[rows] @ weight).sin()
    return chosen * chosen.shape[0], chosen.shape[0] + x.shape[0], rows.sum(dtype=torch.float64).item()


def test_sizes_that_depend_on_data_and_sizes_zero_and_one(tmp_path: Path) -> None:
    def inputs(count: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(count)
        x, weight = torch.randn(count, 4, generator=generator), torch.randn(4, 3, generator=generator)
        return x.requires_grad_(), torch.randn(count, generator=generator) > 0, weight.requires_grad_()

    batch = {0: torch.export.Dim.DYNAMIC}
    shapes = {"x": batch, "rows": batch, "weight": None}
    aotpack.build(masked, inputs(6), out=tmp_path / "m", targets=("cpu",), methods=("train",), dynamic_shapes=shapes)
    loaded = aotpack.load(tmp_path / "m", backend="cpu")
    for count in (6, 1, 0, 13):
        given, twins = inputs(count), inputs(count)
        (expected, *numbers), (found, *same) = masked(*given), loaded(*twins)
        torch.testing.assert_close(found, expected)
        assert [(type(value), value) for value in same] == [(type(value), value) for value in numbers]
        expected.sum().backward()
        found.sum().backward()
        for one, other in zip(twins, given, strict=True):
            torch.testing.assert_close(one.grad, other.grad)


def test_what_inductor_has_no_code_for_is_named_with_the_users_line(tmp_path: Path) -> None:
    """``hash_tensor`` of all dimensions: code loses the empty list of them on the way to the kernel (torch 2.13)."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.hash_tensor(x * 2)

    with pytest.raises(AotpackError, match=r"could not compile infer\.forward.*\n.*test_cpu_target\.py.*hash_tensor.*aten\.\w+"):
        aotpack.build(model, (torch.randn(5),), out=tmp_path / "m", targets=("cpu",), methods=("infer",))


@pytest.mark.parametrize("method", ["infer", "train"])
def test_views_of_whole_results_are_tensors_of_their_own(tmp_path: Path, method: str) -> None:
    """Inductor would return one tensor for all of them. No graph returns them: the loader makes the views."""

    def model(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        y = x.sin()
        taken = x[[0, 2, 1]]  # by a kernel of its own
        return [y, y[:], y.view(-1).view(y.shape), y, (x * weight).exp(), taken.squeeze(), taken]

    weight = torch.randn(4, requires_grad=True)
    batch = {"x": {0: torch.export.Dim("n", max=64)}, "weight": None}
    given = torch.randn(5, 4), weight
    aotpack.build(model, given, out=tmp_path / "m", targets=("cpu",), methods=(method,), dynamic_shapes=batch)
    x = torch.randn(7, 4)
    with torch.set_grad_enabled(method == "train"):
        y, part, viewed, again, trained, squeezed, taken = aotpack.load(tmp_path / "m").train(method == "train")(x, weight)
    assert y is again
    assert len({id(y), id(part), id(viewed), id(squeezed), id(taken)}) == 5
    assert squeezed.data_ptr() == taken.data_ptr()
    part.unsqueeze_(0)
    for value in (y, viewed, part.squeeze(0)):
        assert value.shape == (7, 4)
        assert value.data_ptr() == y.data_ptr()
        torch.testing.assert_close(value, x.sin())
    if method == "train":
        trained.sum().backward()
        torch.testing.assert_close(weight.grad, (x * (x * weight).exp()).sum(0))


# ---------------------------------------------------------------- kernels that lay results out otherwise than their fake ones


@torch.library.custom_op("aotpack_test::transposed", mutates_args=())
def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t() * 2


@torch.library.custom_op("aotpack_test::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x[:2] + 1).t().contiguous().t(), x[2:] * 3


@torch.library.custom_op("aotpack_test::longer", mutates_args=())
def longer(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])


transposed.register_fake(torch.empty_like)
halves.register_fake(lambda x: (torch.empty_like(x[:2]), torch.empty_like(x[2:])))
longer.register_fake(torch.empty_like)


def test_results_of_kernels_are_read_as_they_lie(tmp_path: Path) -> None:
    """A user's fake kernel may tell other strides than the real one has: AOTInductor reads other elements (torch 2.13)."""

    def model(x: torch.Tensor, size: torch.Tensor) -> list[torch.Tensor]:
        first, second = halves(x)
        return [transposed(x).sin() + x, transposed(x * size), first.exp(), first.flip(0) + second.sum(0)]

    sizes = {"x": {1: torch.export.Dim("n", min=2, max=64)}, "size": None}
    given = torch.randn(4, 3), torch.tensor(2.0)
    # The check sees that the results have the strides that the fake kernel tells, and not eager's.
    aotpack.build(model, given, out=tmp_path / "m", targets=("cpu",), methods=("infer",), dynamic_shapes=sizes, check=False)
    loaded = aotpack.load(tmp_path / "m").train(False)
    for x in (given[0], torch.randn(4, 7)):
        with torch.no_grad():
            torch.testing.assert_close(loaded(x, given[1]), model(x, given[1]))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_gradients_of_padded_channels_last_images(tmp_path: Path, mode: str) -> None:
    """torch's fake kernels of these gradients tell contiguous ones (torch 2.13); ``torch.compile`` raises an error."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (1, 2, 1, 0), mode=mode).sin() * 3

    x = torch.randn(2, 3, 5, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    aotpack.build(model, (x,), out=tmp_path / "m", targets=("cpu",), methods=("train",))
    out, expected = aotpack.load(tmp_path / "m")(x), model(x)
    tangent = torch.randn_like(expected)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.autograd.grad(out, x, tangent), torch.autograd.grad(expected, x, tangent))


def test_a_kernel_that_returns_other_sizes_than_its_fake_one_is_an_error(tmp_path: Path) -> None:
    aotpack.build(
        lambda x: longer(x).sin(), (torch.randn(4),), out=tmp_path / "m", targets=("cpu",), methods=("infer",), check=False
    )
    loaded = aotpack.load(tmp_path / "m").train(False)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"longer\.default returned other sizes"):
        loaded(torch.randn(4))


def test_a_negative_number_of_a_tensor_is_refused_by_the_backward(tmp_path: Path) -> None:
    def model(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.roll(x, i.item(), 0) * x

    x = torch.randn(5, 4, requires_grad=True)
    aotpack.build(model, (x, torch.tensor(2)), out=tmp_path / "m", targets=("cpu",), methods=("train",))
    loaded = aotpack.load(tmp_path / "m")
    for by in map(torch.tensor, (0, 3, 9)):
        torch.testing.assert_close(torch.autograd.grad(loaded(x, by).sum(), x), torch.autograd.grad(model(x, by).sum(), x))
    with pytest.raises(AutogradError, match=r"read the number -1 .* load the bundle with backend=\"portable\""):
        loaded(x, torch.tensor(-1)).sum().backward()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda x, i: x.as_strided((2,), (1,), i.item()) * 2,
            r"calls aten\.as_strided\.default with a number that depends on data",
        ),
        (lambda x, i: torch.as_strided_scatter(x * 1, x[0, :2], (2,), (1,), i.item()), "with a number that depends on data"),
        (lambda x, i: x[: i.item()] @ x[: i.item()].T, "could not divide the graph into forward and backward"),
    ],
)
def test_places_in_memory_that_depend_on_data_are_refused(model: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=message):
        aotpack.build(model, (torch.randn(5, 4, requires_grad=True), torch.tensor(2)), out=tmp_path / "m", targets=("cpu",))
