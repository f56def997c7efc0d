"""A Sigstore of our own for tests: a certificate authority, a certificate log and a transparency log, all local.

Its trusted root is a file as the real one has, and the bundles it makes are what ``sigstore`` and
cosign write. The library checks them with all its steps. Nothing asks the network.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aotpack_loader.archive.attachments import IN_TOTO, SIGSTORE_BUNDLE
from aotpack_loader.signing.documents import pae

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SIGNED_AT = START + datetime.timedelta(minutes=5)
SHA256 = ec.ECDSA(hashes.SHA256())
_ISSUER_V1 = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")


def text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_der(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(public_der(key)).digest()


@dataclass
class Sigstore:
    """One instance: its keys, and the certificate of its authority."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
        self.root = (
            x509.CertificateBuilder(name, name, self.authority.public_key(), 1, START, START + datetime.timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key()), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    def trusted_root(self, path: Path) -> Path:
        """Write the trusted root."""

        def public(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            since = {"start": "2026-01-01T00:00:00Z"}
            details = {"rawBytes": text64(public_der(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": since}
            return {"hashAlgorithm": "SHA2_256", "publicKey": details, "logId": {"keyId": text64(key_id(key))}}

        certificate = text64(self.root.public_bytes(serialization.Encoding.DER))
        authority = {
            "subject": {"organization": "test", "commonName": "test"},
            "uri": "https://fulcio.invalid",
            "certChain": {"certificates": [{"rawBytes": certificate}]},
            "validFor": {"start": "2026-01-01T00:00:00Z"},
        }
        document = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [{"baseUrl": "https://rekor.invalid", **public(self.log)}],
            "certificateAuthorities": [authority],
            "ctlogs": [{"baseUrl": "https://ctfe.invalid", **public(self.certificate_log)}],
            "timestampAuthorities": [],
        }
        path.write_text(json.dumps(document))
        return path

    def sign(self, payload: bytes, identity: str, issuer: str, *, at: datetime.datetime = SIGNED_AT) -> dict[str, Any]:
        """Return a Sigstore bundle of a statement that ``identity`` signed ``at`` a time.

        The certificate is valid for ten minutes from :data:`START`.
        """
        key = new_key()
        leaf = self._certificate(key, identity, issuer)
        signature = key.sign(pae(payload), SHA256)
        pem = leaf.public_bytes(serialization.Encoding.PEM)
        spec = {
            "envelopeHash": {"algorithm": "sha256", "value": "0" * 64},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [{"signature": text64(signature), "verifier": text64(pem)}],
        }
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}).encode()
        return {
            "mediaType": SIGSTORE_BUNDLE,
            "verificationMaterial": {
                "certificate": {"rawBytes": text64(leaf.public_bytes(serialization.Encoding.DER))},
                "tlogEntries": [self._entry(body, int(at.timestamp()))],
            },
            "dsseEnvelope": {"payload": text64(payload), "payloadType": IN_TOTO, "signatures": [{"sig": text64(signature)}]},
        }

    def _certificate(self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str) -> x509.Certificate:
        """A certificate as Fulcio makes it, with the promise of the certificate log in it."""
        is_uri = "://" in identity
        name: x509.GeneralName = x509.UniformResourceIdentifier(identity) if is_uri else x509.RFC822Name(identity)
        builder = (
            x509.CertificateBuilder(
                self.root.subject, x509.Name([]), key.public_key(), 7, START, START + datetime.timedelta(minutes=10)
            )
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName([name]), critical=True)
            .add_extension(x509.UnrecognizedExtension(_ISSUER_V1, issuer.encode()), critical=False)
        )
        before = builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        promise = x509.UnrecognizedExtension(_SCT_LIST, self._promise(before))
        return builder.add_extension(promise, critical=False).sign(self.authority, hashes.SHA256())

    def _promise(self, certificate: bytes) -> bytes:
        """A list of one signed certificate timestamp (RFC 6962), as an octet string."""
        time = int(START.timestamp() * 1000)
        size = len(certificate).to_bytes(3, "big")
        signed = struct.pack("!BBQH", 0, 0, time, 1) + key_id(self.authority) + size + certificate + b"\0\0"
        signature = self.certificate_log.sign(signed, SHA256)
        promise = struct.pack("!B32sQHBBH", 0, key_id(self.certificate_log), time, 0, 4, 3, len(signature)) + signature
        listed = struct.pack("!HH", len(promise) + 2, len(promise)) + promise
        return b"\x04" + (bytes([len(listed)]) if len(listed) < 128 else b"\x81" + bytes([len(listed)])) + listed

    def _entry(self, body: bytes, time: int) -> dict[str, Any]:
        """The only entry of a transparency log, with its proof and the log's promise."""
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"rekor.invalid - 1\n1\n{text64(root)}\n"
        stamp = text64(key_id(self.log)[:4] + self.log.sign(note.encode(), SHA256))
        promised = {"body": text64(body), "integratedTime": time, "logID": key_id(self.log).hex(), "logIndex": 0}
        canonical = json.dumps(promised, sort_keys=True, separators=(",", ":")).encode()
        return {
            "logIndex": "0",
            "logId": {"keyId": text64(key_id(self.log))},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(time),
            "inclusionPromise": {"signedEntryTimestamp": text64(self.log.sign(canonical, SHA256))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": text64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\N{EM DASH} rekor.invalid {stamp}\n"},
            },
            "canonicalizedBody": text64(body),
        }


def _usage(**wanted: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign",
        "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**dict.fromkeys(names, False) | wanted)
