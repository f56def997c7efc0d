"""Converts graphs from ``torch.fx`` to the bundle format (:mod:`.convert`) and back
(:mod:`.restore`).
"""

from .convert import from_fx as from_fx
from .convert import source_line as source_line
from .convert import tensor_value as tensor_value
from .failing_lines import lines as lines
from .origins import OriginsRecorder as OriginsRecorder
from .sources import computed_from as computed_from
