"""Partitions a joint graph into forward and backward, and adapts both for control flow, effects and
random numbers.
"""

from .split import Partitioned as Partitioned
from .split import order_placeholders as order_placeholders
from .split import output_args as output_args
from .split import partition as partition
from .split import propagate_dependencies as propagate_dependencies
from .split import set_outputs as set_outputs
