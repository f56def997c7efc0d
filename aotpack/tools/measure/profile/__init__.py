"""Measures where the time and the memory of a step of a bundle go, by the original's modules and source lines.

A step runs under ``torch.profiler``. The bundle's code emits an event for every kernel or operator
(:mod:`aotpack_loader.format.events`), which names its nodes. The bundle says of each node which
module and source line it comes from.
"""

from .chrome_trace import Trace as Trace
from .nodes import PARTS as PARTS
from .profiling import Profile as Profile
from .profiling import Row as Row
from .profiling import profile_bundle as profile_bundle
