"""What users can choose reaches no shell, forges no line and moves no cursor, wherever a command, a reason or a line is made."""

from __future__ import annotations

import ast
import logging
import sys
from pathlib import Path

import pytest

from aistation_slurm import log_line
from aistation_slurm.findings import Action, Finding, Status, drain_reason
from aistation_slurm.node import nodelog
from aistation_slurm.slurm import tags
from aistation_slurm.slurm.command import run

SOURCES = sorted((Path(__file__).resolve().parents[3] / "aistation_slurm").rglob("*.py"))
HOSTILE = {
    "line end": "x\nais:gpu.lost GPU0",
    "carriage return": "x\rJobId=1",
    "percent": "%s %n %1$n {x} %(name)s",
    "quotes": "' \" \\",
    "substitution": "$(touch /tmp/aistation-owned)",
    "backticks": "`touch /tmp/aistation-owned`",
    "escape": "\x1b[2J\x9b31m",
    "separators": "a;b|c&d>e<f",
    "unicode line ends": "a\u2028b\u0085c",
    "not utf-8": b"\xff\xfe".decode("utf-8", "surrogateescape"),
    "end of a note": "] [ais: held",
}


def printable(text: str) -> bool:
    return all(" " <= char <= "~" for char in text)


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_reason_is_one_line_that_quotes_nothing(hostile: str) -> None:
    for subject, evidence in ((hostile, "x"), ("x", hostile)):
        reason = drain_reason(
            Finding("gpu.xid", Status.FAIL, subject, evidence, Action.REBOOT), node="gpu1", boot_id="b"
        )
        assert printable(reason)
        assert not set(reason) & set("\"'`\\")
        assert reason.startswith("ais:gpu.xid ")


def test_a_line_of_the_hooks_stays_one_line(hostile: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nodelog.say("gate", f"job {hostile}", str(tmp_path), socket_path=str(tmp_path / "none"))
    lines = (tmp_path / "hooks.log").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 2
    assert printable(lines[0])
    assert capfd.readouterr().err.count("\n") == 1


def test_a_record_of_the_daemons_is_one_line(hostile: str) -> None:
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, "job %s", (hostile,), None)
    line = log_line.OneLine("%(levelname)s %(message)s").format(record)
    assert line.isprintable()
    assert line.startswith("WARNING job ")
    try:
        raise ValueError(hostile)
    except ValueError:
        record.exc_info = sys.exc_info()
    _, *rest = log_line.OneLine("%(message)s").format(record).split("\n")
    assert rest
    assert all(line.startswith("  | ") and line.isprintable() for line in rest)


def test_a_note_in_a_comment_is_one_note(hostile: str) -> None:
    comment = tags.comment_with("the user's own", hostile)
    assert printable(comment)
    assert comment.count("[ais: ") == 1
    assert comment.endswith("]")


def test_a_command_gets_it_as_one_word(hostile: str) -> None:
    word = hostile.encode("utf-8", "surrogateescape")
    code = "import os, sys; print(len(sys.argv), os.fsencode(sys.argv[1]).hex())"
    assert run([sys.executable, "-c", code, hostile], timeout_s=60).split() == ["2", word.hex()]


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: "/".join(p.parts[-2:]))
def test_no_command_goes_through_a_shell(source: Path) -> None:
    """And none of the calls that run text as a program or unpickle it."""
    forbidden = {"system", "popen", "getoutput", "getstatusoutput", "eval", "exec", "create_subprocess_shell"}
    for call in (
        node for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
    ):
        module = (
            call.func.value.id if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) else ""
        )
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        assert not (name in forbidden and module in ("", "os", "subprocess", "asyncio")), f"line {call.lineno}: {name}"
        assert module not in ("pickle", "marshal", "shelve"), f"line {call.lineno}: {module}"
        for keyword in call.keywords:
            shell = keyword.arg == "shell" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            )
            assert not shell, f"line {call.lineno}: shell="
