"""Where values are among the outputs of a joint graph, and of its two halves."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class JointOutputs:
    """The outputs of a joint graph, as named slices.

    In order: effect tokens; the forward's, which are mutated values, results and bases; gradients, None
    included; indices of sparse gradients; new values of tangents, and of buffers, that the backward writes to. Fields
    are numbers of outputs. A tensor subclass counts as its parts. Where there are any, ``mutated`` and
    ``result_values`` are right only after they are folded.

    Example: a model that mutates one buffer, returns ``(loss, logits)`` and has three primals is
    ``JointOutputs(0, 1, 2, forward=3, gradients=3)``. Its ``result_values`` are outputs 1 and 2, and its
    ``gradient_values`` outputs 3 to 5, which are outputs 0 to 2 of its backward.
    """

    tokens: int
    mutated: int
    results: int
    forward: int
    gradients: int
    sparse: int = 0
    written: int = 0
    state: int = 0

    @property
    def of_forward(self) -> JointOutputs:
        """Those of the forward graph, which returns no tokens."""
        return dataclasses.replace(self, tokens=0, gradients=0, sparse=0, written=0, state=0)

    @property
    def of_backward(self) -> JointOutputs:
        """Those of the backward graph."""
        return JointOutputs(0, 0, 0, 0, self.gradients, self.sparse, self.written, self.state)

    @property
    def forward_values(self) -> slice:
        return slice(self.tokens, self.tokens + self.forward)

    @property
    def mutated_values(self) -> slice:
        return slice(self.tokens, self.tokens + self.mutated)

    @property
    def result_values(self) -> slice:
        return slice(self.mutated_values.stop, self.mutated_values.stop + self.results)

    @property
    def base_values(self) -> slice:
        return slice(self.result_values.stop, self.forward_values.stop)

    @property
    def gradient_values(self) -> slice:
        return slice(self.forward_values.stop, self.forward_values.stop + self.gradients)

    @property
    def sparse_indices(self) -> slice:
        return slice(self.gradient_values.stop, self.gradient_values.stop + self.sparse)

    @property
    def tangent_values(self) -> slice:
        return slice(self.sparse_indices.stop, self.sparse_indices.stop + self.written)

    @property
    def state_values(self) -> slice:
        return slice(self.tangent_values.stop, self.tangent_values.stop + self.state)

    @property
    def backward_values(self) -> slice:
        return slice(self.gradient_values.start, self.state_values.stop)
