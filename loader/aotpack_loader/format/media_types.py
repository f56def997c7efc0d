"""Media types, annotation keys and reserved names of a bundle."""

from __future__ import annotations

from typing import Final

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_EMPTY: Final = "application/vnd.oci.empty.v1+json"
"""The configuration of an attachment: the two bytes ``{}``."""

BUNDLE: Final = "application/vnd.aotpack.bundle.v1"
"""``artifactType`` of the bundle index and of every manifest below it."""
PROGRAM: Final = "application/vnd.aotpack.program.v1+json"
TARGET: Final = "application/vnd.aotpack.target.v1+json"
GRAPH: Final = "application/vnd.aotpack.graph.v1+json+zstd"
ORIGINS: Final = "application/vnd.aotpack.origins.v1+json+zstd"
WEIGHTS: Final = "application/vnd.aotpack.weights.v1+safetensors"
SELF_TEST: Final = "application/vnd.aotpack.selftest.v1+safetensors"
CODE_AOTI: Final = "application/vnd.aotpack.code.aoti.v1+zstd"
CODE_HLO: Final = "application/vnd.aotpack.code.hlo.v1+zstd"
CODE_STABLEHLO: Final = "application/vnd.aotpack.code.stablehlo.v1+zstd"
CODE_PJRT: Final = "application/vnd.aotpack.code.pjrt.v1+zstd"
CODE_CUBIN: Final = "application/vnd.aotpack.code.cubin.v1+zstd"
CODE_PTX: Final = "application/vnd.aotpack.code.ptx.v1+zstd"
CODE_CALL: Final = "application/vnd.aotpack.code.call.v1+zstd"
CODE_FALLBACKS: Final = "application/vnd.aotpack.code.fallbacks.v1+json"

ANNOTATION_TITLE: Final = "org.opencontainers.image.title"
ANNOTATION_REF_NAME: Final = "org.opencontainers.image.ref.name"
"""In ``index.json``: the name by which tools choose the bundle where there are attachments beside it."""
ANNOTATION_TARGET: Final = "dev.aotpack.target"
"""On a manifest and its descriptor: the target's name, ``cpu:x86-64-v3``."""
ANNOTATION_TARGETS: Final = "dev.aotpack.targets"
"""In ``index.json``, on the entry of a bundle: names of the targets that this copy has, separated by commas. Absent: all."""
ANNOTATION_BUNDLE: Final = "dev.aotpack.bundle"
"""On an image that holds a bundle: the bundle digest."""
ANNOTATION_RAW_SIZE: Final = "dev.aotpack.raw-size"
"""On a compressed blob: its size in bytes once decompressed, in decimal."""

ANNOTATION_RAW_DIGEST: Final = "dev.aotpack.raw-digest"
"""On a compressed blob: the digest of its bytes once decompressed."""

PADDING_PREFIX: Final = "__aotpack_padding."
"""Stored tensors whose name starts so only align the next one."""
WEIGHTS_ALIGNMENT: Final = 64
