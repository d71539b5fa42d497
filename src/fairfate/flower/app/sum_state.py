"""What a site remembers of secure sums, and by that refuses: it is on the disk before an answer leaves.

A site masks once for each question, round and attempt, and opens each part of that sum once. It helps to open
one round of a seed over one cohort only, in all attempts and runs, and all counts over one cohort: of two
sums over others, the difference would be a single site's answer. Neither the model nor the run's number
counts, which the server chooses. A restart changes nothing of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairfate.flower.messages import (
    ATTEMPT,
    BROADCAST,
    COHORT,
    MEMBERS,
    PART,
    QUESTION,
    ROUND,
    SHARES,
    SIGNATURES,
    SUM_PART,
)
from fairfate.flower.sealing import KeyMismatchError
from fairfate.flower.study import HISTOGRAM, SCORES, TRAIN, NotInStudyError, Study
from fairfate.privacy.fixed_point import ROWS, WEIGHTS, may_open
from fairfate.privacy.masked_sums import (
    SumError,
    Transcript,
    check_cohort,
    count_members,
    statement,
    threshold,
)

Entry = dict[str, Any]
"""Of one sum: its cohort and content, what it is of, the parts that were opened, and whether this site is a
member of those that are counted."""
SUMMED = (TRAIN, SCORES, HISTOGRAM)
"""Questions whose answers are masked."""
_COUNTS = "counts"


def sum_key(run: int, kind: str, config: Mapping[str, Any]) -> str:
    """What a site knows a sum by."""
    return f"{run}/{kind}/{config.get(ROUND, 0)}/{config.get(PART, '')}/{config[ATTEMPT]}"


def least_of(study: Study) -> int:
    """The least number of sites in a sum, and of shares that open it."""
    return threshold(len(study.sites), study.limits.min_sum)


def subject_of(kind: str, config: Mapping[str, Any]) -> str:
    """What must be opened over one cohort: a round of a seed, or all that is counted of held-out rows."""
    return f"{TRAIN}/{config.get('seed')}/{config.get(ROUND)}" if kind == TRAIN else _COUNTS


def content_checksum(config: Mapping[str, Any], models: tuple[Mapping[str, Any], ...]) -> str:
    """The checksum of the models that were sent, and of what sites are told beside them."""
    digest = hashlib.sha256(repr([config.get("strategy"), config.get(BROADCAST)]).encode())
    for layers in models:
        for name in sorted(layers):
            digest.update(np.ascontiguousarray(layers[name]).tobytes())
    return digest.hexdigest()


def begin(
    sums: dict[str, Entry],
    opened: Mapping[str, list[str]],
    key: str,
    config: Mapping[str, Any],
    content: str,
    name: str,
    study: Study,
) -> None:
    """Write down that this site masks for a sum; NotInStudyError if it has, or if the cohort is not right.

    Parameters
    ----------
    sums : that the site has masked for
    opened : over which cohort it has helped to open what
    key, config, content : of this sum
    name : the site's
    study : of the question
    """
    cohort = _texts(config, COHORT)
    strange = [other for other in cohort if other not in study.sites]
    if strange:
        raise NotInStudyError("a cohort with somebody who is not in the study")
    _whole(config, ATTEMPT, 1, study.limits.attempts)
    subject = subject_of(key.split("/")[1], config)
    try:
        check_cohort(name, cohort, least_of(study))
        _check_same(opened, subject, cohort)
    except SumError as error:
        raise NotInStudyError(str(error)) from None
    if key in sums:
        raise NotInStudyError("an attempt that this site has masked for before")
    sums[key] = {"cohort": cohort, "content": content, "subject": subject, "opened": [], "member": None}


def open_part(
    sums: dict[str, Entry],
    opened: dict[str, list[str]],
    key: str,
    config: Mapping[str, Any],
    run: int,
    study: Study,
) -> None:
    """Write down that this site opens a part of a sum; NotInStudyError unless it may, once.

    Parameters
    ----------
    sums : that the site has masked for
    opened : over which cohort it has helped to open what
    key, config : of this sum
    run, study : of the question
    """
    entry = sums.get(key)
    if entry is None:
        raise NotInStudyError("a sum that this site has not masked for")
    part, cohort = config.get(SUM_PART), entry["cohort"]
    parts = (ROWS,) if entry["member"] is None else (ROWS, WEIGHTS)
    if part not in parts:
        raise NotInStudyError("a part that the sum does not have")
    try:
        if part in entry["opened"]:
            raise SumError("a part of a sum that was opened before")
        _check_same(opened, entry["subject"], cohort)
        if len(_texts(config, SHARES)) != len(cohort):
            raise SumError("shares of others than the sum is over")
        if part == WEIGHTS:
            _check_members(config, transcript_of(entry, key, run, study), study)
    except (SumError, KeyMismatchError) as error:
        raise NotInStudyError(str(error)) from None
    opened[entry["subject"]] = cohort
    entry["opened"] = [*entry["opened"], part]


def _check_same(opened: Mapping[str, list[str]], subject: str, cohort: list[str]) -> None:
    """SumError where the same was opened over others: order counts, since masks depend on it."""
    if opened.get(subject, cohort) != cohort:
        raise SumError("a sum of the same over other sites than before")


def transcript_of(entry: Entry, key: str, run: int, study: Study) -> Transcript:
    """What all keys of a sum depend on."""
    _, kind, number, part, attempt = key.split("/")
    question = f"{kind}/{part}"
    return Transcript(
        study.checksum, run, question, int(number), int(attempt), tuple(entry["cohort"]), entry["content"]
    )


def _check_members(config: Mapping[str, Any], transcript: Transcript, study: Study) -> None:
    """SumError unless the sum over members may be opened, as the sites themselves have signed.

    The server counts members, and this site counts them again: a server that is alone cannot lie about it.
    """
    masked, signatures, cohort = _texts(config, MEMBERS), _texts(config, SIGNATURES), transcript.cohort
    if not len(masked) == len(signatures) == len(cohort):
        raise SumError("members of others than the sum is over")
    numbers: dict[str, int] = {}
    for other, number, signature in zip(cohort, masked, signatures, strict=True):
        try:
            numbers[other] = int(number, 16) % 2**64
            signed = bytes.fromhex(signature)
        except ValueError:
            raise SumError("members that cannot be read") from None
        study.sites[other].key.verify(signed, statement(transcript, numbers[other]))
    members = count_members(numbers, cohort)
    if not members or not may_open(members, len(cohort), study.limits.min_sum):
        raise SumError(f"a sum over {members} members of {len(cohort)} sites, too few to hide or to differ")


def _texts(config: Mapping[str, Any], key: str) -> list[str]:
    value = config.get(key)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise NotInStudyError(f"'{key}' that is no list of texts")
    return list(value)


def _whole(config: Mapping[str, Any], key: str, low: int, high: int) -> None:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise NotInStudyError(f"'{key}' that is not {low} to {high}")


def check_question(config: Mapping[str, Any], study: Study) -> None:
    """NotInStudyError unless a question to open a sum names one of the study's."""
    if config.get(QUESTION) not in SUMMED:
        raise NotInStudyError("a sum of no question")
    _whole(config, ROUND, 0, study.training.rounds + 1)
    _whole(config, ATTEMPT, 1, study.limits.attempts)
