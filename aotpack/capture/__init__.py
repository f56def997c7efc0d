"""Captures a model as a joint graph. Front ends trace it, and dry runs find what a trace cannot show."""

from .flags import flags_read as flags_read
from .front_end_input import has_modes as has_modes
from .front_ends import FRONT_ENDS as FRONT_ENDS
from .front_ends import Captured as Captured
from .front_ends import as_traced as as_traced
from .front_ends import capture as capture
from .front_ends import depends_on_gradients as depends_on_gradients
from .functions import FunctionModule as FunctionModule
from .functions import MethodModule as MethodModule
