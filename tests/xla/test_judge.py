"""The outside judge: jax's CPU client runs a bundle's StableHLO, and finds eager's results and gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.format import schema

from . import models
from .test_train import build


def compile_stablehlo(module: bytes, *options: Any) -> Any:
    """Compile StableHLO bytecode with jaxlib alone."""
    import jax
    from jaxlib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    client = jax.devices("cpu")[0].client
    devices = _jax.DeviceList(tuple(client.local_devices()[:1]))
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        text = str(stablehlo.deserialize_portable_artifact(context, module))
    return client.compile_and_load(text.encode(), devices, *options)


def run(module: bytes, arguments: Sequence[np.ndarray[Any, Any]]) -> list[torch.Tensor]:
    """Compile StableHLO bytecode with jaxlib alone, and run it."""
    import jax

    compiled = compile_stablehlo(module)
    with jax.enable_x64(True):
        given = [jax.device_put(argument) for argument in arguments]
        results = compiled.execute_sharded(given).disassemble_into_single_device_arrays()
    return [torch.from_numpy(np.asarray(shards[0]).copy()) for shards in results]


def graph(bundle: Bundle, key: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run one of a bundle's graphs."""
    executable = bundle.targets["xla:cpu"].xla[key]
    assert executable.stablehlo is not None
    taken = [inputs[parameter.input or 0].detach().numpy() for parameter in executable.parameters]
    results = run(bundle.module(executable.stablehlo), taken)
    return [results[item] if isinstance(item, int) else inputs[item.index] for item in executable.outputs]


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_stablehlo_gives_eagers_results_and_gradients(name: str, tmp_path: Path) -> None:
    model, args = getattr(models, name)()
    bundle = Bundle.open(build(copy.deepcopy(model), args, tmp_path / "model.aotpack"))
    method = bundle.program.methods["train"]
    backward = method.backward
    assert backward is not None
    state = dict(model.state_dict())
    primals = [args[p.leaf] if isinstance(p, schema.InputPrimal) else state[p.name] for p in method.primals]  # type: ignore[union-attr]
    primals = [primal.clone() for primal in primals]
    outputs = graph(bundle, "train.forward", primals)
    saved = [primals[s.primal] if isinstance(s, schema.SavedPrimal) else outputs[s.output] for s in backward.saved]  # type: ignore[union-attr]
    tangents = [torch.ones(()) if not tangent.shape else torch.zeros(tangent.shape) for tangent in backward.tangents]  # type: ignore[arg-type]
    gradients = graph(bundle, "train.backward", [*saved, *tangents])

    found = model(*args)
    loss = found[0] if isinstance(found, tuple) else found
    loss.backward()
    position = method.results[0].output  # type: ignore[union-attr]
    torch.testing.assert_close(outputs[position], loss.detach())
    for mutation in method.mutations:  # BatchNorm's buffers
        torch.testing.assert_close(outputs[mutation.output], state[method.primals[mutation.primal].name])  # type: ignore[union-attr]
    expected = {name: parameter.grad for name, parameter in model.named_parameters(remove_duplicate=False)}
    for primal, place in zip(method.primals, backward.gradients, strict=True):
        if place is not None and isinstance(primal, schema.ParameterPrimal):
            torch.testing.assert_close(gradients[place], expected[primal.name], rtol=1e-4, atol=1e-5)
