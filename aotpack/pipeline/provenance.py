"""Documents that a build writes beside a bundle: SLSA provenance, and the machine-learning bill of materials.

They say what a bundle was made of. Equal inputs give equal documents: there are no times in them,
unless ``SOURCE_DATE_EPOCH`` is set, and no absolute paths.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from aotpack_loader.archive.attachments import CYCLONEDX, IN_TOTO, NewAttachment, make
from aotpack_loader.archive.digest import hex_part
from aotpack_loader.errors import BuildError
from aotpack_loader.format import schema
from aotpack_loader.signing import documents

from .. import __version__
from ..writer.bundle import TargetEntry
from .materials import Material, tools
from .options import UNNAMED_BUILDER
from .sbom import bill_of_materials

SLSA: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "https://aotpack.dev/build/v1"
COMPILE_TYPE: Final = "https://aotpack.dev/compile/v1"
"""Build types, described in spec/attachments.md."""
PREDICATE: Final = "dev.sigstore.bundle.predicateType"

Json = dict[str, Any]


@dataclass(frozen=True)
class AttachmentRequest:
    """Which documents to write beside a bundle, and what they say of how it was made.

    ``builder`` is a URI of who runs the build. ``parameters`` are the options of the build. ``kept``
    are the targets of an existing bundle to which others are added.
    """

    provenance: bool = False
    sbom: bool = False
    builder: str = UNNAMED_BUILDER
    kind: str = BUILD_TYPE
    parameters: Mapping[str, Any] = field(default_factory=dict)
    materials: Sequence[Material] = ()
    kept: Sequence[TargetEntry] = ()

    def attachments(
        self, subject: schema.Descriptor, program: schema.Program, entries: Sequence[TargetEntry]
    ) -> list[NewAttachment]:
        """Return the documents for the bundle whose index is ``subject``."""
        made = []
        if self.provenance:
            about = documents.Subject({"sha256": hex_part(subject.digest)}, program.name)
            statement = documents.statement([about], SLSA, self._predicate(entries))
            made.append(make(subject, IN_TOTO, statement, {PREDICATE: SLSA}))
        if self.sbom:
            bom = bill_of_materials(subject, program, [*self.kept, *entries], tools(), self._packages(), build_time())
            made.append(make(subject, CYCLONEDX, bom))
        return made

    def _packages(self) -> list[Material]:
        return [material for material in self.materials if material.purl]

    def _predicate(self, entries: Sequence[TargetEntry]) -> Json:
        system = {"python": platform.python_version(), "system": platform.system().lower(), "machine": platform.machine()}
        toolchains = {entry.target.name: dict(entry.target.toolchain) for entry in entries}
        used = {material.name: material for material in (*tools(), *self.materials)}
        details: Json = {"builder": {"id": self.builder, "version": {"aotpack": __version__}}}
        if (time := build_time()) is not None:
            details["metadata"] = {"startedOn": time, "finishedOn": time}
        return {
            "buildDefinition": {
                "buildType": self.kind,
                "externalParameters": _plain(self.parameters),
                "internalParameters": {"environment": system, "toolchains": toolchains},
                "resolvedDependencies": [_resource(used[name]) for name in sorted(used)],
            },
            "runDetails": details,
        }


def build_time() -> str | None:
    """Return the time of ``SOURCE_DATE_EPOCH``; None: documents have no time.

    Raises:
        BuildError: it is no number of seconds.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    try:
        return datetime.fromtimestamp(int(text), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError) as error:
        raise BuildError(f"SOURCE_DATE_EPOCH={text!r} is no time in seconds since 1970.") from error


def _resource(material: Material) -> Json:
    found: Json = {"name": material.name}
    if material.purl:
        found["uri"] = material.purl
    if material.sha256:
        found["digest"] = {"sha256": material.sha256}
    return found


def _plain(value: Any) -> Any:
    """Return parameters as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
