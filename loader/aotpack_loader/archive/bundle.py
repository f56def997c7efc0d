"""An open bundle: its checked documents, and its blobs by descriptor.

:mod:`.manifests` reads the documents. Other modules interpret a program or graph, and decide
whether code may run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import BundleError, CorruptBundleError, NotABundleError, Problem
from ..format import media_types
from ..format.codec import decode
from ..format.schema import (
    Descriptor,
    Graph,
    ImageIndex,
    Origins,
    Program,
    Target,
)
from ..format.validate_target import validate_target
from . import cache
from .layout import Layout, open_layout
from .manifests import (
    TargetManifest,
    check_references,
    listed,
    read_manifest,
    read_programs,
    read_target,
    require_few_targets,
)
from .weights import WeightMap

if TYPE_CHECKING:
    from .attachments import Attachment

_CODE_PREFIX = "application/vnd.aotpack.code."
_CODE_SUFFIXES = {media_types.CODE_AOTI: ".so", media_types.CODE_CALL: ".so"}


class Bundle:
    """An open bundle whose documents have been read and checked. Weights and code are read on request."""

    def __init__(self, layout: Layout) -> None:
        """Read the documents of ``layout``. :meth:`open` also closes it if they are invalid."""
        self._layout = layout
        self._index, self.beside = listed(layout)
        index = decode(layout.read(self._index), ImageIndex, where="bundle index")
        if index.artifact_type != media_types.BUNDLE or index.media_type not in ("", media_types.OCI_INDEX):
            raise NotABundleError(f"{layout.path!r} is an OCI image layout, but not of an aotpack bundle.")
        require_few_targets(index)
        manifests = [read_manifest(layout, descriptor) for descriptor in index.manifests]
        programs = read_programs(layout, manifests)
        self._config, self._program = manifests[0].config, programs[0]
        self._manifests: dict[str, TargetManifest] = {}
        for descriptor, manifest, program in zip(index.manifests, manifests, programs, strict=True):
            found = read_target(layout, descriptor, manifest, program)
            if found.target.name in self._manifests:
                raise CorruptBundleError(f"The bundle has two targets called {found.target.name!r}.")
            check_references(found)
            validate_target(found.target, program, f"target {found.target.name!r}")
            if found.target.xla or found.target.specializations:
                from ..format.validate_xla import validate_computations  # rarely needed, so not imported at every start

                validate_computations(found.target, program, f"target {found.target.name!r}")
            self._manifests[found.target.name] = found
        self._graphs: dict[str, Graph] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Bundle:
        """Open the bundle file or directory at ``path``.

        Raises:
            BundleNotFoundError: the path does not exist.
            NotABundleError: it is not a bundle.
            UnsupportedVersionError: it needs a newer (or older) loader.
            CorruptBundleError: it is damaged or breaks a rule of the format.
        """
        layout = open_layout(path)
        try:
            return cls(layout)
        except BaseException:
            layout.close()
            raise

    @property
    def path(self) -> str:
        """The path it was opened from."""
        return self._layout.path

    def real_path(self) -> str:
        """Return the absolute path of the open bundle, without symbolic links.

        Raises:
            BundleError: its path leads to something else by now.
        """
        return self._layout.real_path()

    @property
    def digest(self) -> str:
        """The bundle's digest: that of its bundle index, which covers everything in the bundle."""
        return self._index.digest

    @property
    def index(self) -> Descriptor:
        """The descriptor of the bundle index, which attachments name as their subject."""
        return self._index

    def entries(self) -> dict[str, tuple[int, int]]:
        """Return the entries of a bundle file by name: their bytes ``[start, stop)`` in the file."""
        return self._layout.entries()

    @property
    def has_attachments(self) -> bool:
        """Whether ``index.json`` lists more than the bundle. Nothing of that is read for it."""
        return bool(self.beside)

    def attachments(self) -> tuple[list[Attachment], list[Problem]]:
        """Return the bundle's attachments, such as signatures, and what is wrong with damaged ones.

        The bundle digest does not cover them. A reader believes one only for a signature in it.
        """
        from .attachments import read  # rarely needed, so not imported at every start

        return read(self._layout, self.beside, self._index)

    def attached(self, attachment: Attachment) -> memoryview:
        """Return the document of an attachment.

        Raises:
            CorruptBundleError: missing, damaged, or too large for a document.
        """
        from .attachments import document

        return document(self._layout, attachment)

    @property
    def program(self) -> Program:
        """The program of the first target, or of the one that :meth:`for_target` named."""
        return self._program

    @property
    def config(self) -> Descriptor:
        """The descriptor of the program."""
        return self._config

    def for_target(self, name: str) -> Bundle:
        """Return the same open bundle with the program of one target. Targets may have graphs of their own."""
        found = self._manifests[name]
        bundle = copy(self)
        bundle._config, bundle._program = found.manifest.config, found.program
        return bundle

    @property
    def targets(self) -> dict[str, Target]:
        """The targets by name, in the order of the bundle."""
        return {name: found.target for name, found in self._manifests.items()}

    @property
    def manifests(self) -> dict[str, TargetManifest]:
        """The targets by name, each with its manifest and platform."""
        return dict(self._manifests)

    def graph(self, descriptor: Descriptor) -> Graph:
        """Return the graph that ``descriptor`` refers to, decoded once.

        Raises:
            CorruptBundleError: the blob is damaged or is not a valid graph.
        """
        found = self._graphs.get(descriptor.digest)
        if found is None:
            from ..format.validate_graph import validate_graph  # not needed to run native code

            found = decode(self._document(descriptor), Graph, where=f"graph {descriptor.digest}")
            validate_graph(found, descriptor.digest)
            self._graphs[descriptor.digest] = found
        return found

    def code(self, descriptor: Descriptor) -> Path:
        """Return a file with the compiled code that ``descriptor`` refers to, extracted to the cache.

        The caller decides on trust first. This method writes code but does not run it.

        Raises:
            CorruptBundleError: the blob is damaged or is not code.
            AotpackError: the cache cannot be used.
        """
        if not descriptor.media_type.startswith(_CODE_PREFIX):
            raise CorruptBundleError(f"{descriptor.digest} is a {descriptor.media_type}, not compiled code.")
        raw_digest = descriptor.annotations.get(media_types.ANNOTATION_RAW_DIGEST)
        if raw_digest is None:
            raise CorruptBundleError(
                "Compiled code lacks an annotation.", [Problem(descriptor.digest, media_types.ANNOTATION_RAW_DIGEST)]
            )
        suffix = _CODE_SUFFIXES.get(descriptor.media_type, "")
        size = raw_size(descriptor)
        return cache.extract(descriptor.digest, raw_digest, size, lambda: self._decompress(descriptor), suffix)

    def module(self, descriptor: Descriptor) -> bytes:
        """Return the bytes of an XLA program or executable that ``descriptor`` refers to.

        Raises:
            CorruptBundleError: the blob is damaged.
        """
        return self._decompress(descriptor)

    def read(self, descriptor: Descriptor) -> memoryview:
        """Return the bytes of a blob as stored, after checking its size and digest.

        Raises:
            CorruptBundleError: missing or damaged.
        """
        return self._layout.read(descriptor)

    def map(self, descriptor: Descriptor) -> memoryview:
        """Return a mapping of a blob of any size, as stored. Its digest is not checked.

        Raises:
            CorruptBundleError: it is missing, or has another size.
        """
        return self._layout.map(descriptor)

    def weights(self, *, blank: bool = False) -> WeightMap:
        """Return a new mapping of the program's weights. Writes to it do not affect other mappings.

        With ``blank`` the tensors have the same types but are uninitialised, and no stored element
        is read.
        """
        return WeightMap(self._layout, self._program.weights, blank=blank)

    def self_test(self) -> WeightMap | None:
        """Return the stored tensors of the program's self-test, if it has one."""
        found = self._program.self_test
        return None if found is None else WeightMap(self._layout, [found])

    def origins(self) -> Origins | None:
        """Return where the nodes of the graphs come from in the original. None: it is not recorded, or not in this copy.

        Raises:
            CorruptBundleError: the blob is damaged or is not such a document.
        """
        found = self._program.origins
        if found is None or not self.has(found):
            return None
        return decode(self._document(found), Origins, where=f"origins {found.digest}")

    def descriptors(self) -> list[Descriptor]:
        """Return a descriptor of every distinct blob: bundle index, manifests, program, then layers in order."""
        found = {self._index.digest: self._index}
        for descriptor in self._all_descriptors():
            found.setdefault(descriptor.digest, descriptor)
        return list(found.values())

    def has(self, descriptor: Descriptor) -> bool:
        """Whether this copy has a blob. A pull of some targets leaves out the layers of the others."""
        return self._layout.has(descriptor)

    def is_here(self, target: str) -> bool:
        """Whether this copy has all layers of a target."""
        return all(map(self._layout.has, self._manifests[target].manifest.layers))

    @property
    def copied(self) -> frozenset[str]:
        """The targets that this copy was made with: all, or those that were pulled."""
        listed = self._index.annotations.get(media_types.ANNOTATION_TARGETS)
        return frozenset(self._manifests) if listed is None else frozenset(listed.split(",")) & self._manifests.keys()

    def absence(self, target: str) -> str:
        """Why a target cannot run from this copy: it was not pulled, or a layer was lost. Empty: all is here."""
        layers = self._manifests[target].manifest.layers
        lost = [layer.digest for layer in layers if not self._layout.has(layer)]
        if not lost:
            return ""
        if target not in self.copied:
            return "it was not pulled into this copy of the bundle: pull it with `--target`, or without it for all targets"
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return f"this copy of the bundle is damaged, it has lost the layer {lost[0]}{more}: fetch or build it again"

    def documents(self) -> list[Descriptor]:
        """Return a descriptor of each blob that opening the bundle reads: what a copy with some targets has of all."""
        found = {self._index.digest: self._index}
        for entry in self._manifests.values():
            found.setdefault(entry.manifest.config.digest, entry.manifest.config)
            found.setdefault(entry.descriptor.digest, entry.descriptor)
            found.setdefault(entry.manifest.layers[0].digest, entry.manifest.layers[0])
        return list(found.values())

    def verify(self) -> None:
        """Hash every blob. Of a copy with some targets, those of these targets, and others that are here.

        Raises:
            CorruptBundleError: some do not match; lists all of them.
        """
        problems: list[Problem] = []
        needed = {descriptor.digest for descriptor in self.documents()}
        needed |= {layer.digest for name in self.copied for layer in self._manifests[name].manifest.layers}
        for descriptor in self.descriptors():
            if descriptor.digest not in needed and not self.has(descriptor):
                continue
            try:
                self._layout.verify(descriptor)
            except BundleError as error:
                problems += error.problems or [Problem(descriptor.digest, error.summary)]
        if problems:
            raise CorruptBundleError(
                f"Damaged blobs of the bundle {self.path!r}: {len(problems)}.",
                problems,
                hint="Fetch or build the bundle again.",
            )

    def close(self) -> None:
        """Release the file handles. Tensors that were returned stay valid."""
        self._layout.close()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _all_descriptors(self) -> Iterator[Descriptor]:
        for found in self._manifests.values():
            yield found.descriptor
        for found in self._manifests.values():
            yield found.manifest.config
        for found in self._manifests.values():
            yield from found.manifest.layers

    def _document(self, descriptor: Descriptor) -> bytes:
        from . import compression

        return compression.decompress_document(self._layout.read(descriptor), raw_size(descriptor))

    def _decompress(self, descriptor: Descriptor) -> bytes:
        from . import compression  # not needed for code that is already in the cache

        return compression.decompress(self._layout.read(descriptor), raw_size(descriptor))


def raw_size(descriptor: Descriptor) -> int:
    """Return the decompressed size of a blob in bytes, from its annotation.

    Raises:
        CorruptBundleError: the annotation is missing or not a decimal number.
    """
    text = descriptor.annotations.get(media_types.ANNOTATION_RAW_SIZE, "")
    # isdigit() alone would also accept digits of other scripts. 19 digits suffice for any size.
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        message = f"{media_types.ANNOTATION_RAW_SIZE} is {text!r}, expected a decimal number"
        raise CorruptBundleError("A compressed blob does not say its size.", [Problem(descriptor.digest, message)])
    return int(text)
