"""A server with its full view and the keys of two of five sites, against the sum of the other three.

Each attack fails under the rules, and succeeds where the rule that stops it is left out.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from cryptography.exceptions import InvalidTag

from fairfate.flower.app import sum_state
from fairfate.flower.messages import ATTEMPT, COHORT, MEMBERS, ROUND, SHARES, SIGNATURES, SUM_PART, SURVIVORS
from fairfate.flower.sealing import PrivateKey, PublicKey
from fairfate.flower.study import NotInStudyError
from fairfate.privacy import masked_sums
from fairfate.privacy.fixed_point import ROWS, WEIGHTS, Ring, add
from fairfate.privacy.masked_sums import Masked, Party, Revealed, Transcript, open_part, statement

NAMES = ("ada", "ben", "cleo", "xavier", "yves")
HONEST, CORRUPT = NAMES[:3], NAMES[3:]
KEYS = {name: PrivateKey.create() for name in NAMES}
ANSWERS = {name: np.arange(6, dtype=np.uint64) * np.uint64(1000 + k) for k, name in enumerate(NAMES)}
NOTHING = dict.fromkeys(NAMES, False)


class Site:
    """An honest site: the protocol behind the rules that a site's gate keeps in its state."""

    def __init__(self, name: str, min_sum: int, directory: dict[str, PublicKey] | None = None) -> None:
        self.name, self.sums, self.opened, self.rules = name, {}, {}, True
        pinned = {other: key.public for other, key in KEYS.items()}
        self.keys = directory or pinned
        self.study: Any = SimpleNamespace(
            sites={other: SimpleNamespace(key=key) for other, key in pinned.items()},
            limits=SimpleNamespace(min_sum=min_sum, attempts=3),
            checksum="study",
        )

    def party(self, entry: dict[str, Any]) -> Party:
        transcript = sum_state.transcript_of(entry, "1/train/1//1", 1, self.study)
        least = self.study.limits.min_sum
        return Party(self.name, lambda other: KEYS[self.name].agree(self.keys[other]), transcript, least)

    def train(
        self, answers: dict[str, Ring], content: str = "model", *, member: bool | None = None
    ) -> Masked:
        config = {COHORT: list(NAMES), ATTEMPT: 1, ROUND: 1}
        if not self.rules:
            self.sums.pop("1/train/1//1", None)
        sum_state.begin(self.sums, "1/train/1//1", config, content, self.name, self.study)
        self.sums["1/train/1//1"]["member"] = member
        return self.party(self.sums["1/train/1//1"]).mask(answers)

    def reveal(
        self, survivors: list[str], packets: dict[str, bytes], part: str = ROWS, **about: Any
    ) -> Revealed:
        config = {SUM_PART: part, SURVIVORS: survivors, SHARES: [""] * len(survivors), **about}
        entry = self.sums["1/train/1//1"]
        if self.rules:
            sum_state.open_part(self.sums, self.opened, "1/train/1//1", config, self.name, 1, self.study)
        parts = [ROWS] if entry["member"] is None else [ROWS, WEIGHTS]
        return self.party(entry).reveal(part, parts, survivors, packets)

    def count(self, survivors: list[str]) -> tuple[int, bytes]:
        party = self.party(self.sums["1/train/1//1"])
        number = party.count(bool(self.sums["1/train/1//1"]["member"]), survivors)
        return number, KEYS[self.name].sign(statement(party.transcript, survivors, number))


class Attack:
    """All that the server sees, with the corrupt sites' keys."""

    def __init__(self, min_sum: int = 4, directory: dict[str, PublicKey] | None = None, **train: Any) -> None:
        self.sites = {name: Site(name, min_sum, directory) for name in NAMES}
        self.masked = {name: self.sites[name].train({ROWS: ANSWERS[name]}, **train) for name in NAMES}
        self.revealed: dict[tuple[str, str], Revealed] = {}
        self.keys: dict[tuple[str, str], bytes] = {}
        self.shares: dict[tuple[str, str], bytes] = {}
        for name in CORRUPT:
            party = self.sites[name].party(self.sites[name].sums["1/train/1//1"])
            for other in NAMES:
                if other != name:
                    self.keys[name, other] = self.keys[other, name] = party._pair_key(other, ROWS)
                packet = self.masked[other].shares[name]
                everybody = {each: self.masked[each].shares[name] for each in NAMES}
                assert packet
                self.shares[name, other] = party.reveal(ROWS, [ROWS], list(NAMES), everybody).shares[other]

    def ask(self, name: str, survivors: list[str]) -> bool:
        """Ask an honest site to open a sum; whether it has answered."""
        packets = {other: self.masked[other].shares[name] for other in survivors}
        try:
            answer = self.sites[name].reveal(survivors, packets)
        except (NotInStudyError, masked_sums.SumError):
            return False
        self.shares |= {(name, other): share for other, share in answer.shares.items()}
        for other, key in answer.keys.items():
            self.keys[name, other] = self.keys[other, name] = key
        return True

    def succeeds(self, target: str = "ada") -> bool:
        """Whether the target's answer can be computed from everything that is known."""
        least = masked_sums.threshold(len(NAMES), self.sites[target].study.limits.min_sum)
        shares = [(k + 1, self.shares[n, target]) for k, n in enumerate(NAMES) if (n, target) in self.shares]
        others = [other for other in NAMES if other != target]
        if len(shares) < least or any((target, other) not in self.keys for other in others):
            return False
        seed = masked_sums.Shamir.combine(shares[:least], False)
        total = self.masked[target].parts[ROWS] - masked_sums.stream(masked_sums.own_key(seed, ROWS), 6)
        for other in others:
            pair_mask = masked_sums.stream(self.keys[target, other], 6)
            total = total - pair_mask if NAMES.index(target) < NAMES.index(other) else total + pair_mask
        return np.array_equal(total, ANSWERS[target])


