"""Events of torch's profiler in compiled code: each kernel has a name with the modules that it comes from.

The code starts an event before a kernel and ends it afterwards, through torch's C shim. It asks once
a run whether a profiler is there; without one an event is a comparison.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.cpp import KernelGroup
from torch._inductor.graph import SubgraphLowering
from torch._inductor.scheduler import Scheduler
from torch._inductor.virtualized import V
from torch.fx import GraphModule, Node

from aotpack_loader.format.events import event_name

from ...api.graph_modules import graph_modules_in
from ...api.patching import hooked

_ORIGINS = "aotpack_origins"
"""The key in a node's ``meta``: paths of modules by the node's index in the stored graph."""

Origins = Mapping[int, str]

_PRELUDE = """
#include <atomic>
// Whether anybody listens to torch's events. A torch without this function has no events.
extern "C" bool aotpack_has_callbacks() __asm__("_ZN2at12hasCallbacksEv") __attribute__((weak));
namespace {
std::atomic<bool> aotpack_profiled{false}; // of the last run that began; threads may disagree, and then events are missing
class AotpackEvent {
 public:
  __attribute__((always_inline)) explicit AotpackEvent(const char* name) {
    if (__builtin_expect(aotpack_profiled.load(std::memory_order_relaxed), false)) {
      aoti_record_function_start(name, nullptr, nullptr, 0, &handle_);
    }
  }
  AotpackEvent(const AotpackEvent&) = delete;
  AotpackEvent& operator=(const AotpackEvent&) = delete;
  __attribute__((always_inline)) ~AotpackEvent() { end(); }
  __attribute__((always_inline)) void end() {
    if (__builtin_expect(handle_ != nullptr, false)) {
      aoti_record_function_end(handle_);
      handle_ = nullptr;
    }
  }

 private:
  AtenRecordFunctionHandle handle_ = nullptr;
};
} // namespace
"""
_ASK = "aotpack_profiled.store(aotpack_has_callbacks && aotpack_has_callbacks(), std::memory_order_relaxed);"


def mark_origins(module: GraphModule, modules: Sequence[str]) -> None:
    """Record for every node of a graph its index and the path of its module, which copies of the node keep.

    Nodes of a subgraph count as the nodes that call it.
    """
    for graph in _graphs(module):
        for node in graph.nodes:
            node.meta.pop(_ORIGINS, None)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    for i, (node, path) in enumerate(zip(nodes, modules, strict=True)):
        node.meta[_ORIGINS] = {i: path}
        for argument in node.all_input_nodes:
            inner = getattr(module, str(argument.target), None) if argument.op == "get_attr" else None
            for graph in _graphs(inner) if isinstance(inner, GraphModule) else ():
                for below in graph.nodes:
                    below.meta[_ORIGINS] = {**below.meta.get(_ORIGINS, {}), i: path}


def origins_in(graph: torch.fx.Graph) -> list[Origins]:
    """What :func:`mark_origins` recorded, node by node."""
    return [node.meta.get(_ORIGINS, {}) for node in graph.nodes]


@contextlib.contextmanager
def kernel_events(key: str, module: GraphModule) -> Iterator[None]:
    """While AOTInductor compiles ``module``, which is the graph ``key`` or a part of it, its kernels get events."""
    for graph in _graphs(module):
        for node in graph.nodes:
            if origins := node.meta.get(_ORIGINS):  # of this meta torch keeps a copy when it traces again
                node.meta["nn_module_stack"] = {str(i): (path, "") for i, path in origins.items()}
    call_kernel: Callable[..., None] = KernelGroup.call_kernel
    extern_call: Callable[..., None] = Scheduler.codegen_extern_call
    count = iter(range(2**31))
    external: dict[int, set[Node]] = {}
    begun: set[int] = set()

    @contextlib.contextmanager
    def event(code: str, nodes: Iterable[Node]) -> Iterator[None]:
        origins = {int(i): str(path) for node in nodes for i, (path, _) in node.meta.get("nn_module_stack", {}).items()}
        if not origins or isinstance(V.graph, SubgraphLowering):  # the event of the operator that runs it covers a subgraph
            yield
            return
        wrapper = V.graph.wrapper_code
        if id(wrapper) not in begun:
            begun.add(id(wrapper))
            wrapper.header.splice(_PRELUDE)
            wrapper.writeline(_ASK)
        variable = f"aotpack_event_{next(count)}"
        name = event_name([origins[i] for i in sorted(origins)], key, code, origins)
        wrapper.writeline(f"AotpackEvent {variable}({_literal(name)});")
        yield
        wrapper.writeline(f"{variable}.end();")

    def call(group: Any, wrapper: Any, kernel_name: str) -> None:
        if id(V.graph) not in external:
            kernels = [kernel for kernel in V.graph.operations if isinstance(kernel, ir.ExternKernel)]
            external[id(V.graph)] = {node for kernel in kernels for node in _called(kernel)}
        found = [origin for part in group.scheduled_nodes for origin in part.node.get_origins()]
        own = [node for node in found if node not in external[id(V.graph)] and node.all_input_nodes]  # no constants either
        with event(kernel_name, own or found):
            call_kernel(group, wrapper, kernel_name)

    def call_extern(scheduler: Any, node: Any) -> None:
        kernel = node.node
        if not isinstance(kernel, ir.ExternKernel) or isinstance(kernel, ir.MultiOutput):
            extern_call(scheduler, node)
            return
        name = str(getattr(kernel, "op_overload", None) or kernel.python_kernel_name or type(kernel).__name__)
        with event("".join(name.split()), _called(kernel) or kernel.get_origins()):
            extern_call(scheduler, node)

    with (
        hooked("inductor-events", KernelGroup, "call_kernel", call),
        hooked("inductor-events", Scheduler, "codegen_extern_call", call_extern),
    ):
        yield


def _called(kernel: Any) -> list[Node]:
    """The nodes that a call of a library's kernel stands for, without those that its inputs come from."""
    origin = kernel.get_origin_node()
    operator = getattr(kernel, "op_overload", None)
    return [node for node in kernel.get_origins() if node.target is operator] if origin is None else [origin]


def _graphs(module: GraphModule) -> list[torch.fx.Graph]:
    return [part.graph for part in graph_modules_in(module)]


def _literal(text: str) -> str:
    """A string literal of C++."""
    return '"' + "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()) + '"'
