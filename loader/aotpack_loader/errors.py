"""All errors of aotpack, of the loader and the compiler.

They share one base, so ``except AotpackError`` catches every problem with a bundle. A message says
what is wrong, where, what was expected and what to do. An error that found several problems lists
all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from .value import Value


class Problem(Value):
    """One thing that is wrong: ``where`` is a path (``args[0]['x']``, ``$.methods.train``, a blob's digest)."""

    __slots__ = ("where", "message")  # noqa: RUF023 - in the order of the arguments

    where: str
    message: str

    def __init__(self, where: str, message: str) -> None:
        self._set(where, message)

    def __str__(self) -> str:
        from .text import visible, visible_lines  # only where something is wrong

        message = visible_lines(self.message)
        return f"{visible(self.where)}: {message}" if self.where else message


class AotpackError(Exception):
    """Base of all errors raised by aotpack.

    ``problems`` holds each problem separately, for programs that handle the error. ``hint`` says
    what to do. The text has the first ``shown`` problems, and how many more there are. In it,
    control characters and other invisible ones are escapes, since names in a bundle may hold
    anything.
    """

    def __init__(self, summary: str, problems: Iterable[Problem] = (), *, hint: str = "", shown: int | None = None) -> None:
        from .text import visible_lines

        self.summary = summary
        self.problems = tuple(problems)
        self.hint = hint
        lines = [visible_lines(summary), *(f"  {problem}" for problem in self.problems[:shown])]
        if len(lines) <= len(self.problems):
            lines.append(f"  and {len(self.problems) + 1 - len(lines)} more")
        if hint:
            lines.append(visible_lines(hint))
        super().__init__("\n".join(lines))


class BundleError(AotpackError):
    """The bundle itself is wrong."""


class BundleNotFoundError(BundleError, FileNotFoundError):
    """There is no file or directory at that path."""

    __str__ = AotpackError.__str__


class NotABundleError(BundleError):
    """The file or directory is not an aotpack bundle."""


class CorruptBundleError(BundleError):
    """The bundle is truncated, a digest does not match, or a document breaks a rule of the format."""


class UnsupportedVersionError(BundleError):
    """The bundle needs a format version or a feature that this loader does not have."""


class TargetError(AotpackError):
    """No target of the bundle can run here, or not the requested one."""


class TrustError(AotpackError):
    """The bundle holds native code, and it is not trusted."""


class PolicyError(TrustError):
    """A policy does not allow the bundle, has no rule for it, or is no policy."""


class DirectoryError(AotpackError):
    """A directory of this user, for extracted code or for records of builds, cannot be used."""


class RegistryError(AotpackError):
    """A registry, or the way to it, failed. The message names the host and repository, never a credential."""


class BundleReferenceError(RegistryError, ValueError):
    """A text is not a reference of a bundle in a registry (``oci://host/repository:tag``)."""

    __str__ = AotpackError.__str__


class RegistryConnectionError(RegistryError, ConnectionError):
    """The registry cannot be reached, or the connection broke too often."""

    __str__ = AotpackError.__str__


class RegistryAuthError(RegistryError, PermissionError):
    """The registry wants other credentials, or these may not do what was requested."""

    __str__ = AotpackError.__str__


class RegistryNotFoundError(RegistryError, FileNotFoundError):
    """The registry has no such repository, tag, manifest or blob."""

    __str__ = AotpackError.__str__


class RegistryContentError(RegistryError):
    """A registry sent other bytes than their digest or size says, or a document that is not one of a bundle."""


class LockError(RegistryError):
    """A lock file (``aotpack.lock``) is invalid, lacks a reference, or names another digest."""


class SubclassError(AotpackError):
    """The bundle holds tensors of classes that were not passed to the load."""


class InputError(AotpackError, TypeError):
    """The arguments of a call do not fit the program. Nothing was run."""


class ModeError(AotpackError, RuntimeError):
    """The bundle has no method for this combination of train/eval and gradient mode."""


class EditError(AotpackError, RuntimeError):
    """An edit of a loaded module that its compiled code cannot follow. Nothing was changed, or nothing was run."""


class MissingCodeError(EditError, AttributeError):
    """Code of the original was requested from a loaded module. ``hasattr`` returns False for it."""


class StateError(AotpackError, RuntimeError):
    """A state dict does not fit the program: missing, unexpected or misshaped entries. Nothing was changed."""


class CheckpointError(AotpackError, RuntimeError):
    """A checkpoint cannot be written or read, is of another bundle, or does not fit.

    Nothing was changed: neither an earlier checkpoint at the path, nor the model.
    """


class BranchError(AotpackError, RuntimeError):
    """A Python branch of the model goes another way than the bundle was built for. No argument or buffer was written to."""


class OperatorError(AotpackError, RuntimeError):
    """An operator or a check of the model refused the values of a call (an index out of range, a failed assertion).

    It is also an instance of the class that torch's operator raises (``IndexError``,
    ``torch.linalg.LinAlgError``). No argument was written to.
    """


class AutogradError(AotpackError, RuntimeError):
    """A backward pass that the compiled program cannot compute."""


class CheckError(AotpackError, AssertionError):
    """``load(..., check="full")`` found that a program differs from its bundle's description.

    The call may have had effects.
    """


class BuildError(AotpackError):
    """The compiler could not turn the model into a bundle. Nothing was written."""


class EntryError(BuildError):
    """``model.py`` is wrong: it raised an exception, or lacks something that a build needs."""


class CaptureError(BuildError):
    """No front end could trace the model."""


class UnsupportedError(BuildError):
    """The model uses something that a bundle cannot reproduce correctly."""


class WrongResultsError(BuildError):
    """The check of a build found that a method computes other results than the model in eager."""


class UnsupportedTorchError(BuildError):
    """The compiler was not tried on this release of torch. ``problems`` lists the fixes of torch that do not fit it."""
