"""The class of a loaded program. Each load makes one, with the original's class name and signature of ``forward``.

Tools read them. For example, ``transformers.Trainer`` drops arguments that
``inspect.signature(model.forward)`` lacks.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from ..module.info import LoadInfo
from ..module.original_class import OriginalClass, set_type
from ..module.outline import Outline, outline_of, signature_of
from ..module.program import LoadedProgram
from ..module.submodules import root_class

if TYPE_CHECKING:
    from ..format import schema

_LIBRARY = "transformers.modeling_utils"
_LOSS_ARGUMENT = "num_items_in_batch"


def class_of(program: Outline) -> type[LoadedProgram]:
    """A new class for a program.

    It derives from ``PreTrainedModel`` if the original did and the caller has imported it.
    """
    forward = FunctionType(LoadedProgram.forward.__code__, LoadedProgram.forward.__globals__, "forward")
    vars(forward).update(vars(LoadedProgram.forward))  # opaque to torch.compile, too
    forward.__doc__ = LoadedProgram.forward.__doc__
    name, base = root_class(program)
    body: dict[str, Any] = {"__module__": LoadedProgram.__module__, "__doc__": LoadedProgram.__doc__, "forward": forward}
    body |= {"__class__": _RootClass(name, base), "_aotpack_in_graph": _call_in_graph, "_aotpack_as_html": staticmethod(_as_html)}
    if program.signature is not None:
        setattr(forward, "__signature__", signature_of(program.signature))  # noqa: B010 - types know no such attribute
        if any(parameter.kind == "var_keyword" for parameter in program.signature):
            body["accepts_loss_kwargs"] = True if program.takes_loss_argument else property(_accepts_no_loss_argument)
    bases: tuple[type, ...] = (LoadedProgram,)
    if base is not nn.Module:
        bases, body["__new__"] = (LoadedProgram, base), _made_by(base)
    if program.pretrained is not None:
        from ..integrations import peft as adapters
        from ..integrations.transformers import members, models  # few programs come from these libraries

        body |= members(program.pretrained)
        if (found := adapters.adapters_of(program.pretrained)) is not None:
            body |= adapters.members(found)
        if hasattr(sys.modules.get(_LIBRARY), "PreTrainedModel") and (found is None or found.base is None):
            bases = models(sys.modules[_LIBRARY])
    if program.assigned:
        from ..module.assigned import members as assigning  # few programs have such buffers

        body |= assigning(program.assigned)
    return type(_name(program), bases, body)


def _call_in_graph(program: LoadedProgram, args: Any, kwargs: Any, function: str = "") -> Any:
    from ..integrations.torch_compile import call_in_graph  # only where the caller compiles

    return call_in_graph(program, args, kwargs, function)


def _as_html(program: schema.Program, more: Sequence[tuple[str, str]]) -> str:
    from ..integrations.notebook import summary  # only in a notebook

    return summary(program, more)


class _RootClass(OriginalClass):
    """Also makes a program a model of transformers if that library is imported after the load."""

    def __get__(self, module: Any, owner: type | None = None) -> type:
        if not self._is_imported_later(module):
            return super().__get__(module, owner)
        set_type(module, class_of(outline_of(module.aotpack.program)))
        found: type = module.__class__
        return found

    def _is_imported_later(self, module: Any) -> bool:
        """Whether the library was imported after the class was made."""
        library = sys.modules.get(_LIBRARY)
        models = getattr(library, "PreTrainedModel", None)  # None while the library is being imported
        if models is None or type(module) is not self._owner or issubclass(self._owner, models):
            return False
        recorded, found = vars(module)["aotpack"].program.pretrained, getattr(self._owner, "_aotpack_adapters", None)
        return recorded is not None and (found is None or found.base is None)


def _made_by(base: type[nn.Module]) -> Any:
    """``__new__`` for a class below ``base``.

    If a method of ``base`` makes another instance, such as a slice of a ``Sequential``, it gets a
    plain ``base``.
    """

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        if args and not isinstance(args[0], LoadInfo):
            return base(*args, **kwargs)
        return object.__new__(cls)

    return new


class LossWarning(UserWarning):
    """A trainer scales the loss differently than with the original, because of how the bundle was built."""


def _accepts_no_loss_argument(program: LoadedProgram) -> bool:
    """Refuse the loss argument of ``transformers.Trainer``, with a warning.

    The trainer otherwise passes it to every model with ``**kwargs``. It asks several times.
    """
    if "_aotpack_told" in vars(program):
        return False
    vars(program)["_aotpack_told"] = True
    warnings.warn(
        f"This bundle was built without the keyword {_LOSS_ARGUMENT}, so a trainer cannot have its loss divided by the number of "
        f"items in a batch. For the losses of the original, build with {_LOSS_ARGUMENT}=torch.tensor(1.0) among the inputs.",
        LossWarning,
        stacklevel=2,
    )
    return False


def _name(program: Outline) -> str:
    if not program.modules:
        return LoadedProgram.__name__
    short = program.modules[0].kind.rpartition(".")[2]
    return short if short.isidentifier() else LoadedProgram.__name__
