"""A site's own layout, as the configuration describes it (layouts.py): a pattern for names, a marker, files that must be there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.checkpoints.folder import Folder, plain
from aistation_slurm.checkpoints.judgement import Judgement, ranks_text
from aistation_slurm.checkpoints.layouts import Layout, as_regex
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Found, Grade

__all__ = ["SiteReader"]

_MOST_FILES = 100_000
_MOST_SHARDS = 1_000_000


@dataclass(frozen=True)
class SiteReader:
    """A reader (readers/__init__.py) made from a layout."""

    layout: Layout

    @property
    def NAME(self) -> str:
        return self.layout.name

    def find(self, folder: Folder) -> Found:
        """Names that match the pattern; or the folder itself where it has such a name and holds what the layout asks for."""
        names = (*folder.dirs, *folder.files, *folder.dangling)
        steps = {name: int(match["step"]) for name in names if (match := self.layout.names.fullmatch(name))}
        for name in list(steps):  # ckpt_7.DONE also matches ckpt_{step}*
            for marker in self._markers(name, steps.get(name, 0)):
                if marker != name and (marker in folder.files or marker in folder.dangling):
                    steps.pop(marker, None)
        parent, own = os.path.split(folder.path)
        match = self.layout.names.fullmatch(own)
        if match and not steps and self._is_one(folder):
            return Found([Candidate(folder.path, parent, self.NAME, int(match["step"]), own, template=self._template)])
        return Found([self._candidate(folder, name, step) for name, step in steps.items()])

    @property
    def _template(self) -> str:
        return self.layout.resume_args

    def _candidate(self, folder: Folder, name: str, step: int) -> Candidate:
        link = folder.dangling.get(name)
        return Candidate(folder.child(name), folder.path, self.NAME, step, name, link=link, template=self._template)

    def _is_one(self, folder: Folder) -> bool:
        """The folder that was given is itself one checkpoint, rather than a run that has such a name."""
        return any(
            re.fullmatch(
                as_regex(pattern.partition("/")[0], {"step": r"[0-9]+", "name": ".*", "i": r"[0-9]+", "n": r"[0-9]+"}),
                name,
            )
            for pattern in (self.layout.marker, self.layout.shards, *self.layout.require)
            if pattern
            for name in folder.dirs | folder.files
        )

    def _markers(self, name: str, step: int) -> list[str]:
        """Names of the marker beside a checkpoint: as its pattern says, or behind the checkpoint's own name."""
        marker = self.layout.marker
        if not marker:
            return []
        if "{" in marker:
            return [self._marker(name, step)]
        return [f"{name}.{marker}", f"{name}{marker}"]

    def _marker(self, name: str, step: int) -> str:
        return self.layout.marker.replace("{step}", _digits(self.layout, name, step)).replace("{name}", name)

    def judge(self, candidate: Candidate) -> Checkpoint:
        """Valid when its marker is there, and every required file and every shard is there with content."""
        judgement = Judgement(candidate)
        if candidate.link is not None:
            judgement.problem(f"is a dangling link to {plain(candidate.link)}")
        elif os.path.isdir(candidate.path):
            folder = judgement.open()
            if folder is not None:
                self._judge_marker(judgement, candidate, folder)
                self._judge_folder(judgement, folder)
        else:
            self._judge_marker(judgement, candidate, None)
            _judge_file(judgement, candidate.path)
        return judgement.checkpoint()

    def _judge_marker(self, judgement: Judgement, candidate: Candidate, inside: Optional[Folder]) -> None:
        if not self.layout.marker:
            return
        name, step = candidate.tag, candidate.step or 0
        marker = self._marker(name, step)
        if inside is not None and marker in inside.files:
            return
        parent = os.path.dirname(candidate.path)
        if not any(os.path.isfile(f"{parent}/{beside}") for beside in self._markers(name, step)):
            judgement.problem(f"{plain(marker)} is missing, inside and beside it: saving did not end")

    def _judge_folder(self, judgement: Judgement, folder: Folder) -> None:
        step = re.escape(_digits(self.layout, judgement.candidate.tag, judgement.candidate.step or 0))
        for pattern in self.layout.require:
            paths = list(_matching(judgement, folder, pattern, {"step": step}))
            for path in paths:
                _judge_file(judgement, path)
            if not paths:
                judgement.problem(f"no file {plain(pattern)} is in it")
        if self.layout.shards:
            self._judge_shards(judgement, folder)

    def _judge_shards(self, judgement: Judgement, folder: Folder) -> None:
        head, _, last = self.layout.shards.rpartition("/")
        groups = {"i": r"(?P<i>[0-9]{1,7})", "n": r"(?P<n>[0-9]{1,7})"}
        whole = re.compile((f"{as_regex(head, groups)}/" if head else "") + as_regex(last, groups))
        present: dict[int, set[int]] = {}
        loose = {"i": r"[0-9]{1,7}", "n": r"[0-9]{1,7}"}
        for path in _matching(judgement, folder, self.layout.shards, loose):
            match = whole.fullmatch(path[len(folder.path) + 1 :])
            if match:
                _judge_file(judgement, path)
                count = int(match["n"]) if "{n}" in self.layout.shards else 0
                present.setdefault(count, set()).add(int(match["i"]))
        if not present:
            judgement.problem(f"no shard {plain(self.layout.shards)} is in it")
        if len(present) > 1:
            counts = ", ".join(str(count) for count in sorted(present))
            judgement.problem(f"has shards of different saves side by side (of {counts})")
        for count, numbers in present.items():
            first = 0 if 0 in numbers or (count and count not in numbers) else 1
            last_number = count - 1 + first if count else max(numbers)
            if last_number > _MOST_SHARDS:
                judgement.problem(f"a shard says that {count} belong")
                continue
            missing = set(range(first, last_number + 1)) - numbers
            if missing:
                judgement.missing_ranks |= missing
                judgement.problem(f"shards {ranks_text(missing)}{f' of {count}' if count else ''} are missing")


def _judge_file(judgement: Judgement, path: str) -> None:
    """A file that the layout asks for. Unlike elsewhere, one without a byte is damage even where all are like that."""
    if judgement.data(path).grade is Grade.EMPTY:
        base = judgement.candidate.path
        judgement.problem("is empty" if path == base else f"{plain(os.path.relpath(path, base))} is empty")


def _digits(layout: Layout, name: str, step: int) -> str:
    """The step as it stands in the name, with its leading zeros."""
    match = layout.names.fullmatch(name)
    return match["step"] if match else str(step)


def _matching(judgement: Judgement, folder: Folder, pattern: str, values: dict[str, str]) -> Iterable[str]:
    """Paths of the regular files below ``folder`` that match; the pattern is taken apart at its slashes."""
    head, _, rest = pattern.partition("/")
    wanted = re.compile(as_regex(head, values))
    if not rest:
        yield from (folder.child(name) for name in sorted(folder.files)[:_MOST_FILES] if wanted.fullmatch(name))
        for name in sorted((*folder.dangling, *folder.special)):
            if wanted.fullmatch(name):
                judgement.problem(
                    f"{plain(name)} is {'a dangling link' if name in folder.dangling else 'no regular file'}"
                )
        return
    for name in sorted(folder.dirs):
        if wanted.fullmatch(name):
            below = judgement.folder(folder.child(name))
            if below is not None:
                yield from _matching(judgement, below, rest, values)
