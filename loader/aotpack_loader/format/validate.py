"""Rules that span several fields: what a document must satisfy in addition to the schema's types.

Each rule has a number, which spec/ and the tests cite. The rules are checked once when a bundle is
opened, so that all later code can rely on its indices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from ..errors import CorruptBundleError, Problem
from ..text import shown
from . import containers, features, interface, modules, schema, subclasses, validate_expressions
from .interface import call_trees
from .versions import AUTOCAST_VARIANTS

MAX_DEPTH = 64
"""Of trees: no program nests as deeply."""
MAX_SIZE = 2**62
MAX_OUTPUTS = 2**20
"""Of a graph. Its document could not hold many more."""
RESERVED = frozenset({"aotpack", "training"})
"""Names a module of ours uses itself: no parameter may take them."""


def validate_program(program: schema.Program, where: str) -> None:
    """Check rules C1 to C18, less C14, C24, C31 to C33, A1, A2, and C36, C38, C39, C41 to C43, K1 to K5, N1 to N4, and V4.

    Raises:
        CorruptBundleError: lists every broken rule with its path in the document.
    """
    # Later checks walk trees and subclasses, and rely on their depth.
    refuse(where, chain(_tree_problems(program), subclasses.depth_problems(program)))
    refuse(where, validate_expressions.too_long(validate_expressions.of_program(program), "$.methods"))
    problems: Iterator[Problem] = chain(_state_problems(program), _method_problems(program))
    for rules in (subclasses, modules, interface, containers, features):
        problems = chain(problems, rules.problems(program))
    backwards = [method.backward for method in program.methods.values() if method.backward is not None]
    if any(backward.sparse or backward.tangent_writes or backward.state_writes for backward in backwards):
        from . import gradient_rules  # few programs have them

        problems = chain(problems, gradient_rules.problems(program))
    if program.optimizers or any(method.step for method in program.methods.values()):
        from . import optimizers  # few programs have one

        problems = chain(problems, optimizers.problems(program))
    refuse(where, problems)


def refuse(where: str, problems: Iterable[Problem]) -> None:
    """Raise an error that lists the first broken rules of document ``where``, if there are any. It looks no further."""
    if found := list(islice(problems, 50)):
        raise CorruptBundleError(f"The document {where} breaks the rules of the format.", found)


def _tree_problems(program: schema.Program) -> Iterator[Problem]:
    """C15: each key or field has one item and none repeats. The depth is limited."""
    for name, method in program.methods.items():
        changed = schema.TupleNode([update.tree for update in method.updates])
        for part, tree in (("inputs", method.inputs), ("outputs", method.outputs), ("updates", changed)):
            at = f"$.methods[{shown(name)}].{part}"
            level, depth = [tree], 0
            while level and depth <= MAX_DEPTH:
                for node in level:
                    labels = _labels(node)
                    if labels is not None and len(labels) != len(_items(node)):
                        yield Problem(at, "C15: there is one item for each key or field")
                    if (
                        isinstance(node, schema.TupleNode)
                        and node.size
                        and not all(isinstance(n, schema.LeafNode) for n in node.items)
                    ):
                        yield Problem(at, "C15: the sizes of a torch.Size are leaves")
                    if labels is not None and len(set(labels)) != len(labels):
                        yield Problem(at, "C15: a key or field is used twice")
                level, depth = [item for node in level for item in _items(node)], depth + 1
            if level:
                yield Problem(at, f"C15: it is nested more than {MAX_DEPTH} deep")


def _items(tree: schema.Tree) -> list[schema.Tree]:
    return [] if isinstance(tree, (schema.LeafNode, schema.GivenNode)) else tree.items


def _labels(tree: schema.Tree) -> list[str | int | bool] | None:
    if isinstance(tree, schema.DictNode):
        return tree.keys
    return [*tree.fields] if isinstance(tree, schema.RecordNode) else None


def _state_problems(program: schema.Program) -> Iterator[Problem]:
    known: dict[str, schema.StateEntry] = {}
    for i, entry in enumerate(program.state):
        at = f"$.state[{i}]"
        if entry.name in known:
            yield Problem(at, f"C1: the name {entry.name!r} is used twice")
        if not _is_path(entry.name) or entry.name.split(".")[0] in RESERVED:
            yield Problem(at, f"C2: {entry.name!r} is not a valid name of a parameter or buffer")
        if len(entry.shape) != len(entry.stride):
            yield Problem(at, "C3: shape and stride differ in length")
        if entry.requires_grad and not _is_differentiable(entry.dtype):
            yield Problem(at, f"C16: a tensor of {entry.dtype} cannot require a gradient")
        if entry.tied_to is not None:
            original = known.get(entry.tied_to)
            if original is None or original.tied_to is not None or original.kind != entry.kind:
                yield Problem(at, f"C4: tied_to {entry.tied_to!r} is not an earlier entry of the same kind")
        known[entry.name] = entry
    clear = {""}  # modules that contain no entry, so that each is checked once
    for name in known:
        above = name
        while (above := above.rpartition(".")[0]) not in clear:
            if above in known:
                yield Problem("$.state", f"C2: {name!r} has a name below that of another entry")
                break
        else:
            above = name.rpartition(".")[0]
            while above not in clear:
                clear.add(above)
                above = above.rpartition(".")[0]
        if len(clear) > modules.MAX_MODULES:
            yield Problem("$.state", f"C2: the names are of more than {modules.MAX_MODULES} modules")
            break


def _is_path(name: str) -> bool:
    """Whether ``name`` is a path of steps separated by dots, without control characters, and not too deep for torch's walks."""
    return name.count(".") < MAX_DEPTH and all(step and min(step) > "\x1f" for step in name.split("."))


