"""A server with its full view and the keys of some sites, against the sum of the others.

Each attack fails under the rules, and succeeds where the rule that stops it is left out.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

from cryptography.exceptions import InvalidTag

from fairfate.flower.app import sum_state
from fairfate.flower.messages import ATTEMPT, COHORT, MEMBERS, ROUND, SHARES, SIGNATURES, SUM_PART
from fairfate.flower.sealing import PrivateKey, PublicKey
from fairfate.flower.study import NotInStudyError
from fairfate.privacy import masked_sums
from fairfate.privacy.fixed_point import ROWS, WEIGHTS, Ring, add
from fairfate.privacy.masked_sums import Masked, Party, SumError, Transcript, open_part, statement

NAMES = ("ada", "ben", "cleo", "dora", "emil", "finn", "gita", "hugo", "ines", "jon")
KEYS = {name: PrivateKey.create() for name in NAMES}
ANSWERS = {name: np.arange(6, dtype=np.uint64) * np.uint64(1000 + k) for k, name in enumerate(NAMES)}
FIVE = NAMES[:5]


@cache
def agree(name: str, other: PublicKey) -> bytes:
    return KEYS[name].agree(other)


class Site:
    """The protocol behind the rules that a site's gate keeps in its state."""

    def __init__(
        self,
        name: str,
        names: tuple[str, ...] = FIVE,
        min_sum: int = 3,
        directory: dict[str, PublicKey] | None = None,
    ) -> None:
        self.name, self.sums, self.opened, self.rules = name, {}, {}, True
        pinned = {other: KEYS[other].public for other in names}
        self.keys = directory or pinned
        self.study: Any = SimpleNamespace(
            sites={other: SimpleNamespace(key=key) for other, key in pinned.items()},
            limits=SimpleNamespace(min_sum=min_sum, attempts=3),
            checksum="study",
        )

    def party(self, key: str) -> Party:
        transcript = sum_state.transcript_of(self.sums[key], key, int(key[0]), self.study)
        least = sum_state.least_of(self.study)
        return Party(self.name, lambda other: agree(self.name, self.keys[other]), transcript, least)

    def train(
        self,
        answers: dict[str, Ring],
        cohort: tuple[str, ...],
        attempt: int = 1,
        *,
        run: int = 1,
        content: str = "model",
        member: bool | None = None,
    ) -> Masked:
        key = self.begin(cohort, attempt, run, content)
        self.sums[key]["member"] = member
        return self.party(key).mask(answers)

    def begin(self, cohort: tuple[str, ...], attempt: int, run: int = 1, content: str = "model") -> str:
        key = f"{run}/train/1//{attempt}"
        config = {COHORT: list(cohort), ATTEMPT: attempt, ROUND: 1, "seed": 1}
        sum_state.begin(self.sums, self.opened, key, config, content, self.name, self.study)
        return key

    def open(self, key: str, part: str = ROWS, **about: Any) -> None:
        config = {SUM_PART: part, SHARES: [""] * len(self.sums[key]["cohort"]), **about}
        opened = self.opened if self.rules else {}
        sum_state.open_part(self.sums, opened, key, config, int(key[0]), self.study)

    def reveal(self, key: str, packets: dict[str, bytes], part: str = ROWS, **about: Any) -> dict[str, bytes]:
        if self.rules or part == ROWS:
            self.open(key, part, **about)
        parts = [ROWS] if self.sums[key]["member"] is None else [ROWS, WEIGHTS]
        return self.party(key).reveal(part, parts, packets)

    def count(self, key: str) -> tuple[int, bytes]:
        party = self.party(key)
        number = party.count(bool(self.sums[key]["member"]))
        return number, KEYS[self.name].sign(statement(party.transcript, number))


