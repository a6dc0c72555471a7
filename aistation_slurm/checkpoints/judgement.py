"""Collects what the files of one checkpoint show and turns it into a Checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from aistation_slurm.checkpoints.folder import Folder, mtime, plain, read_folder
from aistation_slurm.checkpoints.integrity import FileVerdict, check_file
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Grade

__all__ = ["Judgement", "ranks_text"]

_SHOWN = 3


class Judgement:
    """One checkpoint under examination. Readers report facts; ``checkpoint()`` gives the verdict."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.storage = ""
        """Framework whose storage format it is, where that is not the candidate's own (``deepspeed`` inside HF)."""
        self.missing_ranks: set[int] = set()
        self.lacks: list[str] = []
        self.empty_shards: list[str] = []
        self.rewritten = ""
        """A sign, no proof, that a later save into the same folder did not end."""
        self.real_run = False
        """Something shows that a real run wrote it, so that empty data files are damage."""
        self._problems: list[str] = []
        self._doubts: list[tuple[Grade, str]] = []
        self._seen = Grade.TORN
        self._unreadable = False

    def problem(self, text: str) -> None:
        """A proof that this checkpoint cannot be loaded."""
        self._problems.append(text)

    def open(self) -> Optional[Folder]:
        """List the checkpoint's own folder; a dangling link, an empty or an unreadable one is a problem."""
        if self.candidate.link is not None:
            self.problem(f"is a dangling link to {plain(self.candidate.link)}")
            return None
        folder = self.folder(self.candidate.path)
        if folder is not None and folder.empty:
            self.problem("is an empty folder")
            return None
        return folder

    def folder(self, path: str) -> Optional[Folder]:
        """List a folder of the checkpoint; what cannot be listed is a problem."""
        try:
            return read_folder(path)
        except OSError as exc:
            self._unreadable = True
            self.problem(f"{self._name(path)} cannot be read ({exc.strerror or exc})".strip())
            return None

    def data(self, path: str) -> FileVerdict:
        """A file that holds tensors: weights, optimizer state, shards."""
        verdict = check_file(path)
        # damaged content is content: it shows that this run does not write placeholders
        self._seen = max(self._seen, Grade.CONTENT if verdict.size and verdict.grade is Grade.TORN else verdict.grade)
        self._note(path, verdict)
        return verdict

    def side(self, path: str) -> FileVerdict:
        """A file beside the tensors (JSON, ``.metadata``): must not be damaged, proves nothing about the tensors."""
        verdict = check_file(path)
        self._note(path, verdict)
        return verdict

    def shards(self, folder: Folder, names: Iterable[str]) -> dict[str, FileVerdict]:
        """Shards of which some may be empty by design (a rank with nothing to save), but not all."""
        verdicts = {name: check_file(folder.child(name)) for name in names}
        for name, verdict in sorted(verdicts.items()):
            if verdict.grade is Grade.EMPTY and not verdict.size:
                self.empty_shards.append(name)
            else:
                self._seen = max(self._seen, verdict.grade)
                self._note(folder.child(name), verdict)
        if verdicts and len(self.empty_shards) == len(verdicts):
            self._seen = max(self._seen, Grade.EMPTY)
            self._doubts.append((Grade.EMPTY, "every shard is empty"))
        return verdicts

    def _note(self, path: str, verdict: FileVerdict) -> None:
        if verdict.grade is Grade.TORN:
            self._unreadable = self._unreadable or "cannot be read" in verdict.why
            self.problem(f"{self._name(path)} {verdict.why}".strip())
        elif verdict.grade is not Grade.CONTENT:
            self._doubts.append((verdict.grade, f"{self._name(path)} {verdict.why}".strip()))

    def _name(self, path: str) -> str:
        base = self.candidate.path
        if path == base:
            return ""
        inside = path[len(base) + 1 :] if path.startswith(base + "/") else path.rpartition("/")[2]
        return plain(inside)

    def checkpoint(self) -> Checkpoint:
        """The verdict from this checkpoint's files alone; peers of the same run are compared in inspect.py."""
        grade, doubt = min(self._doubts, default=(Grade.CONTENT, ""))
        strongest = Grade.CONTENT if self.real_run else self._seen
        problems = list(self._problems)
        if not problems and doubt and grade < strongest:
            problems = [text for level, text in self._doubts if level < strongest]
        why = "; ".join(problems[:_SHOWN])
        if len(problems) > _SHOWN:
            why += f"; and {len(problems) - _SHOWN} more"
        mine = self.candidate
        return Checkpoint(
            path=Path(mine.path),
            step=mine.step,
            framework=f"{mine.framework}+{self.storage}" if self.storage else mine.framework,
            valid=not problems,
            why=why,
            mtime=mtime(mine.path),
            root=Path(mine.root),
            tag=mine.tag,
            missing_ranks=tuple(sorted(self.missing_ranks)),
            grade=grade,
            seen=strongest,
            doubt=doubt,
            lacks=tuple(self.lacks),
            empty_shards=tuple(self.empty_shards),
            unreadable=self._unreadable,
            last_resort=mine.last_resort,
            template=mine.template,
            rewritten=self.rewritten,
        )


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks for a message, at most eight of them: ``2, 5, 7``."""
    ordered = sorted(ranks)
    shown = ", ".join(str(r) for r in ordered[:8])
    return shown if len(ordered) <= 8 else f"{shown} and {len(ordered) - 8} more"
