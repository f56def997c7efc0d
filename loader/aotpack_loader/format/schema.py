"""The bundle format, version 1: the single source of truth.

Every JSON document of a bundle decodes into one of the types of :mod:`.types`, which all are names here. The JSON Schemas under
``spec/schema/`` are generated from them. The types hold data only. Rules that span several fields
are in :mod:`aotpack_loader.format.validate`. Each has a number, which ``spec/`` and the tests cite.

The terms are those of AOTAutograd. *Primals* are the inputs of the forward graph. *Tangents* are the
incoming gradients of the backward graph. *Saved tensors* are what the forward keeps for the backward.

Schema rules: fields are only added, always with a default. The name of a removed field is never used
again. A new arm of a union needs a new entry in :data:`Program.features`, because an older reader
cannot decode it.
"""

from .types.arguments import *  # noqa: F403
from .types.documents import *  # noqa: F403
from .types.graphs import *  # noqa: F403
from .types.methods import *  # noqa: F403
from .types.programs import *  # noqa: F403
from .types.targets import *  # noqa: F403
