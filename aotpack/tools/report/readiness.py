"""Says which targets of a bundle would run on this machine, and why the others would not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aotpack_loader.errors import AotpackError

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle


@dataclass(frozen=True)
class Readiness:
    """Whether a target would run here. ``reason`` says why not, or what it still needs."""

    runs: bool
    reason: str


def readiness(bundle: Bundle) -> dict[str, Readiness]:
    """Return the answer for each target. No code of the bundle is loaded.

    It imports torch, whose version decides. Where torch is missing, no target runs.
    """
    try:
        from aotpack_loader.devices import backends, select
        from aotpack_loader.trust import why_untrusted
    except ImportError as error:
        return dict.fromkeys(bundle.targets, Readiness(False, f"torch cannot be imported: {error}"))
    found = {}
    for name, target in bundle.targets.items():
        try:
            reason = backends.unfit(target, bundle.program, bundle.manifests[name].platform) or bundle.absence(name)
        except (AotpackError, ImportError) as error:
            reason = str(error)
        needs_trust = not reason and select.is_native(target)
        if needs_trust and (untrusted := why_untrusted(bundle.digest, None, bundle)):
            reason = f"not trusted: {untrusted}"
        found[name] = Readiness(not reason, reason or _asks(bundle))
    return found


def _asks(bundle: Bundle) -> str:
    """What a caller must bring even where the target runs."""
    needs = bundle.program.requirements
    asked = [f"operators of {name}" for name in needs.operators] + [f"the class {name}" for name in needs.subclasses]
    return f"the caller must provide {', '.join(asked)}" if asked else ""
