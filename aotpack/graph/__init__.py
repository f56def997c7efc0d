"""Graphs in the format and in ``torch.fx``: :mod:`.convert` goes one way, :mod:`.restore` back."""

from .convert import from_fx as from_fx
from .convert import source_line as source_line
from .convert import tensor_value as tensor_value
from .lines import lines as lines