def test_an_honest_round_opens_the_sum_and_nothing_else() -> None:
    attack = Attack()
    assert all(attack.ask(name, list(NAMES)) for name in HONEST)
    packets = {n: {other: attack.masked[other].shares[n] for other in NAMES} for n in NAMES}
    revealed = {n: attack.sites[n].party(attack.sites[n].sums["1/train/1//1"]) for n in NAMES}
    answers = {n: party.reveal(ROWS, [ROWS], list(NAMES), packets[n]) for n, party in revealed.items()}
    masked = {n: each.parts[ROWS] for n, each in attack.masked.items()}
    assert np.array_equal(open_part(ROWS, masked, answers, NAMES, 4), add(list(ANSWERS.values())))
    assert not any(attack.succeeds(name) for name in HONEST)


@pytest.mark.parametrize("has_rule", [True, False])
def test_a_server_that_asks_twice(has_rule: bool) -> None:
    """Once for shares of everybody's mask, then for the keys of one who is said to have dropped out."""
    attack = Attack()
    for site in attack.sites.values():
        site.rules = has_rule
    assert all(attack.ask(name, list(NAMES)) for name in HONEST)
    without = [name for name in NAMES if name != "ada"]
    answered = [attack.ask(name, without) for name in ("ben", "cleo")]
    assert answered == [not has_rule] * 2
    assert attack.succeeds() != has_rule


