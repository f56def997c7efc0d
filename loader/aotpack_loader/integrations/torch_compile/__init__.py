"""A call of a loaded bundle inside ``torch.compile``: two operators in the caller's graph.

Dynamo traces :func:`call_in_graph` (``plan``). The forward and the backward of the bundle are one
operator each (``operators``), which the caller's compiler does not look into. They are functional:
the trace itself writes new values to buffers, and builds the results. A bundle that needs more
than that (``methods``) causes a graph break with a reason, so it is an error under
``fullgraph=True``.
"""

from .plan import call_in_graph

__all__ = ["call_in_graph"]
