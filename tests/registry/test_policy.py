"""A policy knows a bundle in a registry by its repository, and is asked before layers are fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

import aotpack_loader
from aotpack.registry.push import push
from aotpack.signing.sign import sign
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import PolicyError
from aotpack_loader.registry.reference import Reference
from aotpack_loader.registry.store import BlobCache
from aotpack_loader.signing.keys import PrivateKey

from .conftest import Registry, quick

pytestmark = pytest.mark.usefixtures("cache")


def test_load(registry: Registry, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = registry.reference("policy/tiny:v1")
    key = PrivateKey.generate("ed25519")
    (tmp_path / "acme.pub").write_bytes(key.public.pem)
    policy = tmp_path / "policy.toml"
    place = name.rpartition(":")[0]
    policy.write_text(f'version = 1\n[[rules]]\nmatch = ["{place}"]\nmode = "enforce"\nkeys = ["acme.pub"]\n')
    digest = push(bundle, Reference.parse(name), transport=quick()).digest
    with pytest.raises(PolicyError, match="it is not signed"):
        aotpack_loader.load(name, policy=policy)
    with Bundle.open(BlobCache().bundle(digest)) as fetched:
        assert not fetched.is_here("portable")  # nothing but documents
    sign(bundle, key)
    push(bundle, Reference.parse(name), transport=quick())
    monkeypatch.setenv("AOTPACK_POLICY", str(policy))
    aotpack_loader.load(name)
    aotpack_loader.load(f"{place}@{digest}")
    with pytest.raises(PolicyError, match="has no rule for"):
        aotpack_loader.load(bundle)  # by its path
