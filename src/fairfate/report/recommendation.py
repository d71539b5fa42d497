"""The one answer of a run: the recommended model, what it gains and costs, and whether that may be chance.

The choice is made on validation rows; the numbers are those of the test rows, means over seeds. Terminal,
report and model card all say what is said here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairfate.data.columns import MISSING, SMALL
from fairfate.errors import listing
from fairfate.fairness.disclosure import MIN_CELL
from fairfate.fairness.intervals import holm, paired
from fairfate.fairness.metrics import COLLAPSED, FAIRNESS
from fairfate.fairness.selection import KEEP, TOLERANCE
from fairfate.report.audit import ABOVE, BELOW, FOUR_FIFTHS, UNCLEAR, Audit, Verdict, audits
from fairfate.report.data import RESPLIT, ReportData
from fairfate.report.rule import proxy_sentence
from fairfate.results.recommendation import (
    COLLAPSE,
    MIN_GAIN,
    UNDEFINED,
    UNTRAINED,
    Candidate,
    RecommendedModel,
)

SIGNIFICANT = 0.05
"""The level of the paired tests."""
RANKS = 0.6
"""An AUC from which on scores are said to rank people."""
NAMES = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "mcc": "MCC"}
RULE = (
    f"Qualifying needs accuracy within {TOLERANCE} of the best, and {100 * KEEP:.0f} % of the most accurate"
    " strategy's balanced accuracy above 0.5."
)
REFITTED = (
    "The saved model is another one: the same strategy trained once more on all rows, those for validation"
    " and test too (--refit). No rows are left to test it; every number is of models that had not seen the"
    " test rows (here of seed {seed}), and the saved one has no interval of its own."
)
NEXT_STEPS = {
    COLLAPSE: (
        "Try more rounds (--rounds) or another learning rate (--learning-rate), and look whether the inputs"
        " say anything about the outcome: 'fairfate data describe'. Where one outcome is rare, models tend to"
        " predict the other for everybody."
    ),
    UNDEFINED: "Try more rows, larger groups (--min-group), or a metric that is defined (--metric sp).",
    UNTRAINED: "Look at 'fairfate show --clients': it says why rounds were discarded.",
}
"""What to try where no model can be recommended, by what is wrong with most of them."""


@dataclass(frozen=True)
class Recommendation:
    """Sentences; an empty one where there is nothing to say."""

    choice: RecommendedModel | None
    headline: str
    reason: str
    """Why it was chosen, or why no model was."""
    rejected: tuple[tuple[str, str], ...]
    """Every other strategy, and why it is not recommended."""
    comparison: str
    """What it gains and costs, against the first strategy."""
    chance: str
    pooled: str
    """How it compares with models of the pooled rows."""
    fairness: str
    """How fair the saved model is, by which rule, and whether it reaches the threshold."""
    inputs: str
    """Whether it sees the group."""
    caveats: tuple[str, ...]

    @property
    def paragraphs(self) -> list[str]:
        """For the terminal: each answers one question."""
        others = listing(f"{name} ({reason})" for name, reason in self.rejected)
        return [
            f"{label}{text}"
            for label, text in (
                ("", " ".join(filter(None, (self.headline, self.reason)))),
                ("Gain and cost: ", self.comparison),
                ("Chance: ", self.chance),
                ("Against pooled training: ", self.pooled),
                ("Fairness: ", " ".join(filter(None, (self.fairness, self.inputs)))),
                ("Not recommended: ", f"{others}." if others else ""),
                ("", " ".join(self.caveats)),
            )
            if text
        ]


def recommend(data: ReportData, line: float = FOUR_FIFTHS) -> Recommendation:
    """The answer of strategies on the same data; ``line`` is the ratio that groups' rates should reach."""
    choice, candidates = data.recommended, data.candidates
    if choice is None:
        flaws = [candidate.flaw for candidate in candidates if candidate.flaw]
        flaw = max(flaws, key=flaws.count, default="")
        ranking = _ranking(data) if flaw == COLLAPSE else ""
        reason = " ".join(filter(None, (_none(candidates), ranking, NEXT_STEPS.get(flaw, ""))))
        headline = "No model can be recommended."
        rejected = tuple(
            (candidate.name, candidate.rejected_because)
            for candidate in candidates
            if candidate.rejected_because
        )
        nothing = "Without a model nothing is gained or given up." if candidates else ""
        chance = "There is no recommended model whose differences could be tested." if candidates else ""
        return Recommendation(
            None, headline, reason, rejected, nothing, chance, _pooled(data, None), "", "", ()
        )
    seed = f", seed {choice.seed}" if data.seed_count > 1 else ""
    return Recommendation(
        choice,
        f"Recommended: {choice.name}{seed}.",
        _reason(data, choice, candidates),
        _rejected(data, choice, candidates),
        _comparison(data, choice, candidates),
        _chance(data, choice),
        _pooled(data, choice),
        _fairness(data, choice, line),
        _inputs(data),
        tuple(
            filter(
                None,
                (
                    REFITTED.format(seed=choice.seed) if data.is_refitted else "",
                    _collapse_on_test(data, choice),
                    _majority(data, choice),
                    _trade_off(data, choice, candidates),
                    _by_group(data, choice, candidates),
                    proxy_sentence(data, choice.line, choice.seed),
                ),
            )
        ),
    )