def _method_problems(program: schema.Program) -> Iterator[Problem]:
    entries = {entry.name: entry.kind for entry in program.state}
    served: set[tuple[str, bool, bool, str | None]] = set()
    variants = AUTOCAST_VARIANTS in program.features
    if not program.methods:
        yield Problem("$.methods", "C5: a program has at least one method")
    for name, method in program.methods.items():
        at = f"$.methods[{shown(name)}]"
        for mode in method.serves:
            key = method.function, mode.training, mode.grad, method.autocast if variants else None
            if key in served:
                yield Problem(at, "C5: two methods serve the same mode")
            served.add(key)
        if method.function and not (method.serves and method.function.isidentifier()):
            yield Problem(f"{at}.function", "C43: it is no identifier, or the method serves no mode")
        if max(method.num_outputs, subclasses.num_backward_outputs(method.backward) if method.backward else 0) > MAX_OUTPUTS:
            yield Problem(at, f"C14: a graph returns at most {MAX_OUTPUTS} values")
            continue
        yield from _signature_problems(method, entries, at)
        yield from validate_expressions.problems(method, at)
        if method.backward is not None:
            yield from _backward_problems(method, method.backward, at)
            if method.backward.second is not None and not _is_second(program, method, method.backward):
                yield Problem(f"{at}.backward.second", "C31: it does not take tangents and tensor arguments and return gradients")


def _is_second(program: schema.Program, first: schema.Method, backward: schema.Backward) -> bool:
    second = program.methods.get(backward.second.method) if backward.second is not None else None
    reached = backward.second.depends if backward.second is not None else []
    if reached and (len(reached) != len(first.primals) or any(t >= len(backward.tangents) for ts in reached for t in ts)):
        return False
    if (
        second is None
        or second.role == "call"
        or second.backward is None
        or second.backward.second is not None
        or second.mutations
    ):
        return False
    wanted = [tangent.dtype for tangent in backward.tangents]
    wanted += [leaf.dtype for leaf in first.leaves if isinstance(leaf, schema.TensorLeaf)]
    taken = [leaf.dtype for leaf in second.leaves if isinstance(leaf, schema.TensorLeaf)]
    names = (schema.ParameterPrimal, schema.BufferPrimal)
    known = {primal.name for primal in first.primals if isinstance(primal, names)}
    used = {primal.name for primal in second.primals if isinstance(primal, names)}
    gradients = [position for position in backward.gradients if position is not None]
    return len(second.leaves) == len(taken) and taken == wanted and used <= known and len(second.results) == len(gradients)


def _is_differentiable(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))


def _sizes_problems(shape: list[schema.Dim], stride: list[schema.Dim] | None, at: str) -> Iterator[Problem]:
    if stride is not None and len(stride) != len(shape):
        yield Problem(at, "C3: shape and stride differ in length")
    if any(isinstance(size, int) and not 0 <= size <= MAX_SIZE for size in [*shape, *(stride or [])]):
        yield Problem(at, f"C3: a size or stride is not in 0..{MAX_SIZE}")


