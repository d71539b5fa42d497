"""Input that breaks a rule: the sentence that users read, in full, and nothing left behind."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from builders import people
from command import Outcome
from fairfate.engine.attack import parse_attack
from fairfate.errors import InputError, check
from fairfate.fairness.objective import parse_objective
from fairfate.federation.partition import parse_partition
from fairfate.federation.validation_source import parse_validation_source
from fairfate.strategies import parse_spec

MESSAGES = Path(__file__).parent / "messages.txt"
PARTS = [part.partition("]\n") for part in MESSAGES.read_text("utf-8").split("\n[")]


def unescaped(text: str) -> str:
    r"""With \x1b and \udcff as the characters that they stand for."""
    return text.encode("ascii", "backslashreplace").decode("unicode_escape")


def message_of_command(line: str, fairfate: Callable[..., Outcome]) -> str:
    code, out, err = fairfate(*(unescaped(word) for word in shlex.split(line.replace("\\", "\\\\"))))
    assert (code, out) == (2, ""), line
    assert sorted(path.name for path in Path().iterdir()) == ["p.csv"], line
    return err


def message_of_config(line: str, fairfate: Callable[..., Outcome]) -> str:
    data = "" if line.startswith("data") else 'data = "synthetic:rows=300"\n'
    Path("c.toml").write_text(data + line.replace("; ", "\n"))
    code, out, err = fairfate("run", "--config", "c.toml")
    assert (code, out) == (2, ""), line
    Path("c.toml").unlink()
    assert sorted(path.name for path in Path().iterdir()) == ["p.csv"], line
    return err


def message_of(parse: Callable[[str], object]) -> Callable[..., str]:
    def message(line: str, fairfate: Callable[..., Outcome]) -> str:
        with pytest.raises(InputError) as error:
            parse("" if line == "''" else line)
        return str(error.value)

    return message


READERS = {
    "commands": message_of_command,
    "configs": message_of_config,
    "strategies": message_of(lambda text: parse_spec(text, "eqo")),
    "objectives": message_of(parse_objective),
    "attacks": message_of(parse_attack),
    "partitions": message_of(parse_partition),
    "validation sources": message_of(parse_validation_source),
}


@pytest.mark.parametrize("part", READERS)
def test_invalid_input_gets_the_sentence_of_the_snapshot(part: str, fairfate, tmp_path: Path) -> None:
    people().to_csv(tmp_path / "p.csv", index=False)
    (text,) = [text.strip() for name, _, text in PARTS if name == part]
    expected, result = text.splitlines(), []
    for line in expected:
        given = line.partition(" =>")[0]
        message = READERS[part](given, fairfate).strip()
        result.append(f"{given} => {message}".replace("\n", "\\n"))
    if os.environ.get("FAIRFATE_WRITE_MESSAGES"):
        MESSAGES.write_text(MESSAGES.read_text("utf-8").replace(text, "\n".join(result)), "utf-8")
    assert result == expected


def test_an_error_names_its_argument_rule_and_value() -> None:
    check(1 > 0, "sigma must be > 0", 1)
    with pytest.raises(InputError, match=r"^sigma must be > 0, got -1$") as error:
        check(-1 > 0, "sigma must be > 0", -1)
    assert (error.value.argument, error.value.rule, error.value.value) == ("sigma", "be > 0", "-1")
