"""Sealed messages, and the keys of the server and the sites by which they are signed and sealed.

A message is signed by its sender, readable to its recipients only, and bound to a run, node and question.
Flower carries it and can neither read nor change it. What its own records hold is packed into bytes, so that
nothing that others have written is parsed before its signature has been found right.

A party's private key is one file, which never leaves its machine; its public key goes into the study file.
Keys sign by Ed25519, and seal by HPKE (RFC 9180: X25519, HKDF-SHA256, ChaCha20-Poly1305). These keys are not
those of certificates or SuperNodes: neither Flower's server nor another site has a key of a message.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, hpke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

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

    def agree(self, other: PublicKey) -> bytes:
        """The secret that the two parties have in common; masks of secure sums are made from it."""
        try:
            return self._seal.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other.seal)))
        except ValueError:
            raise KeyMismatchError("a key that nothing can be agreed with") from None

    def unwrap(self, wrapped: bytes, info: bytes) -> bytes:
        """The content key that was wrapped for us; KeyMismatchError if it was not, or for other words."""
        try:
            return bytes(_SUITE.decrypt(wrapped, self._seal, info=info))
        except (InvalidTag, ValueError):
            raise KeyMismatchError("a message that is sealed for another recipient") from None


def encrypt(content: bytes) -> tuple[bytes, bytes]:
    """A new content key, and the content that is encrypted by it."""
    key = ChaCha20Poly1305.generate_key()
    return key, ChaCha20Poly1305(key).encrypt(_NONCE, content, None)


def decrypt(key: bytes, sealed: bytes) -> bytes:
    """The inverse of `encrypt`; KeyMismatchError if it was changed on the way."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except (InvalidTag, ValueError, OverflowError):
        raise KeyMismatchError("a message that was changed in transit") from None


def _derive(seed: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=purpose).derive(seed)


SEALED, MESSAGE = "sealed", "message"
"""The record of a sealed message, and the array in it."""
_STYPE, _SIGNED = "fairfate.sealed", b"fairfate message 1\0"
_LENGTH, _SIGNATURE, _LONGEST_HEAD = 4, 64, 4 << 20
_TYPES = {
    f"{order}{kind}" for order in "<|" for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1")
}
_MOST = 2000
"""Records, values and arrays of a message."""
_KINDS = {"config": ConfigRecord, "metrics": MetricRecord, "arrays": ArrayRecord}


class EnvelopeError(ValueError):
    """A message that is not what it should be; nothing of it was used."""


@dataclass(frozen=True)
class Head:
    """What a message says of itself; anybody can read it, and only the sender can have written it."""

    study: str
    """The checksum of the study file."""
    sender: str
    recipients: tuple[str, ...]
    run: int
    node: int
    """Flower's number of the node that is asked, in the answer too."""
    type: str
    """Flower's type of the message."""
    counter: int
    """Grows with every question; the answer has that of the question."""
    request: str = ""
    """In an answer, the checksum of the question."""


def seal(head: Head, content: RecordDict, key: PrivateKey, recipients: Mapping[str, PublicKey]) -> bytes:
    """A message as bytes."""
    about = _json(asdict(head))
    info = hashlib.sha256(about).digest()
    content_key, body = encrypt(pack(content))
    wrapped = _json({name: recipients[name].wrap(content_key, info).hex() for name in head.recipients})
    signature = key.sign(_signed(about, wrapped, body))
    return b"".join([_sized(about), _sized(wrapped), signature, body])