def _ranking(data: ReportData) -> str:
    """That scores rank people although the decisions do not tell them apart, where they do."""
    areas = [float(data.per_seed("auc", line).mean()) for line in range(len(data.names))]
    best = max(range(len(areas)), key=lambda line: -math.inf if math.isnan(areas[line]) else areas[line])
    if not areas[best] >= RANKS:
        return ""
    return (
        f"The scores of {data.names[best]} do rank people (AUC {areas[best]:.3f}; 0.5 is chance), but nearly"
        " all of them lie on one side of the decision threshold."
    )


def name_of(metric: str) -> str:
    """A metric in a sentence."""
    return metric.upper() if metric in FAIRNESS else NAMES.get(metric, metric)


def _none(candidates: Sequence[Candidate]) -> str:
    if not candidates:
        return "The records of the run do not say how its models do on the validation rows."
    if any(not candidate.rejected_because for candidate in candidates):
        return "Only strategies that use a threshold for each group are left."
    return ""


def _reason(data: ReportData, choice: RecommendedModel, candidates: Sequence[Candidate]) -> str:
    chosen, metric = candidates[choice.line], name_of(data.objective)
    comparable = [candidate for candidate in candidates if candidate.needs_group == chosen.needs_group]
    allowed = [candidate for candidate in comparable if not candidate.rejected_because]
    apart = "" if len(comparable) == len(candidates) else " that use one threshold for everybody"
    if len(candidates) == 1:
        text = "It is the only strategy of the run, and it has not collapsed on the validation rows."
    elif len(allowed) == 1:
        text = (
            f"On the validation rows, of {len(comparable)} strategies{apart} only this one qualifies. {RULE}"
        )
    else:
        verdict = (
            "Among these it is the fairest on the validation rows"
            f" ({_mean(data)}{metric} {chosen.fairness:.3f})"
        )
        clearly = f"by at least {MIN_GAIN} {metric} and by more than one standard error over seeds"
        if _is_kept(choice, candidates):
            verdict = f"To replace plain training, a strategy must be fairer {clearly}; none is."
        elif not candidates[0].aims_at_fairness and candidates[0] in allowed:
            verdict += f", and fairer than plain training ({candidates[0].name}) {clearly}."
        else:
            verdict += "."
        number = f"{len(allowed)} of the" if len(allowed) < len(comparable) else "all"
        text = (
            f"On the validation rows, {number} {len(comparable)} strategies{apart} qualify. {RULE} {verdict}"
        )
    if data.seed_count == 1:
        return text
    middle = " (the lower of the two middle ones)" if data.seed_count % 2 == 0 else ""
    chosen_seed = f"the one with the median MCC{middle} on the validation rows"
    kept = "measured" if data.is_refitted else "saved"
    return f"{text} Of its {data.seed_count} seeds, {chosen_seed} is {kept}."


