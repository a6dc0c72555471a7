"""The journal as a file: where it may lie, its schema and migrations, what is kept how long, and whether it still is there.

Errors of SQLite come out as JournalError, in words that name the file and the cure.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from aistation_slurm.errors import JournalError, JournalLost
from aistation_slurm.recovery.local_disk import network_filesystem

__all__ = ["JournalFile"]

SCHEMA = 3
BUSY_S = 5.0
"""Wait for another process that holds the database (a reader of ``aistation incidents`` never does)."""

_MIGRATIONS = {
    2: (
        "ALTER TABLE attempts ADD COLUMN bad TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE attempts ADD COLUMN settled REAL",
        "UPDATE attempts SET settled=COALESCE(calm_since, ended) WHERE state NOT IN ('running', 'ended')",
        "CREATE TABLE exclusions (cluster TEXT NOT NULL, job_id INTEGER NOT NULL, node TEXT NOT NULL, since REAL NOT NULL, "
        "PRIMARY KEY (cluster, job_id, node))",
    ),
}
"""From this schema to the next, one statement each. Schema 1 was never released."""


class JournalFile:
    """An open database with the right schema. ``path`` must be on a local disk (SQLite's WAL needs shared memory)."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        with self.translated():
            if read_only:
                self._require_readable()
                self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None)
            else:
                self._prepare_file()
                self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
                self._db.execute("PRAGMA journal_mode=WAL")
                # FULL: what is committed survives a power cut, else a requeue could be repeated after it
                self._db.execute("PRAGMA synchronous=FULL")
            self._db.row_factory = sqlite3.Row
            try:
                self._check_schema(read_only)
            except BaseException:
                self._db.close()
                raise
        self._identity = self._file()

    def _require_readable(self) -> None:
        """SQLite says the same "unable to open" for a missing file and for one that is somebody else's."""
        try:
            os.close(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            raise JournalError(f"{self.path}: no journal yet; the watchdog makes it when it first runs") from None
        except OSError as exc:
            raise JournalError(
                f"{self.path}: {exc.strerror}; it is for root and the watchdog's user (aistation explain JOB works for all)"
            ) from exc

    def _prepare_file(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise JournalError(
                f"{self.path.parent}: cannot be made: {exc.strerror}; make it for the watchdog's user"
            ) from exc
        kind = network_filesystem(self.path.parent)
        if kind:
            raise JournalError(
                f"{self.path}: lies on {kind}, a network file system; set watchdog.journal to a local disk"
            )
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError as exc:
            raise JournalError(
                f"{self.path}: cannot be opened: {exc.strerror}; it has to belong to the watchdog's user"
            ) from exc

    def _check_schema(self, read_only: bool) -> None:
        known = self._db.execute("SELECT name FROM sqlite_master WHERE name='meta'").fetchone()
        if known is None and not read_only:
            text = resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")
            self._db.executescript(f"BEGIN IMMEDIATE;\n{text}\nCOMMIT;")
        row = self._db.execute("SELECT value FROM meta WHERE key='schema'").fetchone()
        found = int(row[0]) if row is not None and str(row[0]).isdigit() else 0
        if not read_only and found in _MIGRATIONS:
            found = self._migrate(found)
        # an older reader's columns are all there in a newer journal's tables, and the other way round
        if found != SCHEMA and not (read_only and found in _MIGRATIONS):
            raise JournalError(
                f"{self.path}: schema {found or 'none'}, this version writes {SCHEMA}; move it aside or update aistation"
            )

    def _migrate(self, found: int) -> int:
        """All steps in one transaction: killed in the middle, the old journal is still there."""
        with self.transaction():
            while found in _MIGRATIONS:
                for statement in _MIGRATIONS[found]:
                    self._db.execute(statement)
                found += 1
            self._db.execute("UPDATE meta SET value=? WHERE key='schema'", (str(found),))
        return found

    def _file(self) -> tuple[int, int]:
        found = os.stat(self.path)
        return found.st_dev, found.st_ino

    def require_present(self) -> None:
        """Raises JournalLost where the file was removed or replaced: what is written now goes nowhere."""
        try:
            same = self._file() == self._identity
        except OSError:
            same = False
        if not same:
            raise JournalLost(
                f"{self.path}: was removed or replaced while in use; start the watchdog anew, it goes on from what Slurm shows"
            )

    def forget_before(self, time: float) -> int:
        """Remove what is older than unix ``time`` and over; returns the number of rows."""
        with self.transaction():
            gone = self._db.execute("DELETE FROM incidents WHERE time<?", (time,)).rowcount
            gone += self._db.execute("DELETE FROM exclusions WHERE since<?", (time,)).rowcount
            old = "start_time<? AND state NOT IN ('running', 'ended')"
            keys = f"SELECT cluster, job_id, start_time FROM attempts WHERE {old}"  # noqa: S608
            gone += self._db.execute(
                f"DELETE FROM actions WHERE (cluster, job_id, start_time) IN ({keys})",  # noqa: S608
                (time,),
            ).rowcount
            gone += self._db.execute(f"DELETE FROM attempts WHERE {old}", (time,)).rowcount  # noqa: S608
        return gone

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of SQLite in words."""
        try:
            yield
        except sqlite3.Error as exc:
            raise JournalError(f"{self.path}: {exc}; check the disk's free space and the file's owner") from exc

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                # a full disk has rolled it back already
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()
