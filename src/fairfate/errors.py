"""What users are told when their input breaks a rule."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable


class InputError(ValueError):
    """Input that breaks a rule; the message names the argument, the rule and the value.

    Parameters
    ----------
    message : for the user
    argument, rule, value : its parts; read from a message "ARGUMENT must RULE, got VALUE" if not given

    Examples
    --------
    >>> import fairfate
    >>> try:
    ...     _ = fairfate.run(data="synthetic", rounds=0)
    ... except fairfate.InputError as error:
    ...     parts = str(error), error.argument, error.rule, error.value
    >>> parts
    ('rounds must be >= 1, got 0', 'rounds', 'be >= 1', '0')
    """

    argument: str
    """What was given; "" if the message is about a state, and not "ARGUMENT must RULE, got VALUE"."""
    rule: str
    """What it must be."""
    value: str
    """The value, as text; "" if nothing was given."""

    def __init__(self, message: str, argument: str = "", rule: str = "", value: str = "") -> None:
        super().__init__(message)
        form = None if argument else _FORM.fullmatch(message)
        self.argument, self.rule, self.value = form.groups("") if form else (argument, rule, value)

    def plain(self) -> InputError:
        """The same error of this class itself, which every process has, whatever made the original.

        Returns
        -------
        an error with the same message and fields

        Examples
        --------
        >>> InputError("rounds must be >= 1, got 0").plain().argument
        'rounds'
        """
        return InputError(str(self), self.argument, self.rule, self.value)


_FORM = re.compile(r"(.+?) must (.+?)(?:, got (.*))?", re.DOTALL)
"""A message about an argument."""


class ProcessDiedError(RuntimeError):
    """A process of a run was killed, or ended by itself; finished work is kept."""


class Stopped(BaseException):
    """The user of the command line wants an end: Ctrl-C, or a signal that stands for it.

    No KeyboardInterrupt, which others catch and explain in their own way.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.advice = ""
        """What is kept, and how to go on."""


MOST_LISTED, NEAREST = 20, 5
"""Known names that are all listed when another is given; of more, only the nearest are."""


def listing(names: Iterable[object], limit: int = 12) -> str:
    """Names for a message, cut short where there are many.

    >>> listing(["a", "b"])
    'a, b'
    >>> listing(range(5), limit=3)
    '0, 1, 2 and 2 more'
    """
    words = [str(name) for name in names]
    shown = ", ".join(words[:limit])
    return shown if len(words) <= limit else f"{shown} and {len(words) - limit} more"


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not among the known ones: all of these if they are few, else the nearest.

    >>> str(unknown("strategy", "fairfate", ["fedavg", "fair_fate"]))
    "unknown strategy 'fairfate'; did you mean 'fair_fate'? Known: fedavg, fair_fate"
    >>> str(unknown("column", "agee", ["age", "page", *(f"q{number}" for number in range(4000))]))
    "unknown column 'agee'; did you mean 'age'? The nearest of 4,002: age, page"
    """
    names = [str(known_name) for known_name in known]
    folded = {known_name.casefold(): known_name for known_name in reversed(names)}
    near = difflib.get_close_matches(name, names, n=NEAREST) or [
        folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=NEAREST)
    ]
    if near and len(names) > MOST_LISTED:
        hint = f"did you mean '{near[0]}'? The nearest of {len(names):,}: {listing(near)}"
    else:
        shown = listing(names, MOST_LISTED if len(names) <= MOST_LISTED else 12)
        hint = f"did you mean '{near[0]}'? Known: {shown}" if near else f"known: {shown}"
    return InputError(f"unknown {what} '{name}'; {hint}", what, f"be one of {listing(names)}", f"'{name}'")


def plain(value: object) -> str:
    """A setting as people write it, without losing a digit.

    >>> plain(1.0), plain(0.123456789), plain("sp")
    ('1', '0.123456789', 'sp')
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)


_UNSEEN = {
    *range(0x20),  # C0, with escape sequences' first
    *range(0x7F, 0xA0),  # DEL and C1
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # bidi, lines
}
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _UNSEEN}
_ESCAPES |= {ord("\t"): "\\t", ord("\r"): "\\r"}
del _ESCAPES[ord("\n")]


def shown(text: str) -> str:
    r"""A text for a terminal: characters that would steer it, or turn lines round, as escapes.

    >>> print(shown("a\x1b[31mb\u202ec"))
    a\x1b[31mb\u202ec
    """
    return text.translate(_ESCAPES)


def is_utf8(text: str) -> bool:
    r"""Whether a file can hold a text; what a shell hands on in other bytes has lone surrogates.

    >>> is_utf8("é"), is_utf8("a\udcff")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def reason_of(error: BaseException) -> str:
    """An error's kind and text, also of one whose text fails."""
    try:
        text = str(error).strip()
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_NO_MEMORY = re.compile(
    "failed to map segment|cannot allocate memory|can't start new thread|failed to launch worker thread"
    "|error return without exception set",  # of pyarrow, while it is imported
    re.I,
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, by the error or the one that it follows: libraries have their own words for it.

    >>> is_out_of_memory(ImportError("libarrow.so: failed to map segment from shared object"))
    True
    """
    while error is not None:
        known = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
        if known or _NO_MEMORY.search(reason_of(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def check(condition: bool, rule: str, value: object = "") -> None:
    """Raise InputError with the rule and the value, if there is one, unless the condition holds.

    >>> check(1 > 0, "sigma must be > 0", 1)
    """
    if not condition:
        argument, _, broken = rule.partition(" must ")
        got = "" if isinstance(value, str) and not value else f", got {value}"
        raise InputError(f"{rule}{got}", argument, broken, str(value))


def hide_examples(note: str) -> str:
    """A note without values of somebody's, which are for the owner's screen and not for a file.

    >>> hide_examples("2 groups of few rows, such as 'Tuvalu'")
    '2 groups of few rows'
    """
    return _EXAMPLE.sub("", note)


_EXAMPLE = re.compile(r",? (such as|got) '.*'( = [^\s,;]+)?")
