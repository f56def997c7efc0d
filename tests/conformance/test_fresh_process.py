"""A handful of cases in a process that has the bundle, the inputs and the loader, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from devtools.harness import Case, build, seeded

from .table import CASES

NAMES = (
    "input mutation: metadata and data",
    "buffer mutated: view of a buffer",
    "outputs: alias of intermediate, base also output",
    "outputs: multi-output views of an intermediate, unbind and base",
    "outputs: ModelOutput",
    "tied weights",
    "BatchNorm in a network",
    "RNG dropout: two of them, eager's numbers under one seed",
    "shapes: dynamic batch and sequence",
    "calling: argument dict order carry before x",
)

CHILD = """
import json, sys
for name in ("aotpack", "transformers", "conformance", "torch._dynamo", "torch._inductor"):
    sys.modules[name] = None  # importing it is an error
import torch, aotpack_loader
from torch.utils import _pytree as pytree

given, spec = sys.argv[1], json.loads(sys.argv[2])
saved = torch.load(given, weights_only=True)
results = {}
for name, case in saved.items():
    module = aotpack_loader.load(spec[name], backend="portable")
    args = case["args"]
    for leaf, wanted in zip(pytree.tree_leaves(args), case["requires_grad"], strict=True):
        leaf.requires_grad_(wanted)
    torch.manual_seed(101)
    result = module(*args)
    results[name] = collect(result, args, dict(module.named_parameters()), dict(module.named_buffers()))
torch.save(results, given + ".out")
"""

COLLECT = '''
def collect(result, args, parameters, buffers):
    """Values and gradients by path; a gradient goes through every floating-point result."""
    def walk(value):
        if isinstance(value, torch.Tensor):
            return [value]
        items = value.values() if hasattr(value, "values") else value if isinstance(value, (tuple, list)) else ()
        return [leaf for item in items for leaf in walk(item)]

    outputs, given = walk(result), walk(list(args))
    roots = [x for x in outputs if x.requires_grad and x.grad_fn is not None]
    torch.autograd.backward(roots, [torch.full_like(x, 0.5) for x in roots])
    return {
        "outputs": [x.detach().clone() for x in outputs],
        "inputs": [x.detach().clone() for x in given],
        "gradients": [x.grad for x in given],
        "parameters": {name: x.grad for name, x in parameters.items()},
        "buffers": buffers,
    }
'''


def _eager(case: Case) -> dict[str, Any]:
    """The same in this process, from the model itself."""
    scope: dict[str, Any] = {"torch": torch}
    exec(COLLECT, scope)
    model, make_inputs = seeded(case.make)
    args = make_inputs(1)[0]
    torch.manual_seed(101)
    state = (dict(model.named_parameters()), dict(model.named_buffers())) if isinstance(model, torch.nn.Module) else ({}, {})
    return scope["collect"](model(*args), args, *state)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore")
def test_fresh_process_without_the_source(tmp_path: Path) -> None:
    """Outputs, gradients, mutated inputs and buffers are eager's; the compiler and the model cannot be imported."""
    cases = {case.name: case for case in CASES if case.name in NAMES}
    assert cases.keys() == set(NAMES)
    paths, given, expected = {}, {}, {}
    for i, (name, case) in enumerate(cases.items()):
        paths[name] = str(tmp_path / f"{i}.aotpack")
        build(case, Path(paths[name]))
        args = case.make()[1](1)[0]
        leaves = torch.utils._pytree.tree_leaves(args)
        detached = torch.utils._pytree.tree_map(lambda x: x.detach(), args)
        given[name] = {"args": detached, "requires_grad": [leaf.requires_grad for leaf in leaves]}
        expected[name] = _eager(case)
    torch.save(given, tmp_path / "given.pt")
    child = [sys.executable, "-I", "-c", COLLECT + CHILD, str(tmp_path / "given.pt"), json.dumps(paths)]
    done = subprocess.run(child, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "given.pt.out", weights_only=True)
    for name in cases:
        torch.testing.assert_close(
            found[name], expected[name], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