@dataclass(frozen=True)
class Envelope:
    """A message as it came: its head is a claim until `verify` has been called."""

    head: Head
    checksum: str
    _about: bytes
    _wrapped: bytes
    _signature: bytes
    _body: bytes

    @classmethod
    def read(cls, message: bytes) -> Envelope:
        """EnvelopeError unless the bytes are of the right form."""
        try:
            about, rest = _take(message)
            wrapped, rest = _take(rest)
            values = _loads(about)
            head = Head(**{**values, "recipients": tuple(values["recipients"])})
            types = {"study": str, "sender": str, "run": int, "node": int, "type": str, "counter": int}
            right = all(type(getattr(head, name)) is kind for name, kind in types.items())
            if not right or not isinstance(head.request, str) or len(rest) < _SIGNATURE:
                raise ValueError("values of other types")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise EnvelopeError(f"no sealed message ({type(error).__name__})") from None
        checksum = hashlib.sha256(message).hexdigest()
        return cls(head, checksum, about, wrapped, rest[:_SIGNATURE], rest[_SIGNATURE:])

    def verify(self, sender: PublicKey) -> None:
        """EnvelopeError unless it was signed by the sender."""
        try:
            sender.verify(self._signature, _signed(self._about, self._wrapped, self._body))
        except KeyMismatchError as error:
            raise EnvelopeError(str(error)) from None

    def open(self, name: str, key: PrivateKey) -> RecordDict:
        """The content, for the recipient of this name; call `verify` first."""
        try:
            wrapped = bytes.fromhex(json.loads(self._wrapped)[name])
            content_key = key.unwrap(wrapped, hashlib.sha256(self._about).digest())
            return unpack(decrypt(content_key, self._body))
        except KeyMismatchError as error:
            raise EnvelopeError(str(error)) from None
        except Exception as error:  # whatever a member of the study has sealed
            raise EnvelopeError(f"unreadable content ({type(error).__name__})") from None


def to_records(message: bytes) -> RecordDict:
    """A sealed message as what Flower carries."""
    array = Array(dtype="uint8", shape=(len(message),), stype=_STYPE, data=message)
    return RecordDict({SEALED: ArrayRecord({MESSAGE: array})})


def from_records(content: RecordDict, largest: int) -> bytes:
    """The inverse; EnvelopeError for anything else, or more than ``largest`` bytes."""
    record = content.get(SEALED)
    array = record.get(MESSAGE) if isinstance(record, ArrayRecord) and len(content) == 1 else None
    if array is None or array.stype != _STYPE:
        raise EnvelopeError("no sealed message")
    if len(array.data) > largest:
        raise EnvelopeError(f"{len(array.data)} bytes, more than {largest}")
    return bytes(array.data)


def pack(content: RecordDict) -> bytes:
    """Records as bytes: their names and values as JSON, then the arrays' numbers."""
    about: dict[str, Any] = {}
    numbers: list[bytes] = []
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            items = []
            for key, array in record.items():
                values = np.ascontiguousarray(array.numpy())
                items.append([key, values.dtype.str, list(array.shape), values.nbytes])
                numbers.append(values.tobytes())
            about[name] = ["arrays", items]
        else:
            kind = "config" if isinstance(record, ConfigRecord) else "metrics"
            about[name] = [kind, dict(record)]
    return _sized(_json(about)) + b"".join(numbers)


def unpack(packed: bytes) -> RecordDict:
    """The inverse of `pack`; ValueError, LookupError or TypeError for other bytes."""
    about, rest = _take(packed)
    content, start, records = RecordDict(), 0, _loads(about)
    if len(records) > _MOST or sum(len(items) for _, items in records.values()) > _MOST:
        raise ValueError("too many parts")
    for name, (kind, items) in records.items():
        if kind != "arrays":
            content[name] = _KINDS[kind](items)
            continue
        arrays: dict[str, Array] = {}
        for key, dtype, shape, size in items:
            if dtype not in _TYPES or start + size > len(rest) or size < 0:
                raise ValueError("an array of other numbers than it says")
            values = np.frombuffer(rest, np.dtype(dtype), size // np.dtype(dtype).itemsize, start)
            arrays[str(key)] = Array(values.reshape(shape))
            start += size
        content[name] = ArrayRecord(arrays)
    if start != len(rest):
        raise ValueError("more bytes than its arrays have")
    return content


def _loads(text: bytes) -> Any:
    """JSON whose whole numbers fit into 64 bits."""

    def whole(digits: str) -> int:
        if len(digits) > 20:
            raise ValueError("a whole number of too many digits")
        return int(digits)

    return json.loads(text, parse_int=whole)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=False, separators=(",", ":"), ensure_ascii=True).encode()


def _sized(part: bytes) -> bytes:
    return len(part).to_bytes(_LENGTH, "big") + part


def _take(message: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(message[:_LENGTH], "big")
    if len(message) < _LENGTH + size or size > _LONGEST_HEAD:
        raise ValueError("too short")
    return message[_LENGTH : _LENGTH + size], message[_LENGTH + size :]


def _signed(about: bytes, wrapped: bytes, body: bytes) -> bytes:
    """What is signed: each part with its length, so that none can be taken for another."""
    return _SIGNED + _sized(about) + _sized(wrapped) + hashlib.sha256(body).digest()