class Attack:
    """All that the server sees of two attempts, the second without the target, with corrupt sites' keys."""

    def __init__(self, names: tuple[str, ...], colluding: int) -> None:
        self.names, self.sites = names, {name: Site(name, names) for name in names}
        self.honest, self.corrupt = names[: len(names) - colluding], names[len(names) - colluding :]
        self.cohorts = {"1/train/1//1": names, "1/train/1//2": names[1:]}
        self.masked = {
            key: {
                name: self.sites[name].train({ROWS: ANSWERS[name]}, cohort, int(key[-1])) for name in cohort
            }
            for key, cohort in self.cohorts.items()
        }

    def run(self, choices: list[str], *, rules: bool) -> dict[str, Ring]:
        """Ask honest sites for one attempt first and then for the other: the sums that are opened."""
        sites = {name: deepcopy(site) for name, site in self.sites.items()}
        revealed: dict[str, dict[str, dict[str, bytes]]] = {key: {} for key in self.cohorts}
        for turn in (0, 1):
            for name, first in zip(self.honest, choices, strict=True):
                key = first if turn == 0 else next(other for other in self.cohorts if other != first)
                sites[name].rules = rules
                if name in self.cohorts[key]:
                    try:
                        revealed[key][name] = sites[name].reveal(key, self.packets(key, name))
                    except NotInStudyError:
                        assert rules
        opened = {}
        for key, cohort in self.cohorts.items():
            for name in {*self.corrupt} & {*cohort}:
                revealed[key][name] = (
                    self.sites[name].party(key).reveal(ROWS, [ROWS], self.packets(key, name))
                )
            masked = {name: each.parts[ROWS] for name, each in self.masked[key].items()}
            try:
                least = sum_state.least_of(self.sites["ada"].study)
                opened[key] = open_part(ROWS, masked, revealed[key], cohort, least)
            except SumError:
                continue
            assert np.array_equal(opened[key], add([ANSWERS[name] for name in cohort]))
        return opened

    def packets(self, key: str, name: str) -> dict[str, bytes]:
        return {other: self.masked[key][other].shares[name] for other in self.cohorts[key]}


def test_an_honest_round_opens_the_sum() -> None:
    attack = Attack(FIVE, 0)
    key = "1/train/1//1"
    revealed = {n: attack.sites[n].reveal(key, attack.packets(key, n)) for n in FIVE}
    masked = {n: each.parts[ROWS] for n, each in attack.masked[key].items()}
    whole = add([ANSWERS[name] for name in FIVE])
    assert np.array_equal(open_part(ROWS, masked, revealed, FIVE, 4), whole)
    del revealed["ben"]
    assert np.array_equal(open_part(ROWS, masked, revealed, FIVE, 4), whole)  # one may be gone by now
    del revealed["ada"]
    with pytest.raises(SumError, match="3 parties have revealed shares, and 4 must"):
        open_part(ROWS, masked, revealed, FIVE, 4)


def test_sum_without_one_partys_numbers_stays_closed() -> None:
    """Whoever drops out after the masks were made is left out by another attempt, not by keys of masks."""
    attack, key = Attack(FIVE, 0), "1/train/1//1"
    revealed = {n: attack.sites[n].reveal(key, attack.packets(key, n)) for n in FIVE}
    masked = {n: each.parts[ROWS] for n, each in attack.masked[key].items() if n != "ada"}
    with pytest.raises(SumError, match="no numbers of ada"):
        open_part(ROWS, masked, revealed, FIVE, 4)


SPLITS = [
    (sites, colluding)
    for sites in range(4, 11)
    for colluding in range(masked_sums.most_colluding(sites, 3) + 1)
]


@pytest.mark.parametrize(("sites", "colluding"), SPLITS)
def test_of_two_attempts_one_is_opened_however_sites_are_split(sites: int, colluding: int) -> None:
    """Sites are alike but for the target: all numbers of those who are asked for the first attempt first."""
    attack = Attack(NAMES[:sites], colluding)
    first, second = attack.cohorts
    others = len(attack.honest) - 1
    for target in (first, second):
        for number in range(others + 1):
            choices = [target] + [first] * number + [second] * (others - number)
            assert len(attack.run(choices, rules=True)) <= 1
    assert attack.run([first] * (others + 1), rules=True).keys() == {first}


