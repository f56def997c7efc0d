"""A bundle with hostile names, for tests of what shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from aotpack_loader.archive import compression
from aotpack_loader.format import media_types
from devtools.paths import ROOT
from devtools.spec.documents import Documents, blob_name
from devtools.spec.vectors import tar

VECTORS = ROOT / "spec/vectors/v1/valid"
HOSTILE = "<img src=\"x\" onerror=alert(1)></script><script>document.title='owned'</script>\u202e\u200b"
"""A name. The format forbids control characters in names of parameters, so they are in the other names only."""
HIDDEN = frozenset("\x1b\x07\x9b\u202e\u200b")
"""Characters that no output may hold."""


def hostile_bundle(folder: Path, *, operators: Sequence[str] = ("no_such_operators",), name: str = "hostile") -> Path:
    """Write a valid bundle whose names are HTML, scripts, control characters and right-to-left marks.

    ``operators`` are those that it asks the caller for.
    """
    documents = Documents(VECTORS / "origins/bundle.aotpack")
    text = json.dumps(documents.program)
    assert '"0.conv.weight"' in text
    stored = [entry["storage"] for entry in documents.program["state"]]
    documents.program = json.loads(
        text.replace("0.conv", "0." + json.dumps(HOSTILE.replace(".", "_"))[1:-1]).replace('"labels"', '"x"')
    )
    program = documents.program
    for entry, storage in zip(program["state"], stored, strict=True):
        entry["storage"] = storage
    program["name"] = HOSTILE + "\x1b[31m"
    program["requirements"]["operators"] = list(operators)
    method = program["methods"]["train"]
    method["parameters"] = [HOSTILE + "\x1b[31m"]
    method["notes"] = [HOSTILE + "\x07"]
    origins = program["origins"]
    size = int(origins["annotations"][media_types.ANNOTATION_RAW_SIZE])
    raw = compression.decompress(documents.others[blob_name(origins["digest"])], size)
    raw = raw.replace(b'"0.conv"', json.dumps("0." + HOSTILE.replace(".", "_")).encode())
    documents.replace(origins, compression.compress(raw), raw)
    path = folder / f"{name}.aotpack"
    path.write_bytes(tar(list(documents.files().items())))
    return path
