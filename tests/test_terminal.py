"""What reaches a terminal cannot steer it, and reads the same without colour."""

from __future__ import annotations

import io

import pytest

from cactus.terminal import STYLES, ProgressLine, TokenPrinter, harmless, one_line, styled, wants_color
from cactus.trace import Status, Token


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def token(text: str, status: Status = "bonus") -> Token:
    judged = {"accept_prob": 1.0, "uniform": 0.5} if status in ("accepted", "rejected") else {}
    return Token(id=1, text=text, status=status, position=0, **judged)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc é 猫 👩\u200d🚀", "a\nb\tc é 猫 👩\u200d🚀"),
        ("\x1b[2J", "␛[2J"),
        ("a\rb\x08\x07\x00", "a␍b␈␇␀"),
        ("\x7f\x9b2J", "\\x7f\\x9b2J"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\ud800", "\\ud800"),
        ("\ufffd", "\ufffd"),
    ],
)
def test_control_characters_become_visible(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_errors_take_one_line() -> None:
    assert one_line("a\n  b\x1b[31m") == "a b␛[31m"


def test_color_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_color("auto", Terminal())
    assert not wants_color("auto", io.StringIO())
    assert wants_color("always", io.StringIO())
    assert not wants_color("never", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color("auto", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color("auto", Terminal())
    assert wants_color("always", Terminal())


def test_every_status_has_a_sign_beside_its_colour() -> None:
    signs = {status: set(style.split(";")) & {"1", "4", "9"} for status, style in STYLES.items()}
    assert all(signs[status] for status in STYLES if status != "sampled")
    assert len({frozenset(signs[status]) for status in ("accepted", "recovered", "bonus")}) == 3


def test_styles_end_before_line_breaks() -> None:
    assert styled("a\n\nb", "bonus") == "\x1b[36;1;4ma\x1b[0m\n\n\x1b[36;1;4mb\x1b[0m"


def printed(stream: io.StringIO, color: bool, drafts: bool = False) -> str:
    printer = TokenPrinter(stream, color, drafts)
    printer.write([token("a\x1b", "accepted"), token("x\n", "rejected"), token("y", "discarded")])
    printer.write([token("b", "recovered")])
    return stream.getvalue()


def test_a_pipe_gets_the_exact_text() -> None:
    assert printed(io.StringIO(), color=False) == "a\x1bb"


def test_a_terminal_never_gets_the_models_escapes() -> None:
    assert printed(Terminal(), color=False) == "a␛b"
    assert printed(Terminal(), color=True) == "\x1b[32;4ma␛\x1b[0m\x1b[33;1mb\x1b[0m"
    assert printed(io.StringIO(), color=True) == "\x1b[32;4ma␛\x1b[0m\x1b[33;1mb\x1b[0m"


def test_drafts_are_shown_on_request() -> None:
    assert "\x1b[31;9mx⏎\x1b[0m" in printed(Terminal(), color=True, drafts=True)
    assert printed(io.StringIO(), color=False, drafts=True) == "a\x1b[-x\n-][-y-]b"


def test_progress_in_a_log_is_one_line_a_step() -> None:
    log = io.StringIO()
    progress = ProgressLine(log)
    for megabytes in range(3):
        progress(megabytes / 3, f"downloading it: {megabytes} of 3 MB")
    progress(0.9, "converting it, once (1 s of about 20)")
    progress(0.95, "converting it, once (2 s of about 20)")
    progress.close()
    assert log.getvalue().splitlines() == ["downloading it: 0 of 3 MB", "converting it, once (1 s of about 20)"]


def test_progress_on_a_terminal_is_a_bar_that_goes_away() -> None:
    terminal = Terminal()
    progress = ProgressLine(terminal)
    progress(None, "looking")
    progress(0.5, "downloading it")
    assert "50%" in terminal.getvalue() and "downloading it" in terminal.getvalue()
    progress.close()
    assert terminal.getvalue().endswith("\r")
