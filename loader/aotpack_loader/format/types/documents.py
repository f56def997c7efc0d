"""What all documents consist of, and the documents of OCI (image-spec 1.1) that hold a bundle together."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$", max_length=71, description="sha256 of the bytes of a blob")]
Index = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=0, le=2**62)]
Name = Annotated[str, Meta(min_length=1, max_length=4096)]
DType = Literal[
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
]  # fmt: skip
"""Element types, named as torch names them without the ``torch.`` prefix."""

Dim = int | str
"""A size, stride or offset, in elements: an integer, or an expression over symbols (spec/expressions.md)."""


class Document(Struct, frozen=True, omit_defaults=True, gc=False):
    """Base of all documents: immutable. Readers ignore unknown optional fields. Defaults are not written.

    Documents hold no cycles, so the garbage collector does not track them (``gc``).
    """


class Platform(Document, frozen=True, rename={"os_version": "os.version"}):
    """OCI platform of a manifest. ``variant`` is the x86-64 level (``v2``, ``v3``, ``v4``)."""

    architecture: str
    os: str
    variant: str = ""
    os_version: str = ""


class Descriptor(Document, frozen=True, rename={"media_type": "mediaType", "artifact_type": "artifactType"}):
    """A reference to a blob.

    A reader MUST compare ``size`` before it hashes the blob, and ``digest`` before it parses it.
    """

    media_type: Name
    digest: Digest
    size: Size
    annotations: dict[str, str] = {}
    platform: Platform | None = None
    artifact_type: str = ""


class Manifest(
    Document,
    frozen=True,
    rename={"schema_version": "schemaVersion", "media_type": "mediaType", "artifact_type": "artifactType"},
):
    """One target of a bundle: its program and every blob that the target needs."""

    schema_version: Literal[2]
    media_type: Literal["application/vnd.oci.image.manifest.v1+json"]
    artifact_type: str
    config: Descriptor
    layers: list[Descriptor]
    annotations: dict[str, str] = {}


class ImageIndex(
    Document,
    frozen=True,
    rename={"schema_version": "schemaVersion", "media_type": "mediaType", "artifact_type": "artifactType"},
):
    """A list of manifests: the layout's ``index.json``, and the bundle index below it."""

    schema_version: Literal[2]
    manifests: list[Descriptor]
    media_type: str = ""
    artifact_type: str = ""
    annotations: dict[str, str] = {}
