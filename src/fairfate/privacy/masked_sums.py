"""Sums of several parties' numbers that open as a whole or not at all.

Each party of a cohort adds to its numbers a mask for every other party, which the other takes off, and one of
its own. Once it is clear who has sent something, the others reveal for each party either their share of its
own mask, or the key of the mask they have with it, and never both: of whoever is in the sum the own mask is
known and the pairs' are not, and of whoever dropped out it is the other way round.

Keys of pairs come from identity keys that are known beforehand, and from a transcript of what is summed:
parties that were told different things get masks that do not cancel. Nothing here knows of a network. Curves,
key derivation, ciphers and shares are those of ``cryptography`` and ``pycryptodome``.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fairfate.privacy.fixed_point import Ring, add

_SEED, _NONCE = 16, bytes(12)
"""Bytes of a secret that is shared; every key encrypts one message only."""
_MEMBERS = "members"


class SumError(ValueError):
    """A sum that cannot be opened, or must not be."""


@dataclass(frozen=True)
class Transcript:
    """What a sum is of; parties whose transcripts differ have masks that do not cancel."""

    study: str
    """The checksum of the study file."""
    run: int
    question: str
    """Its kind."""
    round: int
    attempt: int
    cohort: tuple[str, ...]
    content: str
    """The checksum of the model that was sent, and of what came with it."""

    @property
    def digest(self) -> bytes:
        """32 bytes that all keys of this sum depend on."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()


