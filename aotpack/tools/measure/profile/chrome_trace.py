"""Writes a recording as a Chrome trace, which Perfetto and TensorBoard open."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotpack_loader.format.events import parse_event

from ...report.text import visible
from .nodes import GraphNodes
from .recording import Recording

_PRIVATE = ("host_name", "traceName")
"""What the profiler writes about this machine and its files."""


@dataclass(frozen=True)
class Trace:
    """A recording and the graphs that it names."""

    recording: Recording
    graphs: dict[str, GraphNodes]

    def write(self, path: Path) -> None:
        """Write the trace. Kernels carry their modules, source lines and operators as arguments.

        Raises:
            OSError: the file cannot be written.
        """
        document = {key: value for key, value in self.recording.trace.items() if key not in _PRIVATE}
        document["traceEvents"] = [_explained(event, self.graphs) for event in self.recording.trace["traceEvents"]]
        path.write_text(json.dumps(document), encoding="utf-8")


def _explained(event: dict[str, Any], graphs: dict[str, GraphNodes]) -> dict[str, Any]:
    kernel = parse_event(str(event.get("name", "")))
    if kernel is None or event.get("ph") != "X":
        return event
    found = graphs.get(kernel.graph)
    nodes = [] if found is None else found.nodes(kernel)
    details = {"Graph": kernel.key, "Kernel": kernel.code, "Modules": kernel.modules}
    if found is not None:
        details["Lines"] = ", ".join(dict.fromkeys(found.origins[i].line for i in nodes if found.origins[i].line))
        details["Operators"] = ", ".join(dict.fromkeys(found.operators[i] for i in nodes))
    shown = {key: visible(text) for key, text in details.items()}
    return event | {"name": visible(f"{kernel.modules}: {kernel.code}"), "args": event.get("args", {}) | shown}
