"""Envelopes that somebody made who has no key: only the key's own statement about this digest is believed."""

from __future__ import annotations

import base64
import copy
import json
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from msgspec import structs
from support.archive import write_tiny

from aotpack.signing.sign import sign
from aotpack_loader.archive.attachments import SIGSTORE_BUNDLE
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.signing import documents, verify
from aotpack_loader.signing.keys import KINDS, PrivateKey
from aotpack_loader.signing.verify import Verdict, signer

Json = Any
OURS, OTHERS = "a" * 64, "b" * 64
KEYS = {kind: PrivateKey.generate(kind) for kind in KINDS}
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class Signed:
    """A bundle with one attached document."""

    has_attachments = True
    digest = f"sha256:{OURS}"

    def __init__(self, document: bytes) -> None:
        self.document = document

    def attachments(self) -> tuple[list[Any], list[Any]]:
        layer, descriptor = SimpleNamespace(size=len(self.document), digest="sha256:y"), SimpleNamespace(digest="sha256:x")
        return [SimpleNamespace(kind=SIGSTORE_BUNDLE, layer=layer, descriptor=descriptor)], []

    def attached(self, attachment: Any) -> memoryview:
        return memoryview(self.document)


def verdict(document: Json, *keys: PrivateKey) -> Verdict:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return signer(Signed(text), [key.public for key in keys])


def payload_of(digest: str = OURS, predicate: str = documents.SIGNED, **digests: str) -> bytes:
    return documents.statement([documents.Subject(digests or {"sha256": digest}, "model")], predicate, {})


def signed(key: PrivateKey, payload: bytes) -> Json:
    return json.loads(documents.sigstore_bundle(payload, key.sign(payload), key.public.hint))


def text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(params=KINDS)
def key(request: pytest.FixtureRequest) -> PrivateKey:
    return KEYS[request.param]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(messageSignature=None, other={"a": [1]}),
        lambda d: d["dsseEnvelope"].update(other=1),
        lambda d: d["dsseEnvelope"]["signatures"][0].update(other=1, keyid="of another"),
        lambda d: d["dsseEnvelope"]["signatures"].insert(0, {"sig": "AAAA"}),
        lambda d: d["verificationMaterial"]["publicKey"].update(hint=None, other=1),
        lambda d: d["verificationMaterial"].update(tlogEntries=[{"x": 1}], timestampVerificationData={}),
    ],
    ids=["fields", "of the envelope", "of the signature", "a bad one first", "no hint", "a log"],
)
def test_what_does_not_matter(key: PrivateKey, change: Any) -> None:
    document = signed(key, payload_of())
    change(document)
    assert verdict(document, key).key is key.public


@pytest.mark.parametrize(
    "payload",
    [
        payload_of(OTHERS),  # the same name
        payload_of(OURS.upper()),
        payload_of(sha512=OURS),
        payload_of(predicate="https://slsa.dev/provenance/v1"),
        payload_of(predicate=documents.SIGNED + "/"),
        payload_of().replace(b"Statement/v1", b"Statement/v0.1"),
        b'{"sha256": "%s"}' % OURS.encode(),
        b"[" * 100_000,
        payload_of()[:-1],
        b'{"_type":"%s","predicateType":"%s","subject":[{"digest":{"sha256":"%s","sha256":"%s"}}]}'
        % (documents.STATEMENT.encode(), documents.SIGNED.encode(), OURS.encode(), OTHERS.encode()),
    ],
)
def test_what_the_key_signed_but_is_not_this(key: PrivateKey, payload: bytes) -> None:
    assert verdict(signed(key, payload), key).key is None


def test_a_name_that_occurs_twice_means_one_thing(key: PrivateKey) -> None:
    """The bytes whose signature is checked are those that are then read."""
    good, evil = payload_of(OTHERS), payload_of(OURS)
    document = signed(key, good)
    text = json.dumps(document).encode()
    first, second = (b'"payload": "%s"' % text64(each).encode() for each in (good, evil))
    assert first in text
    for both in (first + b"," + second, second + b"," + first):
        assert verdict(text.replace(first, both), key).key is None
    envelope = json.dumps({**document["dsseEnvelope"], "payload": text64(evil)})
    assert verdict(text[:-1] + b',"dsseEnvelope":' + envelope.encode() + b"}", key).key is None


@pytest.mark.parametrize("kind", ["text/plain", "application/vnd.in-toto+json ", "", "application/vnd.in-toto+json 5 hello"])
def test_the_type_of_the_payload_is_signed(key: PrivateKey, kind: str) -> None:
    """A signature of the same bytes as another type of document is no statement, and cannot be passed off as one."""
    payload = payload_of()
    document = signed(key, payload)
    document["dsseEnvelope"]["payloadType"] = kind
    assert verdict(document, key).key is None  # the signature does not fit
    made = KEYS["ed25519"]._key.sign(documents.pae(payload, kind))  # one that fits
    document["dsseEnvelope"]["signatures"] = [{"sig": text64(made)}]
    assert verdict(document, KEYS["ed25519"]).key is None