def threshold(clients: int, min_sum: int) -> int:
    """How many parties' shares reveal a mask: more than two thirds.

    Honest parties open for one set of survivors each. Two sets of them that are told of other survivors, each
    with the parties that collude with the server, are then too few, as long as fewer than a third collude.

    >>> [threshold(clients, 3) for clients in (3, 5, 10, 100)]
    [3, 4, 7, 67]
    """
    return max(min_sum, 2 * clients // 3 + 1)


class Masked(NamedTuple):
    """What a party sends."""

    parts: dict[str, Ring]
    """Its numbers under masks."""
    shares: dict[str, bytes]
    """For each party of the cohort, its shares of this party's own masks, which only that party can read."""


class Revealed(NamedTuple):
    """What a party reveals, to open one part of a sum."""

    shares: dict[str, bytes]
    """Of the own masks of those who are in the sum."""
    keys: dict[str, bytes]
    """Of its masks with those who dropped out."""


class Party:
    """One party's side of one sum.

    Parameters
    ----------
    name : its own
    agree : takes a party's name and gives the secret that the two have in common; its own name is allowed
    transcript : of the sum; no party may mask for the same one twice
    min_sum : least number of parties in a sum
    """

    def __init__(
        self, name: str, agree: Callable[[str], bytes], transcript: Transcript, min_sum: int
    ) -> None:
        check_cohort(name, transcript.cohort, min_sum)
        self.name, self.transcript, self.min_sum = name, transcript, min_sum
        self._digest = transcript.digest
        self._secrets = {other: agree(other) for other in transcript.cohort}

    @property
    def _others(self) -> list[str]:
        return [other for other in self.transcript.cohort if other != self.name]

    def mask(self, parts: Mapping[str, Ring]) -> Masked:
        """Numbers under fresh masks; each part can be opened without the others."""
        cohort = self.transcript.cohort
        least, masked = threshold(len(cohort), self.min_sum), {}
        packets: dict[str, bytes] = dict.fromkeys(cohort, b"")
        for part in sorted(parts):
            seed = secrets.token_bytes(_SEED)
            total = parts[part] + stream(own_key(seed, part), len(parts[part]))
            for other in self._others:
                pair_mask = stream(self._pair_key(other, part), len(total))
                total = total + pair_mask if _is_first(cohort, self.name, other) else total - pair_mask
            masked[part] = total
            for (_, share), recipient in zip(
                Shamir.split(least, len(cohort), seed, False), cohort, strict=True
            ):
                packets[recipient] += share
        sealed = {
            other: ChaCha20Poly1305(self._share_key(self.name, other)).encrypt(_NONCE, packets[other], None)
            for other in cohort
        }
        return Masked(masked, sealed)

    def reveal(
        self, part: str, parts: Sequence[str], survivors: Sequence[str], packets: Mapping[str, bytes]
    ) -> Revealed:
        """What opens a part of the sum over some parties; the caller remembers that it did, and for whom.

        Parameters
        ----------
        part : which
        parts : all that were masked
        survivors : who is in the sum, in the cohort's order
        packets : from each of them, the shares that it has sealed for this party
        """
        check_survivors(self.name, survivors, self.transcript.cohort, self.min_sum)
        position = sorted(parts).index(part) * _SEED
        shares = {}
        for other in survivors:
            try:
                key = self._share_key(other, self.name)
                packet = ChaCha20Poly1305(key).decrypt(_NONCE, packets[other], None)
            except (InvalidTag, KeyError, ValueError, OverflowError):
                raise SumError(f"no shares of {other} for this sum") from None
            shares[other] = packet[position : position + _SEED]
        dropped = [other for other in self._others if other not in survivors]
        return Revealed(shares, {other: self._pair_key(other, part) for other in dropped})

    def count(self, is_member: bool, survivors: Sequence[str]) -> int:
        """Whether the party is one of those that are counted, masked: the sum over all survivors opens it."""
        check_survivors(self.name, survivors, self.transcript.cohort, self.min_sum)
        total = int(is_member)
        for other in survivors:
            if other != self.name:
                about = _MEMBERS + json.dumps(list(survivors))
                number = int(stream(self._pair_key(other, about), 1)[0])
                total += number if _is_first(self.transcript.cohort, self.name, other) else -number
        return total % 2**64

    def _pair_key(self, other: str, part: str) -> bytes:
        pair = json.dumps(sorted([self.name, other]))
        return _derive(self._secrets[other], f"fairfate pair 1 {pair} {part}".encode(), self._digest)

    def _share_key(self, sender: str, recipient: str) -> bytes:
        other = sender if recipient == self.name else recipient
        way = json.dumps([sender, recipient])
        return _derive(self._secrets[other], f"fairfate share 1 {way}".encode(), self._digest)


def statement(transcript: Transcript, survivors: Sequence[str], masked: int) -> bytes:
    """What a party signs of its masked membership, for the others to check the count themselves."""
    about = hashlib.sha256(json.dumps(list(survivors)).encode()).digest()
    return b"fairfate members 1\0" + transcript.digest + about + masked.to_bytes(8, "big")


def count_members(masked: Mapping[str, int], survivors: Sequence[str]) -> int:
    """How many parties are members; SumError unless all survivors' masked numbers are there."""
    if set(masked) != set(survivors):
        raise SumError("the members of the sum cannot be counted: somebody has not answered")
    members = sum(masked.values()) % 2**64
    if members > len(survivors):
        raise SumError("the members of the sum cannot be counted: somebody has masked something else")
    return members


def open_part(
    part: str,
    masked: Mapping[str, Ring],
    revealed: Mapping[str, Revealed],
    cohort: Sequence[str],
    min_sum: int,
) -> Ring:
    """The sum of the parties' numbers modulo 2**64; SumError if too little was revealed.

    Parameters
    ----------
    part : which
    masked : the numbers of those who are in the sum
    revealed : by those who have answered
    cohort : everybody, in order
    min_sum : least number of parties in a sum
    """
    survivors = [name for name in cohort if name in masked]
    dropped = [name for name in cohort if name not in masked]
    least = threshold(len(cohort), min_sum)
    answered = [name for name in survivors if name in revealed]
    if len(answered) < least:
        raise SumError(f"{len(answered)} parties have revealed shares, and {least} must")
    if dropped and len(answered) < len(survivors):
        lost = [name for name in survivors if name not in revealed]
        raise SumError(f"the masks between {lost[0]} and {dropped[0]}, who both dropped out, stay")
    total: Ring = add([masked[name] for name in survivors])
    size = len(total)
    for name in survivors:
        shares = [(cohort.index(other) + 1, revealed[other].shares[name]) for other in answered[:least]]
        total -= stream(own_key(Shamir.combine(shares, False), part), size)
        for other in dropped:
            pair_mask = stream(revealed[name].keys[other], size)
            total = total - pair_mask if _is_first(cohort, name, other) else total + pair_mask
    return total


def check_cohort(name: str, cohort: Sequence[str], min_sum: int) -> None:
    """SumError unless a party may mask for this cohort."""
    if name not in cohort or len(set(cohort)) != len(cohort):
        raise SumError("a cohort without this party, or with one twice")
    if len(cohort) < min_sum:
        raise SumError(f"a cohort of {len(cohort)}, fewer than {min_sum} (min-sum)")


def check_survivors(name: str, survivors: Sequence[str], cohort: Sequence[str], min_sum: int) -> None:
    """SumError unless a party may help to open a sum over these."""
    if list(survivors) != [other for other in cohort if other in survivors] or name not in survivors:
        raise SumError("a sum without this party, or over others than its cohort")
    if len(survivors) < min_sum:
        raise SumError(f"a sum over {len(survivors)}, fewer than {min_sum} (min-sum)")


def own_key(seed: bytes, part: str) -> bytes:
    """The key of a party's own mask, from the secret that was shared."""
    return _derive(seed, f"fairfate own mask 1 {part}".encode(), b"")


def stream(key: bytes, size: int) -> Ring:
    """So many numbers of a mask."""
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), dtype="<u8").astype(np.uint64)


def _is_first(cohort: Sequence[str], name: str, other: str) -> bool:
    return cohort.index(name) < cohort.index(other)


def _derive(secret: bytes, info: bytes, digest: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info + b"\0" + digest).derive(secret)
