"""Runs under differential privacy: what they depend on, what they record, what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fairfate
from fairfate.cli import main as cli
from fairfate.errors import InputError
from fairfate.privacy.ledger import entries_of, spent

SMALL = {
    "data": "synthetic:rows=1500",
    "clients": 4,
    "per_round": 2,
    "rounds": 4,
    "epochs": 2,
    "seeds": (1, 2),
}
PRIVATE = {**SMALL, "privacy": "epsilon=8,noise=500", "strategies": ["fedavg", "fair_fate:keep=0"]}
FAMILY = ["fedavg", "fedavg_lr", "fairgrad", "fedavg_gr", "fedavg+average+thresholds:from=clients"]


def released(run: fairfate.Run) -> dict[tuple[str, int], bytes]:
    return {
        key: b"".join(model.arrays[name].tobytes() for name in sorted(model.arrays))
        for key, model in run.models.items()
    }


def test_private_run_is_the_same_whatever_else_runs_beside_and_in_how_many_processes() -> None:
    together = fairfate.run(**{**PRIVATE, "strategies": FAMILY}, jobs=1)  # type: ignore[arg-type]
    apart = fairfate.run(**{**PRIVATE, "strategies": FAMILY[:1]}, jobs=2)  # type: ignore[arg-type]
    assert released(apart)["fedavg", 1] == released(together)["fedavg", 1]
    alone = fairfate.run(**{**PRIVATE, "strategies": FAMILY[4:]}, jobs=1)  # type: ignore[arg-type]
    name = "fedavg+average+thresholds"
    assert released(alone)[name, 2] == released(together)[name, 2]
    assert np.array_equal(alone.models[name, 2].thresholds, together.models[name, 2].thresholds)


def test_noise_is_another_for_every_seed_and_strategy_and_privacy_changes_the_model() -> None:
    private, plain = fairfate.run(**PRIVATE, jobs=1), fairfate.run(**{**PRIVATE, "privacy": None}, jobs=1)  # type: ignore[arg-type]
    models, others = released(private), released(plain)
    assert len({*models.values(), *others.values()}) == 8


def test_every_client_s_ledger_keeps_its_budget(tmp_path: Path) -> None:
    fairfate.run(**{**PRIVATE, "strategies": FAMILY}, out=tmp_path / "run", jobs=1)  # type: ignore[arg-type]
    run = fairfate.load_run(tmp_path / "run")
    assert set(run.ledger["strategy"]) == set(run.names)
    assert set(run.ledger["release"]) == {"update", "counts", "sums", "histogram"}
    totals = [spent(entries_of(own), 1e-5) for _, own in run.ledger.groupby(["seed", "strategy", "client"])]
    assert len(totals) == 2 * 5 * 4
    assert max(totals) <= 8 + 1e-9
    assert max(totals) > 7.9


def test_client_sits_out_once_its_participations_are_over(tmp_path: Path) -> None:
    options = {**PRIVATE, "strategies": ["fedavg"], "privacy": "epsilon=8,noise=500,participations=1"}
    run = fairfate.run(**options, jobs=1)  # type: ignore[arg-type]
    asked = run.clients.groupby(["seed", "name"]).size()
    assert asked.max() == 1
    updates = run.ledger[run.ledger["release"] == "update"]
    batch = np.minimum(updates["rows"], run.config["batch-size"])  # a small client's batch is all its rows
    assert (updates["times"] == np.ceil(updates["rows"] * 2 / batch)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"privacy": "epsilon=0.01"}, "privacy must leave every client enough rows of seed 1"),
        ({"strategies": ["ffalm"]}, "strategy must be one with a guarantee under privacy, got ffalm"),
        ({"validation_from": "clients"}, "validation-from must be server with privacy"),
        ({"attack": "sign_flip"}, "attack must be left out with privacy"),
        ({"min_cell": 10}, "min-cell must be left out with privacy"),
        ({"privacy": "epsilon=-1"}, "privacy: epsilon must be > 0, got -1"),
        ({"privacy": "epsilon=1,delta=1"}, "privacy: delta must be in (0, 1), got 1"),
    ],
)
def test_what_has_no_guarantee_is_refused_before_anything_is_written(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as refused:
        fairfate.run(**{**PRIVATE, **options}, out=tmp_path / "run", jobs=1)  # type: ignore[arg-type]
    assert message in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_too_small_client_is_named_with_the_epsilon_that_it_could_have() -> None:
    with pytest.raises(InputError, match=r"client \d \(\d+ rows: \d"):
        fairfate.run(**{**PRIVATE, "privacy": "epsilon=0.01"}, jobs=1)  # type: ignore[arg-type]


def test_estimate_is_among_the_notes() -> None:
    run = fairfate.run(**PRIVATE, jobs=1)  # type: ignore[arg-type]
    assert any("each client spends at most epsilon 8 at delta 1e-05" in note for note in run.notes)


def test_interrupted_private_run_continues_to_the_same_bytes(tmp_path: Path) -> None:
    whole = fairfate.run(**PRIVATE, out=tmp_path / "whole", jobs=1)  # type: ignore[arg-type]
    rounds = 0

    def stop(amount: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fairfate.run(**PRIVATE, out=tmp_path / "cut", jobs=1, progress=stop)  # type: ignore[arg-type]
    again = fairfate.run(**PRIVATE, out=tmp_path / "cut", jobs=1)  # type: ignore[arg-type]
    assert released(again) == released(whole)
    assert (tmp_path / "cut" / "ledger.csv").read_bytes() == (tmp_path / "whole" / "ledger.csv").read_bytes()


def test_run_with_another_budget_does_not_continue(tmp_path: Path) -> None:
    fairfate.run(**PRIVATE, out=tmp_path / "run", jobs=1)  # type: ignore[arg-type]
    (tmp_path / "run" / "summary.csv").unlink()
    with pytest.raises(InputError, match="another data-notes, privacy"):
        fairfate.run(**{**PRIVATE, "privacy": "epsilon=9,noise=500"}, out=tmp_path / "run", jobs=1)  # type: ignore[arg-type]


def test_report_card_and_command_state_the_guarantee_and_what_is_outside_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fairfate.run(**PRIVATE, out=tmp_path / "run", jobs=1)  # type: ignore[arg-type]
    page = Path(run.report(tmp_path / "report.html")).read_text()
    monkeypatch.setattr("sys.argv", ["fairfate", "privacy", str(tmp_path / "run"), "--seed", "2"])
    assert cli.run_command() in (0, None)
    printed = " ".join(capsys.readouterr().out.split())
    assert "Spent of epsilon 8 at delta 1e-05, seed 2" in printed
    for text in (" ".join(page.split()), printed):
        assert "Differential privacy of single rows: epsilon 8, delta 1e-05" in text
        assert "Outside of the guarantee: the number of a client" in text
    plain = fairfate.run(**{**PRIVATE, "privacy": None}, out=tmp_path / "plain", jobs=1)  # type: ignore[arg-type]
    assert "Outside of the guarantee" not in Path(plain.report(tmp_path / "plain.html")).read_text()
    monkeypatch.setattr("sys.argv", ["fairfate", "privacy", str(tmp_path / "plain")])
    assert cli.run_command() == 2
    assert "which has no budget" in " ".join(capsys.readouterr().err.split())


def test_model_card_states_epsilon_delta_the_notion_and_what_is_outside(tmp_path: Path) -> None:
    from fairfate.privacy.budget import OUTSIDE

    fairfate.run(**PRIVATE, out=tmp_path / "run", jobs=1)  # type: ignore[arg-type]
    run_cli("report", str(tmp_path / "run"), "--card", "--out", str(tmp_path / "card.md"))
    text = " ".join((tmp_path / "card.md").read_text().split())
    assert "Differential privacy of single rows: epsilon 8, delta 1e-05" in text
    assert "learns hardly more of any one row than if an empty one stood in its place" in text
    assert OUTSIDE in text


def test_everything_that_the_page_has_outside_of_the_guarantee_is_in_reports_too() -> None:
    from fairfate.privacy.budget import OUTSIDE

    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    listed = " ".join(
        page.partition("**Outside of the guarantee**:")[2].partition("\n- ")[0].partition("\n\n")[0].split()
    )
    assert listed.count(";") == 5
    words = {"rows": "number of a client's rows", "fits": "fits", "validation": "validation and test rows"}
    words |= {"tuning": "tuning", "time": "time and memory", "floating": "floating-point"}
    for on_page, in_reports in words.items():
        assert on_page in listed
        assert in_reports in OUTSIDE


def test_command_adds_up_what_strategies_and_seeds_have_spent_of_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    text = ["group,score,hired,site"]
    for site in "abc":
        text += [
            f"{'mf'[rng.integers(2)]},{rng.normal():.3f},{'yn'[rng.integers(2)]},{site}" for _ in range(400)
        ]
    (tmp_path / "rows.csv").write_text("\n".join(text))
    options = {"data": tmp_path / "rows.csv", "target": "hired", "sensitive": "group", "favourable": "y"}
    options |= {"partition": "column:site", "rounds": 2, "seeds": (1, 2), "strategies": ["fedavg", "fedmom"]}
    run = fairfate.run(**options, privacy="epsilon=8,noise=500", out=tmp_path / "run", jobs=1)  # type: ignore[arg-type]
    run_cli("privacy", str(tmp_path / "run"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "Spent of a client's rows by all strategies and seeds, if all were released" in printed
    total = spent(entries_of(run.ledger[run.ledger["client"] == "a"]), 1e-5)
    assert total > 8
    assert f"a {total:.3f}" in printed


def test_command_says_what_to_do_with_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.toml").write_text(
        'data = "synthetic:rows=1500"\nclients = 3\nper-round = 3\nrounds = 2\nseeds = 1\n'
        'privacy = ["epsilon=8,noise=500", "none"]\nstrategy = ["fedavg", "fedmom"]\n'
    )
    run_cli("sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "sweep"), "--jobs", "1")
    run_cli("privacy", str(tmp_path / "sweep"), code=2)
    assert "a sweep, which keeps no ledgers" in " ".join(capsys.readouterr().err.split())
    (file,) = [f for f in (tmp_path / "sweep" / "configs").glob("*.toml") if "epsilon" in f.read_text()]
    run_cli("run", "--config", str(file), "--out", str(tmp_path / "run"), "--jobs", "1")
    run_cli("privacy", str(tmp_path / "run"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "of epsilon 8 at delta 1e-05, seed 1" in printed
    assert "Spent of a client's rows by all strategies of seed 1" in printed


def run_cli(*words: str, code: int = 0) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fairfate", *words])
        assert (cli.run_command() or 0) == code