def _signature_problems(method: schema.Method, entries: Mapping[str, str], at: str) -> Iterator[Problem]:
    outputs, primals = method.num_outputs, len(method.primals)
    yield from _leaf_problems(method, at)
    for i, primal in enumerate(method.primals):
        yield from _primal_problems(primal, method.leaves, entries, f"{at}.primals[{i}]")
    for i, group in enumerate(method.identical):
        yield from in_range(f"{at}.identical[{i}]", "C7", [(leaf, len(method.leaves)) for leaf in group])
        if len(group) < 2:
            yield Problem(f"{at}.identical[{i}]", "C7: a group has at least two leaves")
    for i, mutation in enumerate(method.mutations):
        yield from in_range(f"{at}.mutations[{i}]", "C8", [(mutation.primal, primals), (mutation.output, outputs)])
        if mutation.geometry is not None:
            yield from _sizes_problems(mutation.geometry.shape, mutation.geometry.stride, f"{at}.mutations[{i}]")
    yield from in_range(f"{at}.non_differentiable", "C8", [(i, outputs) for i in method.non_differentiable])
    yield from in_range(f"{at}.touched", "C8", [(i, primals) for i in method.touched])
    for i, result in enumerate(method.results):
        yield from _result_problems(result, primals, outputs, f"{at}.results[{i}]")
    yield from _base_problems(method, at)


def _leaf_problems(method: schema.Method, at: str) -> Iterator[Problem]:
    try:
        call_trees(method.inputs)
    except CorruptBundleError as error:
        yield Problem(f"{at}.inputs", f"A1: {error.summary}")
    for i, leaf in enumerate(method.leaves):
        if isinstance(leaf, schema.TensorLeaf):
            yield from _sizes_problems(leaf.shape, leaf.stride, f"{at}.leaves[{i}]")
            if leaf.requires_grad and not _is_differentiable(leaf.dtype):
                yield Problem(f"{at}.leaves[{i}]", f"C16: a tensor of {leaf.dtype} cannot require a gradient")
            if leaf.sets_requires_grad and not leaf.requires_grad:
                yield Problem(f"{at}.leaves[{i}]", "C33: requires_grad_() is called on it, and it requires no gradient")
    if _leaves(method.inputs) != len(method.leaves):
        yield Problem(f"{at}.leaves", "C6: the tree of inputs has another number of leaves")
    if _leaves(method.outputs) + sum(_leaves(update.tree) for update in method.updates) != len(method.results):
        yield Problem(f"{at}.results", "C6: the tree of outputs has another number of leaves")


def _primal_problems(
    primal: schema.Primal, leaves: Sequence[schema.InputLeaf], entries: Mapping[str, str], at: str
) -> Iterator[Problem]:
    if isinstance(primal, schema.InputPrimal):
        if primal.leaf >= len(leaves) or not isinstance(leaves[primal.leaf], schema.TensorLeaf):
            yield Problem(at, "C7: the leaf is not a tensor argument")
    elif isinstance(primal, schema.ParameterPrimal) and entries.get(primal.name) != "parameter":
        yield Problem(at, f"C7: {primal.name!r} is not a parameter")
    elif isinstance(primal, schema.BufferPrimal) and entries.get(primal.name) != "buffer":
        yield Problem(at, f"C7: {primal.name!r} is not a buffer")
    elif isinstance(primal, (schema.SyntheticBasePrimal, schema.ViewBasePrimal)):
        from . import bases  # few programs have them

        if isinstance(primal, schema.ViewBasePrimal):
            yield from _sizes_problems([*primal.shape], [*primal.stride], at)
        yield from bases.problems(primal, leaves, at)


def _base_problems(method: schema.Method, at: str) -> Iterator[Problem]:
    """Rules of results about the primals and earlier results that they share memory with."""
    written = {mutation.primal for mutation in method.mutations}
    for i, result in enumerate(method.results):
        copied = getattr(result, "laid_out", False) or getattr(result, "reshaped", False)
        if copied and getattr(result, "primal", None) in {*written, None}:
            yield Problem(f"{at}.results[{i}]", "C28: its base, which may be a copy, is not a primal, or is written to")
        if isinstance(result, schema.AliasResult) and result.shared is not None:
            earlier = method.results[result.shared.result] if result.shared.result < i else None
            if not _continues(result, result.shared, earlier):
                yield Problem(
                    f"{at}.results[{i}].shared", "C17: it is not an earlier alias of the same base with the same first steps"
                )