def _mean(data: ReportData) -> str:
    return "mean " if data.seed_count > 1 else ""


def _is_kept(choice: RecommendedModel, candidates: Sequence[Candidate]) -> bool:
    """Whether the first strategy, which aims at no fairness, is chosen for want of a clear gain."""
    return choice.line == 0 and not candidates[0].aims_at_fairness


def _rejected(
    data: ReportData, choice: RecommendedModel, candidates: Sequence[Candidate]
) -> tuple[tuple[str, str], ...]:
    others = (candidate for line, candidate in enumerate(candidates) if line != choice.line)
    return tuple((candidate.name, _why_not(data, choice, candidates, candidate)) for candidate in others)


def _why_not(
    data: ReportData, choice: RecommendedModel, candidates: Sequence[Candidate], candidate: Candidate
) -> str:
    chosen, metric = candidates[choice.line], name_of(data.objective)
    if candidate.rejected_because:
        also = ", and it uses a threshold for each group" if candidate.needs_group else ""
        return candidate.rejected_because + ("" if chosen.needs_group else also)
    if candidate.needs_group and not chosen.needs_group:
        return "it uses a threshold for each group"
    values = f"{candidate.fairness:.3f} against {chosen.fairness:.3f}"
    gain, error = candidate.gain_over(chosen)
    if not _is_kept(choice, candidates) or gain <= 0:
        return f"its {metric} on the validation rows is {'lower' if gain < 0 else 'no higher'}, {values}"
    if gain < MIN_GAIN:
        return f"its {metric} on the validation rows is higher by less than {MIN_GAIN}, {values}"
    return f"its gain in {metric} on the validation rows, {values}, is below its standard error ({error:.3f})"


def _changes(data: ReportData, line: int, other: int, metrics: Sequence[str]) -> str:
    """How metrics change from one strategy to another, those that rise and those that fall together.

    Of fairness nothing is said where one of them is flawed.
    """
    is_flawed = bool(data.flaws[line] or data.flaws[other])
    moves: dict[str, list[str]] = {}
    for metric in [name for name in metrics if name in NAMES or not is_flawed]:
        before, after = (f"{data.mean(metric, number):.3f}" for number in (other, line))
        if before == after:
            moves.setdefault("stays at", []).append(f"{name_of(metric)} stays at {after}")
            continue
        verb = "falls" if data.mean(metric, line) < data.mean(metric, other) else "rises"
        again = "" if verb in moves else f" {verb}"
        moves.setdefault(verb, []).append(f"{name_of(metric)}{again} from {before} to {after}")
    return "; ".join(map(_and, moves.values()))


