"""Sums of several parties' numbers that open over the whole cohort or not at all.

Each party of a cohort adds to its numbers a mask for every other party, which the other takes off, and one of
its own, of which every party gets a Shamir share. Masks of pairs are never revealed: they cancel in the sum
over the whole cohort only. Who drops out before it has sent its numbers is left out by another attempt, with
a smaller cohort and fresh masks. Once all numbers of an attempt are there, parties reveal their shares of its
own masks, and that opens the sum.

Of one thing there are then several masked sums, over other cohorts, and their differences would be single
parties' numbers. So an honest party reveals shares for *one cohort* of each thing, in whatever attempt. Let
the study have N sites, let an own mask need ``t = max(min_sum, 2N // 3 + 1)`` shares (`threshold`), and let
at most ``c = min(2t - N - 1, t - 2)`` sites collude with the server (`most_colluding`; a third of the sites,
rounded down, is never more). Then

- the server opens sums over at most one cohort: for each of two it would need t - c honest sites that reveal
  shares, other ones for each, and there are N - c honest sites, fewer than 2 (t - c);
- that cohort has t sites or more, t - c >= 2 of them honest, and of their numbers the server learns the sum.

Keys of pairs come from identity keys that are known beforehand, and from a transcript of what is summed:
parties that were told different things get masks that do not cancel, and shares that they cannot read.
Nothing here knows of a network. Curves, key derivation, ciphers and shares are those of ``cryptography`` and
``pycryptodome``.
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


def threshold(sites: int, min_sum: int) -> int:
    """How many sites' shares reveal a mask, and the least number of sites in a sum: more than two thirds.

    Parameters
    ----------
    sites : of the study, whether or not they are in the cohort
    min_sum : least number of sites in a sum

    >>> [threshold(sites, 3) for sites in (3, 5, 10, 100)]
    [3, 4, 7, 67]
    """
    return max(min_sum, 2 * sites // 3 + 1)


def most_colluding(sites: int, min_sum: int) -> int:
    """How many sites may collude with the server before it can open sums over two cohorts, or of one site.

    >>> [most_colluding(sites, 3) for sites in (3, 5, 10, 100)]
    [1, 2, 3, 33]
    """
    least = threshold(sites, min_sum)
    return min(2 * least - sites - 1, least - 2)


class Masked(NamedTuple):
    """What a party sends."""

    parts: dict[str, Ring]
    """Its numbers under masks."""
    shares: dict[str, bytes]
    """For each party of the cohort, its shares of this party's own masks, which only that party can read."""


class Party:
    """One party's side of one sum.

    Parameters
    ----------
    name : its own
    agree : takes a party's name and gives the secret that the two have in common; its own name is allowed
    transcript : of the sum; no party may mask for the same one twice
    least : number of parties in a sum, and of shares that reveal a mask (`threshold`)
    """

    def __init__(self, name: str, agree: Callable[[str], bytes], transcript: Transcript, least: int) -> None:
        check_cohort(name, transcript.cohort, least)
        self.name, self.transcript, self.least = name, transcript, least
        self._digest = transcript.digest
        self._secrets = {other: agree(other) for other in transcript.cohort}

    @property
    def _others(self) -> list[str]:
        return [other for other in self.transcript.cohort if other != self.name]

    def mask(self, parts: Mapping[str, Ring]) -> Masked:
        """Numbers under fresh masks; each part can be opened without the others."""
        cohort = self.transcript.cohort
        masked = {}
        packets: dict[str, bytes] = dict.fromkeys(cohort, b"")
        for part in sorted(parts):
            seed = secrets.token_bytes(_SEED)
            total = parts[part] + stream(own_key(seed, part), len(parts[part]))
            for other in self._others:
                pair_mask = stream(self._pair_key(other, part), len(total))
                if _is_first(cohort, self.name, other):
                    total += pair_mask
                else:
                    total -= pair_mask
            masked[part] = total
            for (_, share), recipient in zip(
                Shamir.split(self.least, len(cohort), seed, False), cohort, strict=True
            ):
                packets[recipient] += share
        sealed = {
            other: ChaCha20Poly1305(self._share_key(self.name, other)).encrypt(_NONCE, packets[other], None)
            for other in cohort
        }
        return Masked(masked, sealed)

    def reveal(self, part: str, parts: Sequence[str], packets: Mapping[str, bytes]) -> dict[str, bytes]:
        """Its shares of everybody's own masks, which open a part of the sum over the whole cohort.

        The caller remembers that it has revealed them for this cohort, and reveals none for another.

        Parameters
        ----------
        part : which
        parts : all that were masked
        packets : from each party of the cohort, the shares that it has sealed for this one
        """
        position = sorted(parts).index(part) * _SEED
        shares = {}
        for other in self.transcript.cohort:
            try:
                key = self._share_key(other, self.name)
                packet = ChaCha20Poly1305(key).decrypt(_NONCE, packets[other], None)
            except (InvalidTag, KeyError, ValueError, OverflowError):
                raise SumError(f"no shares of {other} for this sum") from None
            shares[other] = packet[position : position + _SEED]
        return shares

    def count(self, is_member: bool) -> int:
        """Whether the party is one of those that are counted, masked: the sum over the cohort opens it."""
        total = int(is_member)
        for other in self._others:
            number = int(stream(self._pair_key(other, _MEMBERS), 1)[0])
            total += number if _is_first(self.transcript.cohort, self.name, other) else -number
        return total % 2**64

    def _pair_key(self, other: str, part: str) -> bytes:
        pair = json.dumps(sorted([self.name, other]))
        return _derive(self._secrets[other], f"fairfate pair 1 {pair} {part}".encode(), self._digest)

    def _share_key(self, sender: str, recipient: str) -> bytes:
        other = sender if recipient == self.name else recipient
        way = json.dumps([sender, recipient])
        return _derive(self._secrets[other], f"fairfate share 1 {way}".encode(), self._digest)