@pytest.mark.parametrize(("sites", "colluding"), [(4, 0), (5, 2), (7, 0), (7, 2), (10, 3)])
@pytest.mark.parametrize("left_out", ["one cohort for each site", "two thirds"])
def test_without_a_rule_the_difference_of_two_attempts_is_one_sites_answer(
    sites: int, colluding: int, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if left_out == "two thirds":  # as many as half of the honest, and the corrupt
        least = (sites - colluding) // 2 + colluding
        monkeypatch.setattr(sum_state, "threshold", lambda sites, min_sum: max(2, least))
    attack = Attack(NAMES[:sites], colluding)
    first, second = attack.cohorts
    half = -(-len(attack.honest) // 2)
    choices = [first] * half + [second] * (len(attack.honest) - half)
    opened = attack.run(choices, rules=left_out == "two thirds")
    assert np.array_equal(opened[first] - opened[second], ANSWERS["ada"])


def test_beyond_the_bound_two_attempts_can_be_opened() -> None:
    """The bound on colluding sites is exact: of five two, and not three."""
    assert masked_sums.most_colluding(5, 3) == 2
    attack = Attack(FIVE, 3)
    assert len(attack.run(list(attack.cohorts), rules=True)) == 2


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_in_all_attempts_and_runs_one_cohort_is_opened(data: st.DataObject) -> None:
    """Any cohorts, told to any sites in any order, against the sites' own states; shares are counted."""
    names = NAMES[: data.draw(st.integers(4, 10))]
    colluding = data.draw(st.integers(0, masked_sums.most_colluding(len(names), 3)))
    honest = names[: len(names) - colluding]
    sites = {name: Site(name, names) for name in honest}
    least = masked_sums.threshold(len(names), 3)
    members = st.sets(st.sampled_from(names), min_size=least).map(lambda each: tuple(sorted(each)))
    cohorts = data.draw(st.lists(members, min_size=2, max_size=4, unique=True))
    revealed: dict[tuple[str, ...], set[str]] = {cohort: set() for cohort in cohorts}
    began: dict[tuple[str, ...], set[str]] = {cohort: set() for cohort in cohorts}
    steps = st.tuples(st.sampled_from(honest), st.integers(0, len(cohorts) - 1), st.booleans())
    order = [(name, number, False) for number in range(len(cohorts)) for name in honest]
    order = data.draw(st.permutations(order)) if data.draw(st.booleans()) else order
    for name, number, is_asked in [*order, *data.draw(st.lists(steps, max_size=60))]:
        cohort = cohorts[number]
        if name not in cohort:
            continue
        run, attempt = 1 + number // 2, 1 + number % 2
        try:
            if is_asked:
                sites[name].open(f"{run}/train/1//{attempt}")
                revealed[cohort].add(name)
            else:
                sites[name].begin(cohort, attempt, run, f"model {number}")
                began[cohort].add(name)
        except NotInStudyError:
            continue
    opened = [
        cohort
        for cohort in cohorts
        if began[cohort] == {*honest} & {*cohort}
        and len(revealed[cohort]) + len({*cohort} - {*honest}) >= least
    ]
    assert len(opened) <= 1
    assert all(len({*cohort} & {*honest}) >= 2 for cohort in opened)


@pytest.mark.parametrize("change", [{"run": 2}, {"attempt": 2}, {"content": "another bit"}])
def test_site_opens_a_round_of_a_seed_over_one_cohort_whatever_else_differs(change: dict[str, Any]) -> None:
    """A server that changes one bit of the model, or starts another run, is as far as before."""
    site = Site("ada", NAMES)
    key = site.begin(NAMES, 1)
    site.open(key)
    again = {"attempt": 3, "run": 1, **change}
    with pytest.raises(NotInStudyError, match="over other sites than before"):
        site.begin(NAMES[:-1], **again)
    key = site.begin(NAMES, **again)
    site.open(key)  # over the same it learns nothing new


def test_site_counts_over_one_cohort_only() -> None:
    """Scores and histograms are of the same rows, whichever models they are of."""
    site = Site("ada", NAMES)
    for key, config, cohort in (
        ("1/scores/3//1", {ROUND: 3}, NAMES),
        ("1/histogram/0/held/1", {"part": "held"}, NAMES[1:] + NAMES[:1]),
        ("2/histogram/0//1", {}, NAMES[:-1]),
    ):
        asked = {COHORT: list(cohort), ATTEMPT: 1, **config}
        given = site.sums, site.opened, key, asked, f"model of {key}", "ada", site.study
        if cohort == NAMES:
            sum_state.begin(*given)
            site.open(key)
        else:
            with pytest.raises(NotInStudyError, match="over other sites than before"):
                sum_state.begin(*given)


@pytest.mark.parametrize("cohort", [NAMES[:6], NAMES[1:]])
def test_site_is_in_no_sum_of_few_or_without_itself(cohort: tuple[str, ...]) -> None:
    with pytest.raises(NotInStudyError, match="a cohort"):
        Site("ada", NAMES).begin(cohort, 1)


@pytest.mark.parametrize("has_rule", [True, False])
def test_a_server_that_swaps_keys(has_rule: bool) -> None:
    """Sites that take the others' keys from the server make masks with it."""
    own, key = PrivateKey.create(), "1/train/1//1"
    directory = None if has_rule else dict.fromkeys(FIVE, own.public)
    ada = Site("ada", directory=directory)
    masked = ada.train({ROWS: ANSWERS["ada"]}, FIVE)
    transcript = ada.party(key).transcript
    total, seeds = masked.parts[ROWS], []
    for number, name in enumerate(FIVE):
        known = Party(name, lambda other: own.agree(KEYS["ada"].public), transcript, 4)
        try:
            packet = masked_sums.ChaCha20Poly1305(known._share_key("ada", name)).decrypt(
                bytes(12), masked.shares[name], None
            )
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
    sites, key = {name: Site(name) for name in FIVE}, "1/train/1//1"
    zero = np.zeros(6, dtype=np.uint64)
    masked = {
        name: site.train(
            {ROWS: ANSWERS[name] if name == "ada" else zero},
            FIVE,
            content="one" if name == "ada" and has_rule else "another",  # the checksum of what it was sent
        )
        for name, site in sites.items()
    }
    packets = {n: {other: masked[other].shares[n] for other in FIVE} for n in FIVE}
    try:
        revealed = {n: sites[n].reveal(key, packets[n]) for n in FIVE}
    except SumError:  # shares are sealed under the transcript, too
        assert has_rule
        return
    total = open_part(ROWS, {n: each.parts[ROWS] for n, each in masked.items()}, revealed, FIVE, 4)
    assert not has_rule
    assert np.array_equal(total, ANSWERS["ada"])


@pytest.mark.parametrize("has_rule", [True, False])
def test_server_that_lies_about_the_number_of_fair_clients_is_noticed(has_rule: bool) -> None:
    """Each site counts again what the others have signed, before it opens a sum over one member only."""
    sites, key = {name: Site(name) for name in FIVE}, "1/train/1//1"
    by_weight = {name: ANSWERS[name] if name == "ada" else ANSWERS[name] * np.uint64(0) for name in FIVE}
    masked = {
        name: site.train({ROWS: ANSWERS[name], WEIGHTS: by_weight[name]}, FIVE, member=name == "ada")
        for name, site in sites.items()
    }
    packets = {n: {other: masked[other].shares[n] for other in FIVE} for n in FIVE}
    counted = {}
    for name, site in sites.items():
        site.reveal(key, packets[name])
        counted[name] = site.count(key)
    lies = {**{n: number for n, (number, _) in counted.items()}}
    lies["ben"] = (lies["ben"] + 4) % 2**64  # as if all five were
    about = {
        MEMBERS: [f"{lies[n]:016x}" for n in FIVE],
        SIGNATURES: [counted[n][1].hex() for n in FIVE],
    }
    honest = {**about, MEMBERS: [f"{counted[n][0]:016x}" for n in FIVE]}
    assert masked_sums.count_members({n: number for n, (number, _) in counted.items()}, FIVE) == 1
    if has_rule:
        for claim, reason in ((about, "signature"), (honest, "1 members of 5 sites")):
            with pytest.raises(NotInStudyError, match=reason):
                sites["ben"].reveal(key, packets["ben"], WEIGHTS, **claim)
        return
    for site in sites.values():
        site.rules = False
    revealed = {n: sites[n].reveal(key, packets[n], WEIGHTS, **about) for n in FIVE}
    total = open_part(WEIGHTS, {n: each.parts[WEIGHTS] for n, each in masked.items()}, revealed, FIVE, 4)
    assert np.array_equal(total, ANSWERS["ada"])


def test_site_masks_once_for_an_attempt_and_opens_it_once() -> None:
    site = Site("ada")
    key = site.begin(FIVE, 1)
    with pytest.raises(NotInStudyError, match="masked for before"):
        site.begin(FIVE, 1)
    site.open(key)
    with pytest.raises(NotInStudyError, match="opened before"):
        site.open(key)


def test_all_that_a_transcript_holds_changes_every_mask() -> None:
    known = Transcript("study", 1, "train/", 1, 1, FIVE, "model")
    others = [
        known.__class__(**{**vars(known), name: value})
        for name, value in (
            ("study", "other"),
            ("run", 2),
            ("question", "scores/"),
            ("round", 2),
            ("attempt", 2),
            ("cohort", FIVE[::-1]),
            ("content", "other"),
        )
    ]
    keys = {
        Party("ada", lambda other: KEYS["ada"].agree(KEYS[other].public), each, 3)._pair_key("ben", ROWS)
        for each in (known, *others)
    }
    assert len(keys) == 8
