"""Keys of sites and researchers: boxes sealed between two of them, jobs signed by one.

The key of a box (X25519, HKDF, ChaCha20-Poly1305) comes from the private key of one end and the
public key of the other, so only these two can make or open it: origin and secrecy from the hub are
one mechanism. Job, round, source and destination are bound to the box as associated data. The keys
are long-lived, so who steals a site's private key can read the boxes recorded before: there is no
forward secrecy. Jobs are signed by Ed25519.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NONCE_BYTES, TAG_BYTES = 12, 16
OVERHEAD = NONCE_BYTES + TAG_BYTES


class BoxError(ValueError):
    """A box that does not open: forged, damaged, or for another job, round or site."""


@dataclass(frozen=True)
class Address:
    """What a box is bound to."""

    job: str
    round: int
    source: str
    destination: str

    def encode(self) -> bytes:
        """One text for one address: JSON quotes names, so that no two addresses look alike."""
        return json.dumps([self.job, self.round, self.source, self.destination]).encode()


class SiteKey:
    """The private key of a site or a researcher; it never leaves its owner."""

    def __init__(self, private: X25519PrivateKey):
        self._private = private
        self._agreed: dict[str, bytes] = {}
        # One file to keep safe: the other secrets follow from it, each for one use.
        self._signing = Ed25519PrivateKey.from_private_bytes(self.secret("signing"))

    @classmethod
    def generate(cls) -> SiteKey:
        """A new key from the system's randomness."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | Path) -> SiteKey:
        """The key of a file that `save` wrote."""
        text = Path(path).read_text().strip()
        try:
            return cls(X25519PrivateKey.from_private_bytes(bytes.fromhex(text)))
        except ValueError:
            raise ValueError(f"{str(path)!r} holds no site key: 64 hexadecimal digits.") from None

    def save(self, path: str | Path) -> None:
        """Write the key to a new file that only its owner may read."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self._private.private_bytes_raw().hex() + "\n")

    @property
    def public(self) -> str:
        """The public sealing key, 64 hexadecimal digits."""
        return self._private.public_key().public_bytes_raw().hex()

    @property
    def identity(self) -> str:
        """Public sealing key and public signing key together, 128 hexadecimal digits."""
        return self.public + self._signing.public_key().public_bytes_raw().hex()

    def secret(self, use: str) -> bytes:
        """Thirty-two secret bytes for one use, always the same."""
        return _derived(self._private.private_bytes_raw(), f"fedmixtures {use} v1".encode())

    def shared(self, other: str, context: bytes) -> bytes:
        """Thirty-two bytes that only we and the holder of the public key `other` can work out."""
        if other not in self._agreed:  # once with everybody: it costs more than all the rest
            public = X25519PublicKey.from_public_bytes(bytes.fromhex(other))
            self._agreed[other] = self._private.exchange(public)
        return _derived(self._agreed[other], context)

    def seal(self, content: bytes, receiver: str, address: Address) -> bytes:
        """A box that only the holder of the public key `receiver` (and we) can open."""
        nonce, where = os.urandom(NONCE_BYTES), address.encode()
        return nonce + self._box_key(receiver, where).encrypt(nonce, content, where)

    def open(self, box: bytes, sender: str, address: Address) -> bytes:
        """The content of a box that the holder of the public key `sender` made for us."""
        if len(box) < OVERHEAD:
            raise BoxError("the box is too short")
        where = address.encode()
        try:
            key = self._box_key(sender, where)
            return key.decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], where)
        except InvalidTag:
            raise BoxError(
                f"the box does not open as one from {address.source!r} for round {address.round}"
            ) from None

    def _box_key(self, other: str, where: bytes) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self.shared(other, b"fedmixtures box v1" + where))

    def sign(self, content: bytes) -> str:
        """A signature that `is_signed` accepts with our identity."""
        return self._signing.sign(content).hex()


def is_signed(content: bytes, signature: str, identity: str) -> bool:
    """Whether the owner of this identity has signed the content."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(identity)[32:])
        key.verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def fingerprint(public: str) -> str:
    """Eight groups of four digits to compare over the telephone."""
    digits = hashlib.sha256(bytes.fromhex(public)).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


def _derived(secret: bytes, context: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=None, info=context).derive(secret)
