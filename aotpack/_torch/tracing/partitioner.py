"""Partitions a joint graph into forward and backward graphs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._functorch._aot_autograd.graph_compile import run_joint_graph_passes_on_hops
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._higher_order_ops.base_hop import BaseHOP
from torch._higher_order_ops.utils import get_dummy_aot_autograd_config
from torch.utils.checkpoint import CheckpointPolicy

from aotpack_loader.errors import UnsupportedError

from ..api.graph_modules import lazy_graph_modules
from ..api.negative_indices import recompute_rows
from ..fixes.applying import apply_fixes, fix_graph
from .aot_autograd import Joint
from .memory_budget import within_budget

_aten = torch.ops.aten
_COSTLY_COMPLEX: Final = {
    getattr(_aten, name).default
    for name in ("abs", "angle", "cos", "cosh", "exp", "log", "reciprocal", "sgn", "sin", "sinh", "sqrt", "tan", "tanh")
}

Split = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]
"""A partitioner: takes the joint graph, its inputs or null, and ``num_fwd_outputs``; returns
forward and backward graphs.
"""


def partition(
    joint: Joint,
    *,
    partitioner: str,
    memory_budget: float | None,
    prepare: Callable[[torch.fx.GraphModule, Split], None],
    added: int = 0,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Split the joint graph into forward and backward.

    ``prepare`` is called first, with the joint graph and the partitioner. ``added``: number of
    forward outputs beyond AOTAutograd's.

    Raises:
        UnsupportedError: torch's partitioner fails.
    """
    static = list(range(joint.tokens + len(joint.primal_descriptors)))
    fixes = apply_fixes("partitioner", joint=joint.graph_module)
    with within_budget(memory_budget), fixes, recompute_rows(), joint.fake_mode, lazy_graph_modules():
        split: Split = default_partition if partitioner == "default" else min_cut_rematerialization_partition
        prepare(joint.graph_module, split)
        if split is min_cut_rematerialization_partition:
            _save_costly_complex(joint.graph_module)
        fix_graph("partitioner", joint.graph_module)
        keyword = {"num_fwd_outputs": joint.outputs.forward_values.stop + added, "static_lifetime_input_indices": static}
        try:
            return split(joint.graph_module, None, **keyword)
        except AssertionError as error:
            raise UnsupportedError(
                f"torch could not divide the graph into forward and backward: {error}. Sizes that depend on data do that to it."
                ' Build with targets=("portable",), whose graphs have other operators, or methods=("infer",).'
            ) from error


def _save_costly_complex(module: torch.fx.GraphModule) -> None:
    """Let the backward read what costly functions of complex numbers returned, not compute it again.

    The partitioner assumes that loops contain them, which would make that cheap. But Inductor calls their kernels.
    """
    for node in module.graph.nodes:
        if node.target in _COSTLY_COMPLEX and node.args[0].meta["val"].is_complex():
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def is_plain_call(target: Any) -> bool:
    """Whether a higher-order operator only calls its subgraph on its other arguments
    (``invoke_quant``).
    """
    return isinstance(target, BaseHOP)


def renumber_calls(region: torch.fx.GraphModule) -> None:
    """Renumber the calls of regions inside a region: torch gives all of them the number of the
    enclosing call.

    A forward call and its backward call take the same primals and get the same number.
    """
    calls = region.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    halves: dict[str, list[torch.fx.Node]] = {"fw": [], "bw": []}
    for call in calls:
        halves.get(str(call.args[1])[:2], []).append(call)
    for number, call in enumerate(halves["fw"]):
        call.meta["custom"] = {**call.meta.get("custom", {}), "call_id": number}
    free = halves["fw"][::-1]
    for call in halves["bw"]:
        name = str(call.args[1]).removeprefix("bw_").rpartition("_")[0]
        partner = next(fw for fw in free if fw.args[1] == f"fw_{name}" and fw.args[2:] == call.args[2 : len(fw.args)])
        free.remove(partner)
        call.meta["custom"] = {**call.meta.get("custom", {}), "call_id": partner.meta["custom"]["call_id"]}


def split_regions(module: torch.fx.GraphModule, split: Split) -> None:
    """Split each nested compile region of a joint graph with ``split``, and call its two halves
    instead.

    The forward half then returns the values that it saves after its results. Without the split, the
    backward would compute the forward again.
    """
    config = dataclasses.replace(get_dummy_aot_autograd_config(), partition_fn=split)
    known = inspect.signature(run_joint_graph_passes_on_hops).parameters  # releases before 2.12 read it from the config
    keyword = {"default_partition_fn": split} if "default_partition_fn" in known else {}
    run_joint_graph_passes_on_hops(module, [], config, **keyword)
