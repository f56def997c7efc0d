"""One process of the matrix: builds all cases, or loads what another release built.

Run with the Python of one release. It writes one line of JSON for each case, so the caller knows
the case during which a process ended.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from conformance.table import CASES

import aotpack
from aotpack.checking.observation import Observation, differences
from aotpack_loader.errors import AotpackError, TargetError
from aotpack_loader.module.program import LoadedProgram
from devtools.harness import Case, build, observe, seeded

Bits = dict[str, torch.Tensor | None]
Row = dict[str, Any]


def main(what: str, folder: Path, names: list[str]) -> None:
    """Build the cases in ``folder``, or load them from there. ``names`` are ``file:case``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table = {case.name: case for case in CASES}
    work = _build if what == "build" else _load
    for item in names:
        key, _, name = item.partition(":")
        print(json.dumps({"started": name}), flush=True)
        began = time.monotonic()
        row = work(table[name], folder / f"{key}.aotpack")
        print(json.dumps({"case": name, "seconds": round(time.monotonic() - began, 1), **row}), flush=True)


def _build(case: Case, path: Path) -> Row:
    """Build a case, run it here, and keep what it gave. What an earlier run built is not built again."""
    if path.exists() and path.with_suffix(".pt").exists():
        return {"result": "built"}
    path.unlink(missing_ok=True)
    try:
        build(replace(case, targets=("cpu:x86-64-v3",), rng="eager"), path)
    except AotpackError as error:
        return {"result": "not built", "reason": _one_line(error)}
    found, seen = _compared(case, aotpack.load(path, backend="cpu", trust="all", subclasses=case.subclasses))
    if found:
        return {"result": "differs", "reason": found[:5]}
    torch.save(seen, path.with_suffix(".pt"))
    return {"result": "built"}


def _load(case: Case, path: Path) -> Row:
    """Run a case that another release built. Compare with eager, and bit for bit with that release."""
    options: Mapping[str, Any] = {"backend": "cpu", "trust": "all", "subclasses": case.subclasses}
    try:
        loaded = aotpack.load(path, **options, allow_untested_torch=True)
    except TargetError as error:
        return {"result": "refused", "reason": _one_line(error)}
    found, seen = _compared(case, loaded)
    if found:
        return {"result": "differs", "reason": found[:5]}
    there: list[Bits] = torch.load(path.with_suffix(".pt"), weights_only=True)
    pairs = [(now.get(key), then[key]) for then, now in zip(there, seen, strict=True) for key in then]
    equal = sum(_same_bits(now, then) for now, then in pairs)
    return {"result": "bit for bit" if equal == len(pairs) else "as eager", "tensors": len(pairs), "equal": equal}


def _compared(case: Case, loaded: LoadedProgram) -> tuple[list[str], list[Bits]]:
    """Differences from eager, and all tensors that a caller sees, call by call."""
    model, make_inputs = seeded(case.make)
    found: list[str] = []
    seen: list[Bits] = []
    for number, call in enumerate(case.calls):
        make = call.inputs or make_inputs
        bundle = observe(case, call, loaded, make)
        if call.refused:
            found += [] if isinstance(bundle.error, AotpackError) else [f"call {number}: should have been refused"]
            continue
        found += [f"call {number}: {line}" for line in differences(observe(case, call, model, make), bundle)]
        seen.append(_bits(bundle))
    return found, seen


def _bits(observed: Observation) -> Bits:
    return {f"result {path}": facts.value for path, facts in observed.tensors.items()} | dict(observed.after)


def _same_bits(now: torch.Tensor | None, then: torch.Tensor | None) -> bool:
    if now is None or then is None:
        return now is then
    if now.dtype != then.dtype or now.shape != then.shape:
        return False
    if not now.numel():
        return True
    now, then = (x.contiguous().reshape(-1).view(torch.uint8) for x in (now, then))
    return torch.equal(now, then)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
