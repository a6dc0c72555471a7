"""Log records of the daemons: one line each, whatever a job's name, a path or Slurm's answer holds."""

from __future__ import annotations

import logging

__all__ = ["OneLine", "one_line", "start"]


def one_line(text: str) -> str:
    """Control characters, line ends of Unicode and what is no text as escapes (``\\n``, ``\\x1b``); other letters stay."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class OneLine(logging.Formatter):
    """A traceback follows on lines that begin with a bar, so that none of them can be taken for a record."""

    def format(self, record: logging.LogRecord) -> str:
        first, *rest = super().format(_plain(record)).split("\n")
        return "\n".join([one_line(first), *(f"  | {one_line(line)}" for line in rest)])


def _plain(record: logging.LogRecord) -> logging.LogRecord:
    copy = logging.makeLogRecord(record.__dict__)
    copy.msg, copy.args = one_line(record.getMessage()), None
    return copy


def start(level: int, form: str) -> None:
    """What the daemons do instead of ``logging.basicConfig``: to stderr, a record a line."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine(form))
    logging.basicConfig(level=level, handlers=[handler])
