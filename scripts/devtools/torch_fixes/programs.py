"""Programs for upstream reports: the case of a fix, run by eager torch and by torch's compilers, without aotpack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..paths import ROOT

_INFER = """\
def observe(call, make):
    torch.manual_seed(0)
    given = make()
    with torch.no_grad():
        results = torch.utils._pytree.tree_leaves(call(*given))
    return [(x.stride(), x) for x in [*results, *given] if isinstance(x, torch.Tensor)]
"""

_TRAIN = """\
def observe(call, make):
    torch.manual_seed(0)
    given = make()
    results = [x for x in torch.utils._pytree.tree_leaves(call(*given)) if isinstance(x, torch.Tensor)]
    losses = [x for x in results if x.requires_grad]
    torch.autograd.backward(losses, [torch.linspace(1, 2, x.numel()).view(x.shape).to(x) for x in losses])
    gradients = [x.grad for x in given if isinstance(x, torch.Tensor) and x.grad is not None]
    return [(x.stride(), x.detach()) for x in [*results, *gradients]]
"""

_TRAIN_MODULE = _TRAIN.replace(
    "    torch.manual_seed(0)\n", "    f.train()\n    f.zero_grad()\n    torch.manual_seed(0)\n", 1
).replace("[x.grad for x in given if isinstance(x, torch.Tensor) and x.grad is not None]", "[x.grad for x in f.parameters()]")

_ERROR_ON_RECOMPILE = """\
import torch._dynamo.config

torch._dynamo.config.error_on_recompile = True
"""

_WAYS = {
    "torch.compile": 'compiled = torch.compile(f, backend="{backend}"{dynamic})\n',
    "torch.export": """\
class Model(torch.nn.Module):
    def forward(self, *args):
        return f(*args)


{shapes}exported = torch.export.export(Model(), args(){varied})
compiled = exported.module()
""",
    "AOTInductor": """\
class Model(torch.nn.Module):
    def forward(self, *args):
        return f(*args)


{shapes}with torch.no_grad():
    exported = torch.export.export(Model(), args(){varied})
compiled = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(exported))
""",
    "AOTAutograd": """\
from functorch.compile import aot_function, nop

compiled = aot_function(f, fw_compiler=nop, bw_compiler=nop)
""",
    "Dynamo's capture": """\
from torch._dynamo.functional_export import dynamo_graph_capture_for_export

with torch.no_grad():
    compiled = dynamo_graph_capture_for_export(f)(*args())
""",
}


@dataclass(frozen=True)
class Program:
    """A program that shows a fault.

    Args:
        way: which compiler of torch runs the case: a key of :func:`ways`.
        definitions: the case, and ``observe(call, make)``: strides and values that a caller sees.
        compiling: sets ``compiled``.
        makers: names of the functions that make arguments.
    """

    way: str
    definitions: str
    compiling: str
    makers: tuple[str, ...]

    @property
    def text(self) -> str:
        """The program as a report shows it."""
        calls = "".join(
            f'print("expected", observe(f, {make}), sep="\\n")\nprint("seen", observe(compiled, {make}), sep="\\n")\n'
            for make in self.makers
        )
        return f"{self.definitions}\n\n{self.compiling}{calls}"


def has_case(fix: Any) -> bool:
    return Path(ROOT, fix.case).exists()


def programs(fix: Any) -> list[Program]:
    """The programs that may show the fault of ``fix``, the likeliest first."""
    lines = (ROOT / fix.case).read_text().splitlines(keepends=True)
    head = {line[2:].partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines if line.startswith("# ")}
    body = "".join(line for line in lines if not line.startswith("# ")).strip()
    training = head.get("method") == "train"
    settings = ""
    if threads := head.get("threads"):
        settings += f"\n\ntorch.set_num_threads({threads.split()[0]})"
    if head.get("rng") == "eager" and head.get("target") == "cpu":
        settings += "\n\nimport torch._inductor.config\n\ntorch._inductor.config.fallback_random = True"
    observe = _INFER if not training else _TRAIN_MODULE if "\nf = " in body else _TRAIN
    definitions = f"{body}\n{settings}\n\n\n{observe}" if settings else f"{body}\n\n\n{observe}"
    makers = ("args", "other") if "def other(" in body else ("args",)
    names = ["torch.compile"]
    if not training:
        names.append("AOTInductor" if head.get("target") == "cpu" else "torch.export")
    names += {"aot_autograd": ["AOTAutograd"], "dynamo": ["Dynamo's capture"]}.get(fix.component, []) * (not training)
    fixes_sizes = fix.severity == "refuses" and "other" in makers
    return [Program(name, definitions, _once(name, fixes_sizes) + _compiling(name, head), makers) for name in names]


def _once(way: str, fixes_sizes: bool) -> str:
    """Where a guard fixes a size that varies, ``torch.compile`` compiles again, and only this setting shows it."""
    return _ERROR_ON_RECOMPILE if fixes_sizes and way == "torch.compile" else ""


def _compiling(way: str, head: dict[str, str]) -> str:
    varying = head.get("dynamic", "").split()
    sizes = ", ".join(f"{dim}: torch.export.Dim.DYNAMIC" for dim in varying)
    shapes = f'shapes = {{"args": [{{{sizes}}}] + [None] * (len(args()) - 1)}}\n' if varying else ""
    varied = ", dynamic_shapes=shapes" if varying else ""
    backend = "inductor" if head.get("target") == "cpu" else "aot_eager"
    return _WAYS[way].format(backend=backend, dynamic=", dynamic=True" if varying else "", shapes=shapes, varied=varied)