def statement(transcript: Transcript, masked: int) -> bytes:
    """What a party signs of its masked membership, for the others to check the count themselves."""
    return b"fairfate members 2\0" + transcript.digest + masked.to_bytes(8, "big")


def count_members(masked: Mapping[str, int], cohort: Sequence[str]) -> int:
    """How many parties are members; SumError unless everybody's masked number is there."""
    if set(masked) != set(cohort):
        raise SumError("the members of the sum cannot be counted: somebody has not answered")
    members = sum(masked.values()) % 2**64
    if members > len(cohort):
        raise SumError("the members of the sum cannot be counted: somebody has masked something else")
    return members


def open_part(
    part: str,
    masked: Mapping[str, Ring],
    revealed: Mapping[str, Mapping[str, bytes]],
    cohort: Sequence[str],
    least: int,
) -> Ring:
    """The sum of the parties' numbers modulo 2**64; SumError if too little was revealed.

    Parameters
    ----------
    part : which
    masked : everybody's numbers
    revealed : the shares of those who have answered
    cohort : everybody, in order
    least : number of shares that reveal a mask
    """
    missing = [name for name in cohort if name not in masked]
    if missing:
        raise SumError(f"the sum has no numbers of {missing[0]}, and opens over the whole cohort only")
    answered = [name for name in cohort if name in revealed]
    if len(answered) < least:
        raise SumError(f"{len(answered)} parties have revealed shares, and {least} must")
    total: Ring = add([masked[name] for name in cohort])
    for name in cohort:
        shares = [(cohort.index(other) + 1, revealed[other][name]) for other in answered[:least]]
        total -= stream(own_key(Shamir.combine(shares, False), part), len(total))
    return total


def check_cohort(name: str, cohort: Sequence[str], least: int) -> None:
    """SumError unless a party may mask for this cohort."""
    if name not in cohort or len(set(cohort)) != len(cohort):
        raise SumError("a cohort without this party, or with one twice")
    if len(cohort) < least:
        raise SumError(
            f"a cohort of {len(cohort)}, fewer than {least} (min-sum, and two thirds of the sites)"
        )


def own_key(seed: bytes, part: str) -> bytes:
    """The key of a party's own mask, from the secret that was shared."""
    return _derive(seed, f"fairfate own mask 1 {part}".encode(), b"")


def stream(key: bytes, size: int) -> Ring:
    """So many numbers of a mask."""
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), dtype="<u8").astype(np.uint64, copy=False)


def _is_first(cohort: Sequence[str], name: str, other: str) -> bool:
    return cohort.index(name) < cohort.index(other)


def _derive(secret: bytes, info: bytes, digest: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info + b"\0" + digest).derive(secret)
