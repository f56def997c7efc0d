"""What all parts of a signature read: the partitioned graphs, AOTAutograd's metadata and the user's call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

from aotpack_loader.errors import Problem, UnsupportedError

from .. import partition
from .._torch.api.torch_types import ShapeEnv, ViewAndMutationMeta
from .._torch.tracing import aot_autograd
from .._torch.tracing.joint_outputs import JointOutputs
from ..capture.container_changes import Containers
from ..capture.inputs.synthetic_bases import Arrangement
from ..capture.returned import Returned
from ..model.state import StoredTensors
from . import subclass_leaves


@dataclass(frozen=True)
class UserCall:
    """The call that was traced.

    ``args`` and ``kwargs`` are the user's, before they were arranged as ``arrangement``.
    ``returned`` is the model's result. ``containers`` are the caller's dictionaries and lists that
    the model changes. ``stored`` collects constants for the bundle.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arrangement: Arrangement
    returned: Returned
    stored: StoredTensors
    containers: Containers

    @cached_property
    def leaves(self) -> list[Any]:
        """The leaves of the arguments."""
        return pytree.tree_leaves((self.args, self.kwargs))


@dataclass(frozen=True)
class PartitionedMethod:
    """One partitioned method, with each tensor subclass folded into one node.

    The parts of a signature edit its two graphs in place, and add to ``problems``. All else stays:
    a part that changes a list of ``parts`` returns a new method, or the new list. ``tangents`` are
    those that the caller sees. ``subclass_sizes`` are placeholders of the forward for dynamic sizes
    of subclasses.
    """

    joint: aot_autograd.Joint
    parts: partition.Partitioned
    tangents: Sequence[Node]
    subclass_sizes: Sequence[Node]
    call: UserCall
    problems: list[Problem] = field(default_factory=list)

    @property
    def metadata(self) -> ViewAndMutationMeta:
        return self.joint.metadata

    @property
    def shape_env(self) -> ShapeEnv | None:
        return self.joint.shape_env

    @cached_property
    def outputs(self) -> JointOutputs:
        """Where values are among the outputs of the forward (``of_forward``) and of the backward (``of_backward``)."""
        primals = len(self.joint.primal_descriptors)
        return replace(self.joint.outputs, forward=len(self.parts.forward_outputs), gradients=primals)

    @property
    def mutated_values(self) -> Sequence[object]:
        """The forward's outputs that AOTAutograd writes back to inputs, one for each mutated input."""
        return self.parts.forward_outputs[self.outputs.of_forward.mutated_values]

    @property
    def result_values(self) -> Sequence[Any]:
        """The forward's outputs that are the model's results."""
        return self.parts.forward_outputs[self.outputs.of_forward.result_values]

    @property
    def base_values(self) -> Sequence[Any]:
        """The forward's outputs that are bases of views, and no results."""
        return self.parts.forward_outputs[self.outputs.of_forward.base_values]

    def result_chain(self, i: int) -> Any:
        """The view chain of result ``i``, as it was before equal views were merged."""
        return self.parts.chains[self.outputs.of_forward.result_values][i]

    def updated_value(self, index: int) -> Node | None:
        """The new value of AOTAutograd's input ``index``, or None if the model does not change it."""
        mutated = self.metadata.mutated_inp_runtime_indices
        value = self.parts.forward_outputs[mutated.index(index)] if index in mutated else None
        return value if isinstance(value, Node) else None

    def refuse(self, where: str, message: str) -> None:
        """Record something that a bundle cannot keep true."""
        self.problems.append(Problem(where, message))

    def raise_problems(self) -> None:
        """Raise one error for all recorded problems.

        Raises:
            UnsupportedError: there are any.
        """
        if self.problems:
            raise UnsupportedError("The model does something that a bundle does not support.", self.problems)


def fold_subclasses(joint: aot_autograd.Joint, parts: partition.Partitioned, call: UserCall) -> PartitionedMethod:
    """Fold the tensor subclasses of a partitioned method."""
    folded = subclass_leaves.fold(joint, parts)
    return PartitionedMethod(folded.joint, folded.parts, folded.tangents, folded.sizes, call)


def tensor_of(node: Any) -> torch.Tensor | None:
    """The example value of a node, if it is a tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None