def _and(parts: Sequence[str]) -> str:
    """Parts of a sentence in a row.

    >>> _and(["a"]), _and(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _flawed(data: ReportData, *lines: int) -> str:
    """Which of some strategies collapsed on the test rows, or was not trained; empty where none did.

    Its fairness is shown nowhere, and no difference to it is tested.
    """
    return listing(f"{data.names[line]} {data.flaws[line]} seeds" for line in lines if data.flaws[line])


def _comparison(data: ReportData, choice: RecommendedModel, candidates: Sequence[Candidate]) -> str:
    if len(data.names) == 1:
        return ""
    first, metric = data.names[0], data.objective
    if choice.line == 0:
        measured = tuple(NAMES) if data.flaws[0] else (metric, *NAMES)
        numbers = ", ".join(f"{name_of(name)} {data.mean(name, 0):.3f}" for name in measured)
        plain = (
            "plain training" if not candidates[0].aims_at_fairness else "what the others are compared with"
        )
        return (
            f"{first} is {plain}, so nothing is gained and nothing given up. On the test rows"
            f"{_means(data)} it has {numbers}."
        )
    changes = _changes(data, choice.line, 0, (metric, *NAMES))
    text = f"Compared with {first}, {changes} on the test rows{_means(data)}."
    flawed = _flawed(data, 0, choice.line)
    if flawed:
        kept = "" if data.flaws[choice.line] else f" {choice.name} has {name_of(metric)} "
        kept += f"{data.mean(metric, choice.line):.3f}." if kept else ""
        return f"{text} On them {flawed}, so {name_of(metric)} is not compared.{kept}"
    if data.mean(metric, choice.line) <= data.mean(metric, 0):
        confirmed = candidates[choice.line].fairness <= candidates[0].fairness
        text += f" On these rows{'' if confirmed else ', unlike on the validation rows,'} it is not fairer."
    return f"{text}{_worst_loss(data, choice.line)}"


def _worst_loss(data: ReportData, line: int) -> str:
    """The group that loses most accuracy against the first strategy, where it is more than a hundredth."""
    before, after = (data.rates_of_line(number) for number in (0, line))
    known = {(a, g): value for a, g, value in zip(*(before[n] for n in _RATES_OF_GROUP), strict=True)}
    losses = [
        (known.get((attribute, group), math.nan) - value, attribute, group, value)
        for attribute, group, value in zip(*(after[name] for name in _RATES_OF_GROUP), strict=True)
        if group not in (MISSING, SMALL)
    ]
    loss, attribute, group, value = max(losses, default=(0.0, "", "", 0.0))
    if not loss >= _NOTABLE_LOSS:
        return ""
    return f" The group that loses most accuracy is {attribute} = {group}: {value + loss:.3f} to {value:.3f}."


_RATES_OF_GROUP = ("attribute", "group", "accuracy")
_NOTABLE_LOSS = 0.01


def _means(data: ReportData, seeds: int | None = None) -> str:
    """Of how many seeds numbers are means, if not of the only one."""
    number = data.seed_count if seeds is None else min(seeds, data.seed_count)
    if number > 1:
        return f" (means of {number} seeds)"
    return f" (seed {data.seeds[0]})" if data.seed_count > 1 else ""


def _chance(data: ReportData, choice: RecommendedModel) -> str:
    """Whether the difference in fairness to the first strategy may be chance, and so whether it is one."""
    if len(data.names) == 1:
        return ""
    metric = name_of(data.objective)
    rows = [row for row in paired_tests(data, choice.line)["rows"] if row["metric"] == data.objective]
    flawed = _flawed(data, *sorted({0, choice.line}))
    if flawed:
        return f"On the test rows {flawed}, so no difference in {metric} is tested."
    if choice.line == 0:
        return _chance_of_others(data, choice, rows)
    test = next((row for row in rows if row["line"] == 0), None)
    if test is None:
        return "The strategies were run with different seeds, so the difference may be chance."
    if test["seeds"] < 2:
        return "One seed cannot show whether the difference is chance; run more seeds (--seeds 5)."
    if test["p-adjusted"] is None:
        return f"The difference in {metric} cannot be tested: it is the same in all seeds, or undefined."
    p = f"{_p_value(test['p-adjusted'])}, {_tested(data, test['seeds'])}"
    if test["p-adjusted"] >= SIGNIFICANT:
        change = f"{metric} {'rose' if test['value'] < 0 else 'fell'} by {abs(test['value']):.3f}"
        return (
            f"On the test rows {change} over {data.names[0]}; this may be chance ({p}). More seeds (--seeds)"
            " or rows give a clearer answer."
        )
    # The test compares the others with the recommended one.
    verdict = "fairer" if test["value"] < 0 else "less fair"
    return (
        f"On the test rows it is {verdict} than {data.names[0]}: the difference in {metric} is unlikely to"
        f" be chance ({p})."
    )


def _p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _chance_of_others(data: ReportData, choice: RecommendedModel, rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether others are fairer on the test rows than the first strategy, which is recommended."""
    tested = [row for row in rows if row["p-adjusted"] is not None]
    if not tested:
        return ""
    metric, how = name_of(data.objective), _tested(data, tested[0]["seeds"])
    real = [row for row in tested if row["value"] > 0 and row["p-adjusted"] < SIGNIFICANT]
    rest = [row for row in tested if row not in real]
    sentences = []
    for row in real:
        why = _why_not(data, choice, data.candidates, data.candidates[row["line"]])
        sentences.append(
            f"On the test rows {row['strategy']} has {row['value']:.3f} more {metric}, which is unlikely to"
            f" be chance ({_p_value(row['p-adjusted'])}, {how}); it was not chosen, since {why}."
        )
    if rest:
        least = min(row["p-adjusted"] for row in rest)
        others = "No other strategy's" if not real else "No further strategy's"
        sentences.append(
            f"{others} {metric} on the test rows differs from {choice.name}'s by more than chance would"
            f" explain (smallest {_p_value(least)}, {how})."
        )
    return " ".join(sentences)


