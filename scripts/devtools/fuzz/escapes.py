"""The escapes that issue 23 lists: each a bundle, with right digests, that once broke out of the loader's bounds.

Each is refused in a fork of its own, which measures processor time, memory, modules that came in, and files
that were written. ``scripts/fuzz escapes`` stores the figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..paths import ROOT
from .bundles import arguments, forget_peak, memory
from .mutants import Json, Parts, Seed

X: Json = {"type": "value", "name": "x"}
A: Json = {"type": "value", "name": "a"}
VALUE: Json = {"type": "tensor", "dtype": "float32", "shape": [2], "stride": [1]}
Escape = Callable[[], bytes | str]


def _seed(name: str) -> Parts:
    return Parts(Seed(name, (ROOT / "spec/vectors/v1/valid" / name / "bundle.aotpack").read_bytes()))


def _program(parts: Parts) -> Json:
    (program,) = parts.programs.values()
    parts.changed.add(id(program))
    return program


def _infer(parts: Parts) -> Json:
    """The inference graph, to be changed."""
    (program,) = parts.programs.values()
    return parts.graph(program["methods"]["infer"]["forward"]["digest"])


def many_items_in_a_graph() -> bytes:
    """24 KB that hold 50 MB of empty lists."""
    parts = _seed("mlp")
    (program,) = parts.programs.values()
    digest = program["methods"]["infer"]["forward"]["digest"]
    parts.replace_graph(digest, b'{"nodes":[' + b"[]," * (50_000_000 // 3) + b"[]]}")
    return parts.packed()


def graph_of_blanks() -> bytes:
    """40 KB that hold a graph with a billion blanks."""
    parts = _seed("mlp")
    (program,) = parts.programs.values()
    parts.replace_graph(program["methods"]["infer"]["forward"]["digest"], b" " * 1_000_000_000 + b"{}")
    return parts.packed()


def most_items_in_a_graph() -> bytes:
    """As many empty lists as are allowed, as the arguments of a node."""
    parts = _seed("mlp")
    (program,) = parts.programs.values()
    digest = program["methods"]["infer"]["forward"]["digest"]
    graph = _infer(parts)
    graph["nodes"][0]["args"] = ["lists"]
    text = json.dumps(graph).encode().replace(b'"lists"', b"[]," * 1_990_000 + b"[]")
    parts._changed_graphs.clear()
    parts.replace_graph(digest, text)
    return parts.packed()


def long_header_of_weights() -> bytes:
    """A safetensors header of 90 MB."""
    parts = _seed("mlp")
    text = b'{"a":[' + b"[]," * 30_000_000 + b"[]]}"
    text += b" " * (-len(text) % 8)
    parts.replace_blob(parts.weights[0], len(text).to_bytes(8, "little") + text)
    return parts.packed()


def many_output_symbols() -> bytes:
    """100,000 symbols of results."""
    parts = _seed("mlp")
    _program(parts)["methods"]["infer"]["output_symbols"] = [{"name": f"u{i}", "output": 0, "dim": 0} for i in range(100_000)]
    return parts.packed()


def names_of_many_parts() -> bytes:
    """A parameter with 2,000 dots in its name."""
    parts = _seed("mlp")
    _program(parts)["state"][0]["name"] = ".".join("x" * 2001)
    return parts.packed()


def integers_of_many_digits() -> bytes:
    """An argument of 4,300 digits, and one size of as many."""
    parts = _seed("mlp")
    _infer(parts)["nodes"][0]["args"].append(10**4299)
    return parts.packed()


def sizes_of_many_digits() -> bytes:
    """A size of an argument, of 4,300 digits."""
    parts = _seed("mlp")
    _program(parts)["methods"]["infer"]["leaves"][0]["shape"][0] = 10**4299
    return parts.packed()


def _view(step: Json) -> bytes:
    parts = _seed("views")
    results = _program(parts)["methods"]["infer"]["results"]
    assert [one["op"] for one in results[0]["view"]] == ["aten.select.int"]
    results[0]["view"] = [step]
    del results[1]["shared"]  # it refers to the first one's view
    return parts.packed()


def view_past_the_end() -> bytes:
    """A view that takes the ninth of two results: an IndexError."""
    return _view({"op": "aten.unbind.int", "args": [0], "select": 9})


def view_of_no_operator() -> bytes:
    """A view by an operator that does not exist: an AttributeError."""
    return _view({"op": "aten.no_such_view.default", "args": []})


def a_file_that_cannot_be_read() -> str:
    """The memory of the process, which opens and cannot be read."""
    return "/proc/self/mem"


def _graph(nodes: Sequence[Json], out: Json, subgraphs: Json | None = None, name: str = "a") -> Json:
    graph = {"inputs": [name], "input_values": [VALUE], "nodes": list(nodes), "outputs": [out]}
    return {**graph, **({"subgraphs": subgraphs} if subgraphs else {})}


def _node(name: str, op: str, args: Json, **fields: Json) -> Json:
    return {"name": name, "op": op, "args": args, "value": VALUE, **fields}


def _with_node(op: str, args: Json, subgraphs: Json) -> bytes:
    """A model that runs one more node first."""
    parts = _seed("mlp")
    graph = _infer(parts)
    made = {"name": "made", "op": "aten.ones.default", "args": [[2]], "value": VALUE}
    graph["nodes"][:0] = [made, {"name": "more", "op": op, "args": args, "value": {"type": "other", "kind": "tuple"}}]
    graph["subgraphs"] = {**graph.get("subgraphs", {}), **subgraphs}
    return parts.packed()


def endless_loop() -> bytes:
    """A while loop whose condition always holds."""
    true = {"type": "value", "name": "t"}
    always = _graph([_node("t", "aten.ones.default", [[]], kwargs={"dtype": {"type": "dtype", "value": "bool"}})], true)
    body = _graph([_node("b", "aten.neg.default", [A])], {"type": "value", "name": "b"})
    refs = [{"type": "graph", "name": "c"}, {"type": "graph", "name": "b"}]
    made = {"type": "value", "name": "made"}
    return _with_node("higher_order.while_loop", [*refs, [made], []], {"c": always, "b": body})


def calls_that_multiply() -> bytes:
    """Forty levels of subgraphs, each of which calls the next one twice."""
    graph = _graph([], A)
    for _ in range(40):
        args = [{"type": "graph", "name": "s"}, None, A]
        graph = _graph([_node(name, "higher_order.invoke_subgraph", args) for name in "pq"], A, {"s": graph})
    made = {"type": "value", "name": "made"}
    return _with_node("higher_order.invoke_subgraph", [{"type": "graph", "name": "s"}, None, made], {"s": graph})


def prims_in_python() -> bytes:
    """Operators of ``prims`` whose first call imports the compiler and writes to the temporary directory."""
    parts = _seed("mlp")
    node = _infer(parts)["nodes"][0]
    node.update(op="prims.broadcast_in_dim.default", args=[node["args"][0], [1], [0]])
    return parts.packed()


ESCAPES: tuple[Escape, ...] = (
    many_items_in_a_graph,
    most_items_in_a_graph,
    graph_of_blanks,
    long_header_of_weights,
    many_output_symbols,
    names_of_many_parts,
    integers_of_many_digits,
    sizes_of_many_digits,
    view_past_the_end,
    view_of_no_operator,
    a_file_that_cannot_be_read,
    endless_loop,
    calls_that_multiply,
    prims_in_python,
)


def measure(escapes: Sequence[Escape] = ESCAPES) -> dict[str, Json]:
    """Meet each in a fork of one fresh process. Returns what it ended in, and what that took."""
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder, "tmp")
        temporary.mkdir()
        paths, sizes = {}, {}
        for escape in escapes:
            made, name = escape(), escape.__name__
            paths[name] = made if isinstance(made, str) else os.path.join(folder, name)
            if isinstance(made, bytes):
                Path(paths[name]).write_bytes(made)
                sizes[name] = len(made)
        environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        program = f"from devtools.fuzz.escapes import meet; meet({paths!r})"
        command = [sys.executable, "-W", "ignore", "-c", program]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        return {line.pop("name"): {"bytes": sizes.get(name), **line} for line in lines for name in [line["name"]]}


def meet(paths: dict[str, str]) -> None:
    """Open, load and run bundles, and print what each took. An honest bundle ran first, so that all code is there."""
    import torch

    import aotpack_loader

    torch.set_num_threads(1)
    honest = aotpack_loader.load(ROOT / "spec/vectors/v1/valid/mlp/bundle.aotpack", backend="portable").eval()
    _call(honest)
    for name, path in paths.items():
        child = os.fork()
        if not child:
            os.write(1, json.dumps({"name": name, **_met(path)}).encode() + b"\n")
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            os.write(1, json.dumps({"name": name, "ended": f"exit {status}"}).encode() + b"\n")


def _met(path: str) -> Json:
    import aotpack_loader
    from aotpack_loader.errors import AotpackError

    forget_peak()
    before, modules, start = memory("VmRSS"), set(sys.modules), time.process_time()
    try:
        _call(aotpack_loader.load(path, backend="portable").eval())
        ended = "ran"
    except AotpackError as error:
        ended = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
    except Exception as error:
        ended = f"{type(error).__name__}: not ours"
    seconds, grown = time.process_time() - start, memory("VmHWM") - before
    compilers = sorted({"torch._dynamo", "torch._inductor"} & (sys.modules.keys() - modules))
    files = sorted(item.name for item in Path(os.environ["TMPDIR"]).iterdir())
    return {"ended": ended, "seconds": round(seconds, 3), "MiB": grown >> 10, "imported": compilers, "files": files}


def _call(model: Any) -> None:
    import torch

    args, kwargs = arguments(model.aotpack.program.methods["infer"])
    with torch.no_grad():
        model(*args, **kwargs)