def _result_problems(result: schema.Result, primals: int, outputs: int, at: str) -> Iterator[Problem]:
    if isinstance(result, (schema.FreshResult, schema.NumberResult)):
        yield from in_range(at, "C9", [(result.output, outputs)])
        if isinstance(result, schema.FreshResult) and result.sparse_dim is not None and result.requires_grad:
            yield Problem(at, "C32: a sparse result carries no gradient")
    elif isinstance(result, schema.InputResult):
        yield from in_range(at, "C9", [(result.primal, primals)])
    elif isinstance(result, schema.AliasResult):
        if (result.primal is None) == (result.output is None):
            yield Problem(at, "C9: an alias has either a primal or an output as its base")
        yield from in_range(at, "C9", [(i, n) for i, n in ((result.primal, primals), (result.output, outputs)) if i is not None])


def _continues(result: schema.AliasResult, shared: schema.Shared, earlier: schema.Result | None) -> bool:
    if not isinstance(earlier, schema.AliasResult) or earlier.laid_out != result.laid_out:
        return False
    if (earlier.primal, earlier.output) != (result.primal, result.output):
        return False
    ours, theirs, steps = result.view, earlier.view, shared.steps
    if steps + shared.call > min(len(ours), len(theirs)) or (steps + shared.call == 0 and (ours or theirs)):
        return False
    if shared.call and _called(ours[steps]) != _called(theirs[steps]):
        return False
    return earlier.history == result.history and ours[:steps] == theirs[:steps]


def _called(step: schema.ViewStep) -> tuple[object, ...]:
    return step.op, step.args, step.kwargs


def _backward_problems(method: schema.Method, backward: schema.Backward, at: str) -> Iterator[Problem]:
    outputs, primals = method.num_outputs, len(method.primals)
    if len(backward.gradients) != primals:
        yield Problem(f"{at}.backward.gradients", "C10: there is one entry for each primal")
    visible = {mutation.output for mutation in method.mutations if mutation.kind != "metadata"}
    for result in method.results:
        if isinstance(result, (schema.FreshResult, schema.AliasResult)) and result.output is not None:
            visible.add(result.output)
    if backward.depends and len(backward.depends) != subclasses.num_backward_outputs(backward):
        yield Problem(f"{at}.backward.depends", "C10: there is one entry for each output of the backward graph")
    for i, tangents in enumerate(backward.depends):
        yield from in_range(f"{at}.backward.depends[{i}]", "C10", [(tangent, len(backward.tangents)) for tangent in tangents])
    for i, saved in enumerate(backward.saved):
        if isinstance(saved, schema.SavedPrimal):
            yield from in_range(f"{at}.backward.saved[{i}]", "C11", [(saved.primal, primals)])
        elif isinstance(saved, schema.SavedOutput):
            yield from in_range(f"{at}.backward.saved[{i}]", "C11", [(saved.output, outputs)])
    for i, tangent in enumerate(backward.tangents):
        if tangent.output not in visible:
            yield Problem(f"{at}.backward.tangents[{i}]", "C12: its output is neither a result, a base nor written back")
        yield from _sizes_problems(tangent.shape, tangent.stride, f"{at}.backward.tangents[{i}]")
    if backward.result_sources:
        yield from _source_problems(backward.result_sources, method.results, f"{at}.backward.result_sources")


def _source_problems(sources: list[list[int]], results: list[schema.Result], at: str) -> Iterator[Problem]:
    """C41: there is one entry for each result, and it lists other results. All of them are tensors."""
    if len(sources) != len(results):
        yield Problem(at, "C41: there is one entry for each result")
        return
    kinds = (schema.FreshResult, schema.AliasResult, schema.InputResult)
    for i, of in enumerate(sources):
        for j in of:
            if j >= len(results) or j == i:
                yield Problem(f"{at}[{i}]", f"C41: there is no other result {j}")
            elif not isinstance(results[i], kinds) or not isinstance(results[j], kinds):
                yield Problem(f"{at}[{i}]", f"C41: result {i} or result {j} is no tensor")


def _leaves(tree: schema.Tree) -> int:
    if isinstance(tree, schema.GivenNode):
        return 0
    return 1 if isinstance(tree, schema.LeafNode) else sum(map(_leaves, tree.items))


def in_range(at: str, rule: str, pairs: Iterable[tuple[int, int]]) -> Iterator[Problem]:
    """Report indices that are not below their counts."""
    for index, count in pairs:
        if index >= count:
            yield Problem(at, f"{rule}: index {index} is out of range, there are {count}")