def _tested(data: ReportData, seeds: int) -> str:
    compared = len(data.names) - 1
    corrected = f", corrected for {compared} comparisons" if compared > 1 else ""
    people = " and over people" if data.shares_test_rows else ""
    return f"paired over {seeds} seeds{people}{corrected}"


def _pooled(data: ReportData, choice: RecommendedModel | None) -> str:
    """The recommended model beside models of the pooled rows, which no federation could train.

    Both over the seeds of the pooled models, of which there may be fewer.
    """
    if not data.baselines:
        return ""
    metric, parts = data.headline, []
    is_compared = choice is not None and not data.flaws[choice.line]
    if choice is not None:
        seeds = data.baselines[0].seeds
        shown = ("accuracy", metric) if is_compared else ("accuracy",)
        own = [f"{name_of(key)} {data.per_seed(key, choice.line)[:seeds].mean():.3f}" for key in shown]
        parts.append(f"on the test rows {choice.name} has {', '.join(own)}{_means(data, seeds)}")
    for baseline in data.baselines:
        name, values = baseline.name, baseline.metrics
        if values["mcc"] < COLLAPSED:
            worse = "collapsed" if choice else "does no better: it collapsed"
            parts.append(f"{name} {worse} (accuracy {values['accuracy']:.3f}, MCC {values['mcc']:.3f})")
        else:
            parts.append(
                f"{name} has accuracy {values['accuracy']:.3f}, {name_of(metric)} {values[metric]:.3f}"
            )
    text = "; ".join(parts)
    if choice is not None and not is_compared:
        text += f". Fairness is not compared: {_flawed(data, choice.line)} on the test rows"
    how = "Pooled models are trained on the rows of all clients in one place, without a fairness method."
    return f"{text[0].upper()}{text[1:]}. {how}"


VERDICTS = {
    ABOVE: "Yes: the whole interval is at or above {line}",
    BELOW: "No: the whole interval is below {line}",
    UNCLEAR: "Inconclusive: the interval contains {line}",
}
"""What is said of a ratio and its interval, by the fairness threshold."""


def _fairness(data: ReportData, choice: RecommendedModel, line: float) -> str:
    """The saved model's fairness with its interval over people, and how it stands to the threshold."""
    objective = data.headline
    index = data.seeds_of(choice.line).index(choice.seed)
    counts = data.counts[data.models_of(choice.line)]
    alone = audits(counts[[index]], data.groups, MIN_CELL)[: len(data.groups.attributes)]
    verdict = _lowest(alone, objective, line)
    numbers = f"{name_of(objective)} {data.per_seed(objective, choice.line)[index]:.3f}"
    accuracy = data.per_seed("accuracy", choice.line)[index]
    model = f"The {'measured' if data.is_refitted else 'saved'} model (seed {choice.seed})"
    model = model if data.seed_count > 1 else "It"
    skill = data.per_seed("mcc", choice.line)[index]
    if skill < COLLAPSED:
        return (
            f"{model} collapsed on the test rows (accuracy {accuracy:.3f}, MCC {skill:.3f}): it gives nearly"
            " everybody the same answer, so ratios of its rates say nothing."
        )
    of_counts = "" if objective == data.objective else f"; {data.objective} has no such interval"
    saved = f"{model} has {numbers}"
    metric = name_of(objective)
    ends = _ends(verdict) if verdict.sentence in VERDICTS else "too few people for an interval"
    reached = VERDICTS.get(verdict.sentence, "Too few people to interpret").format(line=f"{line:g}")
    text = (
        f"{saved} ({ends}{of_counts}) and accuracy {accuracy:.3f} on the test rows. Is {metric} at least"
        f" {line:g}? {reached}."
    )
    selection = _lowest(alone, "sp", line)
    if objective == "sp" or selection.sentence not in VERDICTS:
        return text
    rule = "Four-fifths rule: is" if line == FOUR_FIFTHS else "Is"
    differ = (
        "" if selection.sentence == verdict.sentence else " You decide which of the two measures matters."
    )
    return (
        f"{text} {rule} SP, the ratio of selection rates, at least {line:g}?"
        f" {VERDICTS[selection.sentence].format(line=f'{line:g}')} (SP {selection.value:.3f},"
        f" {_ends(selection)}).{differ}"
    )