@pytest.mark.parametrize(
    ("min_sum", "least", "is_answered", "succeeds"),
    [(4, None, False, False), (3, None, True, False), (3, 3, True, True)],
)
def test_a_server_that_drops_clients_on_purpose(
    min_sum: int, least: int | None, is_answered: bool, succeeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum over one honest site and two corrupt ones is the honest one's answer.

    Min-sum stops it, and so do shares of which more than two thirds are needed.
    """
    if least is not None:
        monkeypatch.setattr(masked_sums, "threshold", lambda clients, min_sum: least)
    attack = Attack(min_sum)
    assert attack.ask("ada", ["ada", *CORRUPT]) == is_answered
    assert attack.succeeds() == succeeds


@pytest.mark.parametrize("has_rule", [True, False])
def test_a_server_that_says_of_a_site_to_some_that_it_is_in_and_to_others_that_it_is_not(
    has_rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_rule:  # shares of the corrupt sites are enough
        monkeypatch.setattr(masked_sums, "threshold", lambda clients, min_sum: 2)
    for told_dropped in (["ben"], ["cleo"], ["ben", "cleo"]):
        attack = Attack()
        without = [name for name in NAMES if name != "ada"]
        for name in HONEST:
            assert attack.ask(name, without if name in told_dropped else list(NAMES))
        assert attack.succeeds() == (not has_rule and len(told_dropped) == 2)


@pytest.mark.parametrize("has_rule", [True, False])
def test_a_server_that_replays_a_question_after_a_restart(has_rule: bool) -> None:
    """Two answers under the same masks of pairs: one is opened by shares, the other by keys."""
    attack = Attack()
    for site in attack.sites.values():
        site.rules = has_rule
    assert all(attack.ask(name, list(NAMES)) for name in HONEST)
    without = [name for name in NAMES if name != "ada"]
    for name in ("ben", "cleo"):
        if has_rule:
            with pytest.raises(NotInStudyError, match="masked for before"):
                attack.sites[name].train({ROWS: ANSWERS[name]})
        else:
            attack.masked[name] = attack.sites[name].train({ROWS: ANSWERS[name]})
        attack.ask(name, without)
    assert attack.succeeds() != has_rule


@pytest.mark.parametrize("has_rule", [True, False])
def test_a_server_that_swaps_keys(has_rule: bool) -> None:
    """Sites that take the others' keys from the server make masks with it."""
    own = PrivateKey.create()
    directory = None if has_rule else dict.fromkeys(NAMES, own.public)
    sites = {name: Site(name, 4, directory) for name in NAMES}
    masked = sites["ada"].train({ROWS: ANSWERS["ada"]})
    transcript = sum_state.transcript_of(
        sites["ada"].sums["1/train/1//1"], "1/train/1//1", 1, sites["ada"].study
    )
    total, seeds = masked.parts[ROWS], []
    for number, name in enumerate(NAMES):
        known = Party(name, lambda other: own.agree(KEYS["ada"].public), transcript, 4)
        try:
            key = known._share_key("ada", name) if name != "ada" else known._share_key("ada", "ada")
            packet = masked_sums.ChaCha20Poly1305(key).decrypt(bytes(12), masked.shares[name], None)
        except InvalidTag:
            assert has_rule
            return
        seeds.append((number + 1, packet))
        if name != "ada":
            total = total - masked_sums.stream(known._pair_key("ada", ROWS), 6)
    total = total - masked_sums.stream(
        masked_sums.own_key(masked_sums.Shamir.combine(seeds[:4], False), ROWS), 6
    )
    assert not has_rule
    assert np.array_equal(total, ANSWERS["ada"])


@pytest.mark.parametrize("has_rule", [True, False])
def test_a_server_that_sends_different_models_to_different_sites(has_rule: bool) -> None:
    """A model that cannot learn leaves the others' updates at 0, and the sum would be the target's."""
    sites = {name: Site(name, 4) for name in NAMES}
    zero = np.zeros(6, dtype=np.uint64)
    masked = {
        name: site.train(
            {ROWS: ANSWERS[name] if name == "ada" else zero},
            "one" if name == "ada" and has_rule else "another",  # the checksum of what it was sent
        )
        for name, site in sites.items()
    }
    packets = {n: {other: masked[other].shares[n] for other in NAMES} for n in NAMES}
    try:
        revealed = {n: sites[n].reveal(list(NAMES), packets[n]) for n in NAMES}
    except masked_sums.SumError:  # shares are sealed under the transcript, too
        assert has_rule
        return
    total = open_part(ROWS, {n: each.parts[ROWS] for n, each in masked.items()}, revealed, NAMES, 4)
    assert not has_rule
    assert np.array_equal(total, ANSWERS["ada"])


@pytest.mark.parametrize("has_rule", [True, False])
def test_server_that_lies_about_the_number_of_fair_clients_is_noticed(has_rule: bool) -> None:
    """Each site counts again what the others have signed, before it opens a sum over one member only."""
    sites = {name: Site(name, 4) for name in NAMES}
    by_weight = {name: ANSWERS[name] if name == "ada" else ANSWERS[name] * np.uint64(0) for name in NAMES}
    masked = {
        name: site.train({ROWS: ANSWERS[name], WEIGHTS: by_weight[name]}, member=name == "ada")
        for name, site in sites.items()
    }
    everybody = list(NAMES)
    packets = {n: {other: masked[other].shares[n] for other in NAMES} for n in NAMES}
    counted = {}
    for name, site in sites.items():
        site.reveal(everybody, packets[name])
        counted[name] = site.count(everybody)
    lies = {**{n: number for n, (number, _) in counted.items()}}
    lies["ben"] = (lies["ben"] + 4) % 2**64  # as if all five were
    about = {
        MEMBERS: [f"{lies[n]:016x}" for n in NAMES],
        SIGNATURES: [counted[n][1].hex() for n in NAMES],
    }
    honest = {**about, MEMBERS: [f"{counted[n][0]:016x}" for n in NAMES]}
    assert masked_sums.count_members({n: number for n, (number, _) in counted.items()}, NAMES) == 1
    if has_rule:
        for claim, reason in ((about, "signature"), (honest, "1 members of 5 sites")):
            with pytest.raises(NotInStudyError, match=reason):
                sites["ben"].reveal(everybody, packets["ben"], WEIGHTS, **claim)
        return
    for site in sites.values():
        site.rules = False
    revealed = {n: sites[n].reveal(everybody, packets[n], WEIGHTS, **about) for n in NAMES}
    total = open_part(WEIGHTS, {n: each.parts[WEIGHTS] for n, each in masked.items()}, revealed, NAMES, 4)
    assert np.array_equal(total, ANSWERS["ada"])


def test_all_that_a_transcript_holds_changes_every_mask() -> None:
    known = Transcript("study", 1, "train/", 1, 1, NAMES, "model")
    others = [
        known.__class__(**{**vars(known), name: value})
        for name, value in (
            ("study", "other"),
            ("run", 2),
            ("question", "scores/"),
            ("round", 2),
            ("attempt", 2),
            ("cohort", NAMES[::-1]),
            ("content", "other"),
        )
    ]
    keys = {
        Party("ada", lambda other: KEYS["ada"].agree(KEYS[other].public), each, 3)._pair_key("ben", ROWS)
        for each in (known, *others)
    }
    assert len(keys) == 8
