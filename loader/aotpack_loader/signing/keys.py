"""Keys of Ed25519 and ECDSA P-256, by the library ``cryptography``. Only this module imports it."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from ..errors import AotpackError, TrustError

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
except ImportError as error:
    raise TrustError(
        f"Signatures need the library cryptography: {error}.", hint="Install it: pip install 'aotpack-loader[signing]'."
    ) from error

from .documents import Envelope, KeyHint, pae

KINDS: Final = ("ed25519", "ecdsa-p256")
MAX_KEY_BYTES: Final = 64 << 10


class KeyFileError(AotpackError):
    """A file holds no key of a kind that signs bundles, or its passphrase is wrong."""


class PublicKey:
    """A key that verifies. ``id`` is the digest of its DER form, ``name`` where it comes from."""

    def __init__(self, key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey, name: str = "") -> None:
        self._key = key
        self.name = name
        der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.id = f"sha256:{hashlib.sha256(der).hexdigest()}"
        self.hint = base64.b64encode(hashlib.sha256(der).digest()).decode()
        self.kind = "ed25519" if isinstance(key, ed25519.Ed25519PublicKey) else "ecdsa-p256"

    @property
    def pem(self) -> bytes:
        """The key in PEM."""
        return self._key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    @property
    def model_signing_hint(self) -> str:
        """The hint that OpenSSF Model Signing writes."""
        return hashlib.sha256(self.pem).hexdigest()

    def may_match(self, hint: KeyHint) -> bool:
        """Whether a signature with this hint may be of this key."""
        return hint.hint in (None, "", self.hint, self.id, self.model_signing_hint)

    def verifies(self, envelope: Envelope) -> bool:
        """Whether one of the envelope's signatures is of this key."""
        message = pae(envelope.payload, envelope.payload_type)
        return any(self._verifies(message, signature.sig) for signature in envelope.signatures)

    def _verifies(self, message: bytes, signature: bytes) -> bool:
        try:
            if isinstance(self._key, ed25519.Ed25519PublicKey):
                self._key.verify(signature, message)
            else:
                self._key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


class PrivateKey:
    """A key that signs."""

    def __init__(self, key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey, name: str = "") -> None:
        self._key = key
        self.public = PublicKey(key.public_key(), name)

    @classmethod
    def generate(cls, kind: str) -> PrivateKey:
        """Make a new key of one of :data:`KINDS`."""
        if kind == "ed25519":
            return cls(ed25519.Ed25519PrivateKey.generate())
        return cls(ec.generate_private_key(ec.SECP256R1()))

    def sign(self, payload: bytes) -> bytes:
        """Return the signature of a statement."""
        message = pae(payload)
        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(message)
        return self._key.sign(message, ec.ECDSA(hashes.SHA256()))

    def pem(self, passphrase: bytes | None) -> bytes:
        """Return the key in PEM (PKCS 8), encrypted if there is a passphrase."""
        protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if passphrase:
            protection = serialization.BestAvailableEncryption(passphrase)
        return self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)


def public_key(pem: bytes, name: str) -> PublicKey:
    """Read a public key in PEM.

    Raises:
        KeyFileError: it is no public key, or of another kind.
    """
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        hint = "It is a private key; pass the public one." if b"PRIVATE KEY" in pem else ""
        raise KeyFileError(f"{name} holds no public key in PEM.", hint=hint) from error
    if isinstance(key, ed25519.Ed25519PublicKey) or (isinstance(key, ec.EllipticCurvePublicKey) and _is_p256(key)):
        return PublicKey(key, name)
    raise _unknown(name)


def private_key(pem: bytes, name: str, passphrase: bytes | None = None) -> PrivateKey:
    """Read a private key in PEM.

    Raises:
        KeyFileError: it is no private key, of another kind, or the passphrase does not fit.
    """
    try:
        key = serialization.load_pem_private_key(pem, passphrase)
    except TypeError as error:  # a passphrase is missing, or there is none to use
        raise KeyFileError(f"The private key {name} cannot be read: {error}.") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{name} holds no private key in PEM, or the passphrase is wrong.") from error
    if isinstance(key, ed25519.Ed25519PrivateKey) or (isinstance(key, ec.EllipticCurvePrivateKey) and _is_p256(key)):
        return PrivateKey(key, name)
    raise _unknown(name)


def _is_p256(key: ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) -> bool:
    return isinstance(key.curve, ec.SECP256R1)


def _unknown(name: str) -> KeyFileError:
    return KeyFileError(f"The key {name} is of another kind.", hint=f"Bundles are signed with: {', '.join(KINDS)}.")