def _lowest(alone: Sequence[Audit], metric: str, line: float) -> Verdict:
    """A metric for the attribute whose groups differ most."""
    verdicts = [verdict for audit in alone for verdict in audit.verdicts(0, line) if verdict.metric == metric]
    return min(verdicts, key=lambda verdict: math.inf if math.isnan(verdict.value) else verdict.value)


def _ends(verdict: Verdict) -> str:
    return f"95 % interval {max(verdict.low, 0):.3f} to {min(verdict.high, 1):.3f}"


def _inputs(data: ReportData) -> str:
    """That the model sees the sensitive attribute, where it does."""
    names = data.groups.attributes
    inputs = [name for name in names if any(importance.column == name for importance in data.importances)]
    if not inputs:
        return ""
    drop = " ".join(f"--drop {name}" for name in inputs)
    return (
        f"The model uses {listing(inputs)} as an input: it must be known for each decision, and its use may"
        f" be illegal. {drop} trains without it."
    )


def _collapse_on_test(data: ReportData, choice: RecommendedModel) -> str:
    """That models which had not collapsed on the validation rows did so on the test rows."""
    seeds = data.collapsed[choice.line]
    if not seeds:
        return ""
    index = data.seeds_of(choice.line).index(choice.seed)
    which = "the saved model" if data.per_seed("mcc", choice.line)[index] < COLLAPSED else "its models"
    number = f" in {seeds} of {data.summary['seeds'][choice.line]} seeds" if which == "its models" else ""
    do_not = "Do not use it" if not number else "Do not rely on it"
    return (
        f"Beware: on the test rows {which} collapsed{number}, to nearly one answer for everybody, although"
        f" not on the validation rows. {do_not}; {NEXT_STEPS[COLLAPSE][0].lower()}{NEXT_STEPS[COLLAPSE][1:]}"
    )


def _majority(data: ReportData, choice: RecommendedModel) -> str:
    index = data.seeds_of(choice.line).index(choice.seed)
    accuracy, balanced = (data.mean(name, choice.line) for name in ("accuracy", "balanced_accuracy"))
    labels = data.counts[data.models_of(choice.line)[index]].sum(axis=(0, 2))
    saved, majority = data.per_seed("accuracy", choice.line)[index], labels.max() / labels.sum()
    if accuracy > data.majority and balanced > 0.5:
        if saved > majority:
            return ""
        return (
            f"Beware: the saved model's accuracy ({saved:.3f}) is not above the majority baseline"
            f" ({majority:.3f}), one answer for everybody."
        )
    if balanced <= 0.5:
        return f"Beware: its balanced accuracy ({balanced:.3f}) is no better than one answer for everybody."
    return (
        f"Beware: its accuracy ({accuracy:.3f}) is not above the majority baseline ({data.majority:.3f}),"
        f" one answer for everybody; its balanced accuracy is {balanced:.3f} (0.5)."
    )


