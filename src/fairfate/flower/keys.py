"""Keys of the server and the sites, by which their messages are signed and sealed.

A party's private key is one file, which never leaves its machine; its public key goes into the study file.
Keys sign by Ed25519, and seal by HPKE (RFC 9180: X25519, HKDF-SHA256, ChaCha20-Poly1305). These keys are not
those of certificates or SuperNodes: neither Flower's server nor another site has a key of a message.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, hpke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fairfate.errors import InputError

_PREFIX = "fairfate-private-key-1 "
_SUITE = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
_NONCE = bytes(12)
"""Every content key encrypts one message only."""


class KeyMismatchError(ValueError):
    """A signature or a sealed text that is not from, or for, the key."""


@dataclass(frozen=True)
class PublicKey:
    """What others know of a party: by what they check its signatures, and seal messages for it."""

    sign: str
    """64 hexadecimal digits, as is the next."""
    seal: str

    def verify(self, signature: bytes, content: bytes) -> None:
        """KeyMismatchError unless the party has signed the content."""
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.sign)).verify(signature, content)
        except (InvalidSignature, ValueError):
            raise KeyMismatchError("a signature that is not the sender's") from None

    def wrap(self, content_key: bytes, info: bytes) -> bytes:
        """A content key that only this party can read, bound to what the message says of itself."""
        public: Any = X25519PublicKey.from_public_bytes(bytes.fromhex(self.seal))
        return bytes(_SUITE.encrypt(content_key, public, info=info))

    @property
    def sealing_point(self) -> str:
        """The key to seal with, without its highest bit, which X25519 ignores: two texts can be one key."""
        value = bytearray.fromhex(self.seal)
        value[-1] &= 0x7F
        return value.hex()

    @property
    def fingerprint(self) -> str:
        """The first digits of the signing key, for logs."""
        return self.sign[:16]


class PrivateKey:
    """A party's own key."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._sign = Ed25519PrivateKey.from_private_bytes(_derive(seed, b"fairfate sign"))
        self._seal = X25519PrivateKey.from_private_bytes(_derive(seed, b"fairfate seal"))

    @classmethod
    def create(cls) -> PrivateKey:
        """A new key, from the system's secure source."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def read(cls, path: str | Path) -> PrivateKey:
        """From a file that only its owner can read."""
        file = Path(path).expanduser()
        try:
            mode, text = file.stat().st_mode, file.read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "no key"
            raise InputError(
                f"key must be a file that fairfate flower key has written, got '{file}' ({reason})"
            ) from None
        if mode & 0o077:
            raise InputError(f"key must be readable to its owner only, got '{file}' (chmod 600)")
        digits = text.strip().removeprefix(_PREFIX)
        if not text.startswith(_PREFIX) or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
            raise InputError(f"key must be a file that fairfate flower key has written, got '{file}'")
        return cls(bytes.fromhex(digits))

    def write(self, path: Path) -> None:
        """Into a new file that only its owner can read; an existing one is never replaced."""
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(f"key must be a new file, got '{path}', which exists") from None
        except OSError as error:
            raise InputError(f"key must be a file that can be written, got '{path}' ({error})") from None
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{_PREFIX}{self._seed.hex()}\n")

    @property
    def public(self) -> PublicKey:
        """What others may know."""
        keys = (self._sign.public_key(), self._seal.public_key())
        return PublicKey(*(key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex() for key in keys))

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes."""
        return self._sign.sign(content)

    def unwrap(self, wrapped: bytes, info: bytes) -> bytes:
        """The content key that was wrapped for us; KeyMismatchError if it was not, or for other words."""
        try:
            return bytes(_SUITE.decrypt(wrapped, self._seal, info=info))
        except (InvalidTag, ValueError):
            raise KeyMismatchError("a message that is sealed for somebody else") from None


def encrypt(content: bytes) -> tuple[bytes, bytes]:
    """A new content key, and the content that is encrypted by it."""
    key = ChaCha20Poly1305.generate_key()
    return key, ChaCha20Poly1305(key).encrypt(_NONCE, content, None)


def decrypt(key: bytes, sealed: bytes) -> bytes:
    """The inverse of `encrypt`; KeyMismatchError if it was changed on the way."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except (InvalidTag, ValueError, OverflowError):
        raise KeyMismatchError("a message that was changed on the way") from None


def _derive(seed: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=purpose).derive(seed)
