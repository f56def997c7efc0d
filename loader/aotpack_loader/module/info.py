"""How a bundle was loaded, and what else it has: optimizers, checkpoints, methods."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from ..errors import AotpackError

if TYPE_CHECKING:
    import os

    from ..checkpoints.loading import Restored
    from ..checkpoints.saving import Saving
    from ..format import schema
    from ..optimizer.gradients import Nonfinite
    from ..optimizer.optimizer import LoadedOptimizer
    from ..optimizer.updates import OpenUpdate
    from .functions import LoadedFunction


class LoadInfo:
    """How a bundle was loaded: which target runs it and why, and why not the others.

    ``backend`` is the target's name. ``rejected`` maps each other target to its reason. ``calls``
    records for each method whether native code makes the calls (``native``) or Python does, and why
    and what to change (``python: it has sparse gradients; use sparse=False``). ``program`` is the program, or
    a function that reads it at its first use.
    """

    def __init__(
        self,
        path: str,
        digest: str,
        backend: str,
        reason: str,
        program: schema.Program | Callable[[], schema.Program],
        rejected: Mapping[str, str],
        calls: Mapping[str, str],
        updates: OpenUpdate | None = None,
    ) -> None:
        self.path, self.digest, self.backend, self.reason = path, digest, backend, reason
        self.rejected, self.calls = rejected, calls
        self._program, self._updates = program, updates
        self._module: weakref.ref[nn.Module] | None = None
        self._saving: Saving | None = None

    def bind(self, module: nn.Module) -> None:
        """Note the module that was loaded."""
        self._module = weakref.ref(module)

    def optimizer(
        self,
        name: str = "optimizer",
        *,
        clip_grad_norm: float | None = None,
        clip_grad_value: float | None = None,
        nonfinite: Nonfinite | None = None,
        accumulate: int = 1,
        **numbers: Any,
    ) -> LoadedOptimizer:
        """An optimizer of the bundle over the module's parameters.

        Args:
            name: its name in the bundle. A bundle with one optimizer calls it ``optimizer``.
            clip_grad_norm: before each step, scale the gradients so that the norm of all is at most this.
            clip_grad_value: before that, limit the elements of the gradients to this magnitude.
            nonfinite: raise an error at a step whose gradients are infinite or NaN, or skip it. By default nobody looks.
            accumulate: how many calls of ``train_step`` make one step. Gradients are their mean.
            numbers: values for all groups, in place of those of the build: ``lr=1e-3``.

        Raises:
            AotpackError: the bundle has no such optimizer, or the module is gone.
            EditError: a parameter was replaced by one of another type or size, or an option is compiled in.
        """
        from ..optimizer.gradients import Gradients  # a start does not need them
        from ..optimizer.optimizer import LoadedOptimizer, Training

        known_names = [*self.program.optimizers]  # a list takes names that have no hash
        described = self.program.optimizers[name] if name in known_names else None
        if described is None or self._updates is None:
            known = ", ".join(known_names)
            raise AotpackError(
                f"The bundle has no optimizer {name!r}." if known else "The bundle has no optimizer.",
                hint=f"It has {known}." if known else "Build it with one: aotpack build model.py --optimizer adamw --lr 1e-3.",
            )
        training = Training(self._bound, accumulate)
        gradients = Gradients(clip_grad_norm, clip_grad_value, nonfinite)
        return LoadedOptimizer(described, self._updates, self._bound()._aotpack_state(), numbers, gradients, training)

    def save_checkpoint(
        self,
        path: str | os.PathLike[str],
        *,
        optimizer: Any = None,
        scheduler: Any = None,
        step: int = 0,
        extra: Mapping[str, Any] | None = None,
        asynchronous: bool = False,
        shard_bytes: int = 5 * 10**9,
    ) -> Saving:
        """Write a checkpoint: a folder with parameters, buffers, the state of optimizers and of random generators.

        A checkpoint at ``path`` is replaced at once when the new one is complete. The generators are torch's for CPUs and
        that of Python's ``random``.

        Args:
            path: the folder.
            optimizer: one over the module's parameters, or several by name: of the bundle or of ``torch.optim``.
            scheduler: one or several by name: whatever has a ``state_dict()`` of plain data, such as a ``GradScaler``.
            step: the number of steps that were taken.
            extra: plain data to keep, by name.
            asynchronous: copy everything and write it in a thread. An error is raised by ``wait()`` of what is returned,
                or by the next save.
            shard_bytes: the most bytes of tensors in one file.

        Raises:
            CheckpointError: it cannot be written, or there is something else than a checkpoint at ``path``. An earlier
                checkpoint stays.
        """
        from ..checkpoints.saving import save  # a start does not need it

        if self._saving is not None:
            self._saving.wait()
        self._saving = save(self.digest, self._bound(), path, optimizer, scheduler, step, extra or {}, asynchronous, shard_bytes)
        return self._saving

    def load_checkpoint(
        self, path: str | os.PathLike[str], *, optimizer: Any = None, scheduler: Any = None, same_bundle: bool = True
    ) -> Restored:
        """Take the state of a checkpoint; all or nothing. Random generators get their state, too.

        Args:
            path: the folder.
            optimizer: as for :meth:`save_checkpoint`. None: no state of an optimizer is read.
            scheduler: likewise.
            same_bundle: refuse a checkpoint of a bundle with another digest. Otherwise names, sizes and types decide.

        Returns:
            ``step`` and ``extra``.

        Raises:
            CheckpointError: there is no checkpoint, or it is damaged, of another bundle or does not fit. Lists all that does not
                fit; nothing was changed.
        """
        from ..checkpoints.loading import load

        if self._saving is not None:
            self._saving.wait()
        return load(self.digest, self._bound(), path, optimizer, scheduler, self.program.assigned, same_bundle)

    def _bound(self) -> Any:
        """The :class:`~.program.LoadedProgram` that was loaded.

        Raises:
            AotpackError: it is gone.
        """
        module = None if self._module is None else self._module()
        if module is None:
            raise AotpackError("The module of this bundle does not exist any more.", hint="Load the bundle again.")
        return module

    def method(self, name: str) -> LoadedFunction:
        """A method of the model that the bundle was built with (``methods={"encode": …}``), over the module's state.

        Raises:
            AotpackError: the bundle has no such method.
        """
        from .functions import function_of  # a start does not need it

        return function_of(self._bound(), name)

    def __repr__(self) -> str:
        rejected = "".join(f"\n  not {name}: {reason}" for name, reason in self.rejected.items())
        calls = "".join(f"\n  {name}: calls by {how}" for name, how in self.calls.items())
        from ..text import visible_lines  # only to print

        return visible_lines(f"{self.path}: {self.backend} ({self.reason})\n  digest {self.digest}{calls}{rejected}")

    @property
    def program(self) -> schema.Program:
        """The program."""
        if callable(self._program):
            self._program = self._program()
        return self._program

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the program's methods."""
        return tuple(self.calls)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied, module = copy.copy(self), None if self._module is None else self._module()
        if (other := memo.get(id(module))) is not None:
            copied.bind(other)
        return copied