def _by_group(data: ReportData, choice: RecommendedModel, candidates: Sequence[Candidate]) -> str:
    """What thresholds by group would reach, which are shown apart; or that the chosen model has them."""
    law = "Each group has a threshold of its own, which the law may forbid."
    if candidates[choice.line].needs_group:
        return law
    usable = [
        line
        for line, candidate in enumerate(candidates)
        if candidate.needs_group and not candidate.rejected_because
    ]
    if not usable:
        return ""
    best = max(usable, key=lambda line: candidates[line].fairness)
    shown = ("accuracy",) if data.flaws[best] else (data.objective, "accuracy")
    numbers = ", ".join(f"{name_of(metric)} {data.mean(metric, best):.3f}" for metric in shown)
    return f"Shown apart: {data.names[best]} has {numbers}. {law}"


def _trade_off(data: ReportData, choice: RecommendedModel, candidates: Sequence[Candidate]) -> str:
    """A much fairer strategy that the rule does not let in: for the reader to weigh."""
    chosen, metric = candidates[choice.line], data.objective
    fairer = [
        line
        for line, other in enumerate(candidates)
        if other.rejected_because and not other.flaw and other.needs_group <= chosen.needs_group
        if other.fairness >= chosen.fairness + MIN_GAIN
    ]
    if not fairer:
        return ""
    best = max(fairer, key=lambda line: candidates[line].fairness)
    changes = _changes(data, best, choice.line, (metric, "accuracy", "balanced_accuracy"))
    return (
        f"A trade-off to weigh: {data.names[best]}, not recommended, is fairer on the validation rows."
        f" Compared with {choice.name}, its {changes} on the test rows{_means(data)}."
    )


def paired_tests(data: ReportData, reference: int) -> dict[str, Any]:
    """Paired tests over seeds of every strategy against one of them, corrected for their number."""
    metrics = list(dict.fromkeys((data.objective, "accuracy", "mcc")))
    rows: list[dict[str, Any]] = []
    usable = [line for line, flaw in enumerate(data.flaws) if not flaw]  # others say nothing by their numbers
    others = [
        line
        for line in usable
        if reference in usable and line != reference and data.seeds_of(line) == data.seeds_of(reference)
    ]
    for metric in metrics:
        of_metric = [_test(data, line, reference, metric) for line in others]
        p_values = [math.nan if row["p"] is None else row["p"] for row in of_metric]
        for row, adjusted in zip(of_metric, holm(p_values) if p_values else (), strict=True):
            row["p-adjusted"] = float(adjusted) if math.isfinite(adjusted) else None
            row["said"] = _difference(row)
        rows += of_metric
    compared = len(data.names) - 1
    correction = f"Holm, over {compared} {'strategy' if compared == 1 else 'strategies'} for each measure"
    return {"against": data.names[reference], "metrics": metrics, "correction": correction, "rows": rows}


def _test(data: ReportData, line: int, reference: int, metric: str) -> dict[str, Any]:
    own, other = data.per_seed(metric, line), data.per_seed(metric, reference)
    test = paired(own, other, RESPLIT, data.variance_of_difference(metric, line, reference))
    widest = 2.0 if metric == "mcc" else 1.0  # no difference is larger
    ends = {
        name: min(max(float(value), -widest), widest)
        for name, value in zip(("value", "low", "high"), test[:3], strict=True)
    }
    return {
        "strategy": data.names[line],
        "line": line,
        "against": data.names[reference],
        "metric": metric,
        **{name: value if math.isfinite(value) else None for name, value in ends.items()},
        "wins": int(test.wins),
        "seeds": len(own),
        "p": float(test.p) if math.isfinite(test.p) else None,
    }


def _difference(row: Mapping[str, Any]) -> str:
    """What a paired test says."""
    if row["p-adjusted"] is None:
        if row["seeds"] < 2:
            return "cannot be tested: only one seed"
        equal = "the same difference in all seeds" if row["value"] is not None else "undefined"
        return f"cannot be tested: {equal}"
    if row["p-adjusted"] >= SIGNIFICANT:
        return "may be chance" if row["p"] >= SIGNIFICANT else "may be chance, with so many comparisons"
    return "higher" if row["value"] > 0 else "lower"
