"""Every rule has a vector that a reader without it fails.

Most rules have an invalid vector, or a call that must be refused. A rule that no input can break has an entry of
``WITHOUT``: the loader without that rule, and a vector that then fails. Some rules have both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from msgspec import structs
from test_vector_coverage import INVALID, RULES_WITHOUT_VECTOR, VALID, VECTORS, _calls, rules

from aotpack_loader.archive.weights import View, WeightMap
from aotpack_loader.devices import aoti, operators, pjrt
from aotpack_loader.devices.call_library import import_library
from aotpack_loader.devices.portable import PortableExecutable, _names
from aotpack_loader.errors import AotpackError, CorruptBundleError
from aotpack_loader.format import codec, schema
from aotpack_loader.module import assigned, program
from aotpack_loader.module.program import LoadedProgram
from aotpack_loader.runtime import call, containers
from aotpack_loader.runtime.backward_inputs import Tangent
from aotpack_loader.runtime.second import SecondDerivative
from devtools.spec.calls import MismatchError
from devtools.spec.replay import EXPECT, fits, replay

Patch = pytest.MonkeyPatch


def broken() -> dict[str, list[str]]:
    """For each rule the invalid vectors that break it, and the valid ones with a call that does."""
    found: dict[str, list[str]] = {}
    for folder in INVALID:
        found.setdefault(json.loads((folder / EXPECT).read_text())["constraint"], []).append(f"invalid/{folder.name}")
    for folder in VALID:
        for rule in {item["refused"]["rule"] for item in _calls(folder) if "refused" in item}:
            found.setdefault(rule, []).append(f"valid/{folder.name}")
    return found


# ---------------------------------------------------------------- loaders without a rule


def other_algorithms(patch: Patch) -> None:
    run = PortableExecutable.__call__

    def undetermined(self: PortableExecutable, inputs: list[Any]) -> list[Any]:
        torch.use_deterministic_algorithms(False)
        return run(self, inputs)

    patch.setattr(PortableExecutable, "__call__", undetermined)


def never_requires(patch: Patch) -> None:
    patch.setattr(
        call.MethodCall, "_requiring_gradients", lambda self, leaves, strided, environment, *rest: (leaves, strided, environment)
    )


def requires_too_early(patch: Patch) -> None:
    run = call.MethodCall.__call__

    def early(self: call.MethodCall, args: tuple[Any, ...], kwargs: dict[str, Any], state: Any) -> Any:
        for leaf in self._made_to_require:
            args[leaf].requires_grad_()
        return run(self, args, kwargs, state)

    patch.setattr(call.MethodCall, "__call__", early)


def unchecked_containers(patch: Patch) -> None:
    patch.setattr(containers.Containers, "check", lambda self, passed: None)


def one_container_after_another(patch: Patch) -> None:
    def change(self: containers.Containers, passed: containers.Call, results: Any) -> Any:
        leaves = containers._Leaves(iter(results), lambda path: containers._at(passed, containers._keys(self._inputs, path)))
        result = self._build(leaves)
        for update in self._updates:
            update.apply(containers._at(passed, update.keys), update.build(leaves))
        return result

    patch.setattr(containers.Containers, "__call__", change)


def keys_stay(patch: Patch) -> None:
    keep = containers._Update.apply

    def apply(self: containers._Update, container: Any, content: Any) -> None:
        self._removed = []
        keep(self, container, content)

    patch.setattr(containers._Update, "apply", apply)


def passes_no_state(patch: Patch) -> None:
    patch.setattr(assigned, "_run", LoadedProgram._aotpack_run)


def operators_write(patch: Patch) -> None:
    patch.setattr(operators, "_copied", lambda value: value)


def drops_unread_nodes(patch: Patch) -> None:
    make = PortableExecutable.__init__

    def pruned(self: PortableExecutable, graph: schema.Graph, *args: Any, **kwargs: Any) -> None:
        read = {name for node in graph.nodes for name in _names([*node.args, *node.kwargs.values()])} | {*_names(graph.outputs)}
        make(self, structs.replace(graph, nodes=[node for node in graph.nodes if node.name in read]), *args, **kwargs)

    patch.setattr(PortableExecutable, "__init__", pruned)


def missing_tangents_are_ones(patch: Patch) -> None:
    convert = Tangent.__call__

    def ones(self: Tangent, gradient: torch.Tensor | None, *args: Any) -> torch.Tensor:
        found = convert(self, gradient, *args)
        return torch.ones_like(found) if gradient is None else found

    patch.setattr(Tangent, "__call__", ones)


def first_mode_only(patch: Patch) -> None:
    by_mode = program.by_mode
    patch.setattr(program, "by_mode", lambda serves, calls: by_mode({name: modes[:1] for name, modes in serves.items()}, calls))


def differentiates_changed(patch: Patch) -> None:
    patch.setattr(SecondDerivative, "before", lambda self, primals: ([ANY] * len(self._watched), None))


def forgets_that_gradients_are_on(patch: Patch) -> None:
    make = call.MethodCall.__init__

    def without(self: call.MethodCall, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self._turns_on = False

    patch.setattr(call.MethodCall, "__init__", without)


def detaches_every_result(patch: Patch) -> None:
    fresh = schema.FreshResult
    patch.setattr(call, "detached_outputs", lambda results: [result.output for result in results if isinstance(result, fresh)])


def refuses_unknown_properties(patch: Patch) -> None:
    decode = codec.decode

    def strict(data: Any, kind: Any, *, where: str) -> Any:
        found = decode(data, kind, where=where)
        unknown = json.loads(bytes(data)).keys() - json.loads(codec.encode(found)).keys()
        if unknown - set(structs.asdict(found)):
            raise CorruptBundleError(f"{where} has the unknown properties {unknown}.")
        return found

    for module in ("aotpack_loader.archive.bundle.decode", "aotpack_loader.archive.manifests.decode"):
        patch.setattr(module, strict)


def one_storage_for_all(patch: Patch) -> None:
    def tensor(self: WeightMap, entry: Any) -> torch.Tensor:
        blob, start, _ = self.location(entry.storage)
        whole = torch.frombuffer(self._layout.map(blob), dtype=torch.uint8)
        dtype = getattr(torch, entry.dtype)
        return whole.view(dtype).as_strided(tuple(entry.shape), tuple(entry.stride), start // dtype.itemsize + entry.offset).data

    patch.setattr(WeightMap, "tensor", tensor)


def part_of_a_constant(patch: Patch) -> None:
    patch.setattr(WeightMap, "constant", lambda self, *view: self.tensor(View.contiguous(*view)))


def overwrites_what_is_kept(patch: Patch) -> None:
    patch.setattr(aoti.AotiExecutable, "retaining", aoti.AotiExecutable.__call__)


def overwrites_whatever_it_may(patch: Patch) -> None:
    make = pjrt.PjrtDevice.executable

    def made(self: pjrt.PjrtDevice, key: str, *given: Any) -> Callable[[list[Any]], list[Any]]:
        run, described = make(self, key, *given), self._computations[key]
        donated = [described.parameters[i].input for i in described.donated]

        def overwriting(inputs: list[Any]) -> list[Any]:
            taken = [inputs[i] for i in donated if i is not None]
            results = run(inputs)
            for tensor in taken:
                tensor.zero_()
            return results

        return overwriting

    patch.setattr(pjrt.PjrtDevice, "executable", made)


def opens_any_call_library(patch: Patch) -> None:
    patch.setattr(aoti, "open_library", lambda bundle, target: (import_library(bundle.code(target.call.code)), ""))


WITHOUT: list[tuple[str, str, Callable[[Patch], None]]] = [
    ("A11", "valid/asked_for_determinism", other_algorithms),
    ("A16", "valid/requires_grad_set_last", never_requires),
    ("A16", "valid/requires_grad_set_last", requires_too_early),
    ("A17", "valid/exchanged_containers", unchecked_containers),
    ("A17", "valid/one_container_twice", unchecked_containers),
    ("A18", "valid/exchanged_containers", one_container_after_another),
    ("A18", "valid/exchanged_containers", keys_stay),
    ("G9", "valid/written_by_an_operator", operators_write),
    ("G10", "valid/unused_draw", drops_unread_nodes),
    ("G10", "valid/unused_check", drops_unread_nodes),
    ("R2", "valid/channels_last", missing_tangents_are_ones),
    ("R7", "valid/several_modes", first_mode_only),
    ("R13", "valid/assigned", passes_no_state),
    ("R8", "valid/second_derivatives_of_changed", differentiates_changed),
    ("R9", "valid/turns_gradients_on", forgets_that_gradients_are_on),
    ("R10", "valid/view_from_the_graph", detaches_every_result),
    ("X7", "valid/compiled_step", overwrites_what_is_kept),
    ("X5", "valid/programs_for_sizes", overwrites_whatever_it_may),
    ("X8", "valid/compiled_step", opens_any_call_library),
    ("V3", "valid/later_properties", refuses_unknown_properties),
    ("W7", "valid/beyond_its_storage", one_storage_for_all),
    ("W8", "invalid/constant_in_part", part_of_a_constant),
]
"""A rule, a vector, and what takes the rule out of the loader."""


@pytest.mark.parametrize(("rule", "vector", "without"), WITHOUT, ids=lambda value: getattr(value, "__name__", None) or value)
def test_a_loader_without_the_rule_fails_its_vector(
    rule: str, vector: str, without: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    targets = json.loads((VECTORS / vector / EXPECT).read_text()).get("targets", ())
    if targets and not any(fits(VECTORS / vector, target) for target in targets):
        pytest.skip("the vector's code is for other machines, or another torch")
    replay(VECTORS / vector)
    without(monkeypatch)
    # TypeError: a container that cannot be changed. ImportError: a library that is none.
    with pytest.raises((MismatchError, AotpackError, TypeError, ImportError)):
        replay(VECTORS / vector)


def test_every_rule_is_broken_by_a_vector_or_taken_out_of_the_loader() -> None:
    shown = broken().keys() | {rule for rule, _, _ in WITHOUT}
    assert sorted(rules() - shown - RULES_WITHOUT_VECTOR.keys()) == [], (
        "add an invalid vector, a refused call, or an entry of WITHOUT"
    )


def test_every_valid_vector_of_the_list_says_that_it_shows_the_rule() -> None:
    for rule, vector, _ in WITHOUT:
        expect = json.loads((VECTORS / vector / EXPECT).read_text())
        cited = {expect["constraint"]} if "constraint" in expect else set(expect["covers"])
        cited |= {item["refused"]["rule"] for item in expect.get("calls", ()) if "refused" in item}
        assert rule in cited, vector
