"""Rules of expressions over sizes: C13, C24 and A2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from ..errors import CorruptBundleError, Problem
from . import expressions, schema, subclasses


def too_long(texts: Iterable[str], at: str) -> Iterator[Problem]:
    """Bound the time to read the expressions of a document, each of which counts once."""
    total = sum(map(len, set(texts)))
    if total > expressions.MAX_TOTAL:
        yield Problem(at, f"C13: its expressions have {total} characters in all; the limit is {expressions.MAX_TOTAL}")


def of_program(program: schema.Program) -> Iterator[str]:
    """All expressions of a program."""
    for method in program.methods.values():
        for _, text in chain(_expressions_before(method), _expressions_after(method)):
            yield text


def problems(method: schema.Method, at: str) -> Iterator[Problem]:
    """C13: every expression parses, and uses only the method's symbols. A2: arguments determine all symbols."""
    known = {symbol.name for symbol in method.symbols}
    if len(known) != len(method.symbols):
        yield Problem(f"{at}.symbols", "C13: a symbol is declared twice")
    if any(symbol.maximum is not None and symbol.maximum < symbol.minimum for symbol in method.symbols):
        yield Problem(f"{at}.symbols", "C13: the maximum of a symbol is below its minimum")
    sizes = {size for leaf in method.leaves for size in subclasses.leaf_sizes(leaf)}
    if unbound := known - sizes:
        yield Problem(f"{at}.symbols", f"A2: no argument determines the sizes {', '.join(sorted(unbound))}")
    for symbol in known:
        if not expressions.is_symbol(symbol):
            yield Problem(f"{at}.symbols", f"C13: {symbol!r} is not a valid symbol name")
    yield from unknown_symbols(_expressions_before(method), known, at)
    measured = Counter(symbol.name for symbol in method.output_symbols)
    for i, size in enumerate(method.output_symbols):
        where = f"{at}.output_symbols[{i}]"
        if size.output >= method.num_outputs:
            yield Problem(where, f"C24: index {size.output} is out of range, there are {method.num_outputs}")
        if not expressions.is_symbol(size.name) or size.name in known or measured[size.name] > 1:
            yield Problem(where, f"C24: {size.name!r} is not a symbol, or is declared twice")
        if size.minimum is not None and size.maximum is not None and size.maximum < size.minimum:
            yield Problem(where, "C24: the maximum is below the minimum")
    needed = {symbol.name for symbol in method.output_symbols if symbol.needed}
    yield from unknown_symbols(_expressions_after(method), known | needed, at)


def unknown_symbols(found: Iterable[tuple[str, str]], known: Collection[str], at: str) -> Iterator[Problem]:
    """C13: of expressions with their paths, those that do not parse, or use other symbols than ``known``."""
    valid: set[str] = set()
    for where, text in found:
        if text in valid:
            continue
        try:
            expressions.parse(text)
        except CorruptBundleError as error:
            yield Problem(f"{at}{where}", f"C13: {error.summary}")
            continue
        if unknown := expressions.symbols(text).difference(known):
            yield Problem(f"{at}{where}", f"C13: unknown symbols {', '.join(sorted(unknown))}")
        else:
            valid.add(text)


def _expressions_before(method: schema.Method) -> Iterator[tuple[str, str]]:
    """Expressions that are evaluated before the forward runs."""
    for text in method.constraints:
        yield ".constraints", text
    for size in method.sizes:
        if isinstance(size, str):
            yield ".sizes", size
    for i, leaf in enumerate(method.leaves):
        strides = (leaf.stride or []) if isinstance(leaf, schema.TensorLeaf) else []
        own = leaf.shape if isinstance(leaf, schema.TensorLeaf) else subclasses.leaf_sizes(leaf)
        yield from ((f".leaves[{i}]", size) for size in [*own, *strides] if isinstance(size, str))


def _expressions_after(method: schema.Method) -> Iterator[tuple[str, str]]:
    """Expressions that are evaluated after the forward."""
    for i, mutation in enumerate(method.mutations):
        if mutation.geometry is not None:
            sizes = [*mutation.geometry.shape, *mutation.geometry.stride, mutation.geometry.offset]
            yield from ((f".mutations[{i}].geometry", size) for size in sizes if isinstance(size, str))
    for i, result in enumerate(method.results):
        if isinstance(result, schema.SizeResult) and isinstance(result.expr, str):
            yield f".results[{i}]", result.expr
        elif isinstance(result, schema.AliasResult):
            arguments = [a for step in result.view for a in [*step.args, *step.kwargs.values()]]
            yield from ((f".results[{i}].view", arg.value) for arg in flat(arguments) if isinstance(arg, schema.ExprArg))
    for path, subclass in subclasses.of_method(method, ""):
        yield from ((path, size) for size in subclasses.sizes(subclass) if isinstance(size, str))
    if method.backward is not None:
        for i, saved in enumerate(method.backward.saved):
            if isinstance(saved, schema.SavedSize) and isinstance(saved.expr, str):
                yield f".backward.saved[{i}]", saved.expr
        for i, tangent in enumerate(method.backward.tangents):
            for size in [*tangent.shape, *(tangent.stride or [])]:
                if isinstance(size, str):
                    yield f".backward.tangents[{i}]", size


def flat(args: Iterable[object]) -> Iterator[object]:
    """Arguments of an operator, including those in lists."""
    for arg in args:
        if isinstance(arg, list):
            yield from flat(arg)
        else:
            yield arg