def test_keys_whose_hints_collide(key: PrivateKey) -> None:
    """A hint chooses nothing: every key that it may be of is tried."""
    other = PrivateKey.generate("ed25519")
    other.public.hint = key.public.hint
    document = signed(key, payload_of())
    assert verdict(document, other, key).key is key.public
    assert verdict(document, other).key is None
    document["verificationMaterial"]["publicKey"]["hint"] = PrivateKey.generate("ed25519").public.hint
    assert verdict(document, other, key).key is None


def test_another_form_of_one_signature() -> None:
    """Of a signature on P-256 anybody can make a second one. It says the same, and nothing goes by its bytes."""
    key, payload = KEYS["ecdsa-p256"], payload_of()
    document = signed(key, payload)
    r, s = decode_dss_signature(base64.b64decode(document["dsseEnvelope"]["signatures"][0]["sig"]))
    for twin, believed in ((P256_ORDER - s, True), (0, False), (P256_ORDER, False), (s + P256_ORDER, False)):
        document["dsseEnvelope"]["signatures"] = [{"sig": text64(encode_dss_signature(r, twin))}]
        assert (verdict(document, key).key is not None) is believed
    document["dsseEnvelope"]["signatures"] = [{"sig": text64(encode_dss_signature(r, s) + b"x")}]
    assert verdict(document, key).key is None


JUNK: tuple[Json, ...] = (
    None, True, 0, -1, 2**70, 1e400, "", "x" * 1000, "\ud800", "\0", [], {}, [[]], {"a": {}}, "AAAA", "=", OURS, OTHERS,
    documents.SIGNED,
)  # fmt: skip


def _slots(node: Json) -> list[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node))
    below = [slot for key in keys if isinstance(node[key], (dict, list)) for slot in _slots(node[key])]
    return [(node, key) for key in keys] + below


def test_mutants_are_believed_only_if_they_say_the_same() -> None:
    generator, believed = random.Random(1), 0
    start = time.process_time()
    for _ in range(1500):
        key, digest = generator.choice(list(KEYS.values())), generator.choice((OURS, OTHERS))
        payload = payload_of(digest)
        document, statement = signed(key, payload), json.loads(payload)
        for _ in range(generator.choice((0, 1, 1, 2, 3))):
            inside = generator.random() < 0.4
            holder, name = generator.choice(_slots(statement if inside else document))
            if not inside and generator.random() < 0.3:
                del holder[name]
            else:
                holder[name] = copy.deepcopy(generator.choice(JUNK))
            if inside and isinstance(document.get("dsseEnvelope"), dict):
                document["dsseEnvelope"]["payload"] = text64(json.dumps(statement).encode())
        if verdict(document, *KEYS.values()).key is not None:
            believed += 1
            assert digest == OURS
            assert base64.b64decode(document["dsseEnvelope"]["payload"]) == payload
    assert believed > 100
    assert time.process_time() - start < 20


def test_false_signatures_do_not_hide_a_true_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may push can add signatures that name the same key. Checks ended after 512."""
    write_tiny(tmp_path / "m")
    key = PrivateKey.generate("ed25519")
    sign(tmp_path / "m", key)
    with Bundle.open(tmp_path / "m") as bundle:
        (where, good), *_ = verify._signatures(bundle, [])
        false = structs.replace(good, dsse_envelope=structs.replace(good.dsse_envelope, payload_type="other"))
        monkeypatch.setattr(verify, "_signatures", lambda *_: iter([(where, false)] * 1023 + [(where, good)]))
        assert verify.signer(bundle, [key.public]).key is not None


def test_large_false_signatures_are_checked_in_bounded_time() -> None:
    """2.8 MB took 133 s with one key: one document, attached 1,024 times, with 16 signatures of 780,000 bytes."""
    key = KEYS["ed25519"]
    document = signed(key, b"x" * 780_000)
    document["dsseEnvelope"]["signatures"] = [{"sig": base64.b64encode(bytes([i]) * 64).decode()} for i in range(16)]
    text = json.dumps(document).encode()

    class Many(Signed):
        same = False

        def attachments(self) -> tuple[list[Any], list[Any]]:
            one = super().attachments()[0][0]
            layers = [SimpleNamespace(size=len(text), digest="y" if self.same else f"y{i}") for i in range(1024)]
            return [SimpleNamespace(kind=one.kind, layer=layer, descriptor=one.descriptor) for layer in layers], []

    start = time.process_time()
    assert signer(Many(text), [key.public]).reason == "it has too many signatures"
    Many.same = True
    assert signer(Many(text), [key.public]).reason == "no trusted key signed it"
    assert time.process_time() - start < 20
