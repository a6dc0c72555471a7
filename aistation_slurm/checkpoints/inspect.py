"""Look at a checkpoint directory: every checkpoint, valid or why not, and the one to resume from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from aistation_slurm.checkpoints.choose import Choice, resume_args
from aistation_slurm.checkpoints.folder import Folder, MissingDirectory, mtime, plain, read_folder
from aistation_slurm.checkpoints.layouts import Layout
from aistation_slurm.checkpoints.model import Candidate, Checkpoint, Found, Grade
from aistation_slurm.checkpoints.readers import ALL, Reader, all_readers
from aistation_slurm.errors import CheckpointError

__all__ = ["FRAMEWORKS", "Inspection", "inspect"]

FRAMEWORKS = ("auto", *sorted(reader.NAME for reader in ALL))
"""Values of ``framework``; a site's own layouts (layouts.py) add theirs."""

_CLOSE_S = 2.0  # a copy made in the same save may be this much later than its original
_LOOKED_BACK = 64  # candidates compared when the newest cannot be judged by itself
_ALIKE = 3  # that many without a part: it is how this run saves
_MOST_FOLDERS = 2000
_DEEPEST = 5
_PEEKED = 16
_MINOR = ("scheduler state", "random states")  # not worth a warning where the whole run has none
# Folders that tools make by themselves for each start of one and the same run (Hydra, Lightning, NeMo); other names are
# other experiments, and resuming from those would be worse than resuming from nothing.
_RUN_FOLDER = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[_T -]\d{2}[-:]\d{2}[-:]\d{2})?|\d{2}-\d{2}-\d{2}|\d{8}[-_]\d{6}|version_\d+|run[-_]?\d+"
    r"|lightning_logs|tb_logs|checkpoints?|ckpts?|runs?|logs?|out|outputs?|results?|multirun|default"
)

_NONE: Mapping[str, str] = {}


@dataclass(frozen=True)
class Inspection:
    """checkpoints: newest first. resume: the one of them to resume from, None when there is none. warnings: for a person.

    trackers: name -> text of the framework's own tracker files. unusable: empty, or why starting from
    step 0 would be wrong: checkpoints exist and none can be used.
    """

    directory: Path
    checkpoints: tuple[Checkpoint, ...]
    resume: Optional[Choice]
    warnings: tuple[str, ...]
    trackers: Mapping[str, str]
    unusable: str = ""

    def as_json(self, template: str = "") -> dict[str, object]:
        """The JSON contract of ``aistation ckpt inspect``. ``resume.args`` is empty where no arguments can be made."""
        warnings = [*self.warnings, *([self.unusable] if self.unusable else [])]
        resume: Optional[dict[str, object]] = None
        if self.resume is not None:
            try:
                args = resume_args(self.resume, template)
            except CheckpointError as exc:
                args = ""
                warnings.append(str(exc))
            resume = {
                "path": str(self.resume.path),
                "step": self.resume.step,
                "args": args,
                "framework": self.resume.framework,
                "tag": self.resume.tag,
            }
        return {
            "directory": str(self.directory),
            "checkpoints": [checkpoint.as_json() for checkpoint in self.checkpoints],
            "resume": resume,
            "trackers": dict(self.trackers),
            "warnings": warnings,
        }


def inspect(
    directory: Path,
    framework: str = "auto",
    *,
    every: bool = True,
    refused: Mapping[str, str] = _NONE,
    layouts: Sequence[Layout] = (),
) -> Inspection:
    """Inspect ``directory``; only reads, and only names, headers, ends and sizes.

    framework: one of FRAMEWORKS or the name of one of ``layouts``, which ``auto`` tries last. every: False stops as soon as
    the one to resume from is certain (the start of a job), so that ``checkpoints`` holds the newest only. refused: path ->
    why, for checkpoints that count as not valid although their files are whole (attempts.py). Raises MissingDirectory (a
    CheckpointError) when it does not exist, and CheckpointError when it cannot be read or ``framework`` is unknown.
    """
    readers = all_readers(layouts)
    wanted = tuple(reader for reader in readers if framework in ("auto", reader.NAME))
    if not wanted:
        allowed = ", ".join(("auto", *sorted(reader.NAME for reader in readers)))
        raise CheckpointError(f"unknown framework {plain(framework)!r}; allowed are {allowed}")
    root = _read_root(directory)
    closed: list[str] = []
    runs = _find_runs(root, wanted, closed)
    warnings = [f"{plain(path)} cannot be read; it may hold newer checkpoints" for path in closed[:3]]
    other = _find_runs(root, readers, []) if not runs and framework != "auto" else []
    if len(runs) > 1:
        warnings.append(f"{len(runs)} run folders below {plain(root.path)}; the newest is {plain(runs[0].where)}")
    checkpoints: list[Checkpoint] = []
    choice: Optional[Checkpoint] = None
    for run in runs:
        warnings.extend(run.found.warnings)
        judged = _judge(run, every, refused)
        if choice is None:
            choice = _choose(run, judged, warnings)
        checkpoints.extend(judged)
        if choice is not None and not every:
            break
    if not runs and not other:
        warnings.extend(_elsewhere(root, readers))
    unusable = ""
    if choice is None and runs:
        unusable = _unusable(root.path, checkpoints, runs)
    elif other:
        unusable = (
            f"{plain(root.path)} holds no {framework} checkpoints, but {other[0].reader.NAME} ones; name that, or auto"
        )
    elif choice is None and closed:
        unusable = (
            f"{plain(closed[0])} cannot be read, so nobody knows whether it holds checkpoints; check its owner and mode"
        )
    trackers = {
        t.name: t.text for run in runs[:1] for t in (run.found.tracker, run.found.other_tracker) if t is not None
    }
    return Inspection(Path(root.path), tuple(checkpoints), choice, tuple(warnings), trackers, unusable)


def _elsewhere(root: Folder, readers: Sequence[Reader]) -> list[str]:
    """Folders that are not searched, since they may be other experiments, and that hold checkpoints: likely a wrong level."""
    for name in sorted(root.dirs)[:_PEEKED]:
        try:
            below = read_folder(root.child(name))
        except OSError:
            continue
        runs = _find_runs(below, readers, [])
        if runs:
            what = runs[0].reader.NAME
            return [
                f"{plain(runs[0].where)} holds {what} checkpoints, but folders of other names than a run's are not searched: "
                "they may be other experiments; name that folder if it is meant"
            ]
    return []


@dataclass(frozen=True)
class _Run:
    """The checkpoints of one run: one folder, one reader."""

    where: str
    reader: Reader
    found: Found


def _read_root(directory: Path) -> Folder:
    path = os.path.abspath(directory)
    try:
        return read_folder(path)
    except FileNotFoundError:
        raise MissingDirectory(
            f"checkpoint directory {plain(path)} does not exist (a first run, or its file system is not mounted here)"
        ) from None
    except NotADirectoryError:
        raise CheckpointError(
            f"checkpoint directory {plain(path)} is not a directory; give the folder that holds it"
        ) from None
    except OSError as exc:
        raise CheckpointError(
            f"checkpoint directory {plain(path)} cannot be read ({exc.strerror or exc}); check its owner and mode"
        ) from exc


def _find_runs(root: Folder, readers: Sequence[Reader], closed: list[str]) -> list[_Run]:
    """The run in ``root`` itself, else those in the run folders below it, newest first; ``closed`` gets unreadable ones."""
    top = _find_here(root, readers)
    # Lightning writes hpc_ckpt_N at the top, on Slurm's signal, whatever folder its other checkpoints go to
    if top is not None and (top.found.tracker or any(c.family != "hpc" for c in top.found.candidates)):
        return [top]
    runs: list[_Run] = []
    pending = [(root, 0)]
    looked = 0
    while pending and looked < _MOST_FOLDERS:
        folder, depth = pending.pop(0)
        for name in sorted(folder.dirs, key=_natural, reverse=True):
            numbered = depth > 0 and name.isdigit() and len(name) < 7  # job number of a Hydra multirun
            if not (_RUN_FOLDER.fullmatch(name) or numbered) or os.path.islink(folder.child(name)):
                continue
            looked += 1
            try:
                below = read_folder(folder.child(name))
            except OSError:
                closed.append(folder.child(name))
                continue
            run = _find_here(below, readers)
            if run is not None:
                runs.append(run)
            elif depth + 1 < _DEEPEST:
                pending.append((below, depth + 1))
    runs.sort(key=lambda r: [_natural(part) for part in r.where.split("/")], reverse=True)
    if top is None:
        return runs
    newer = bool(runs) and _written(runs[0]) > _written(top) + _CLOSE_S
    return [*runs[:1], top, *runs[1:]] if newer else [top, *runs]


def _written(run: _Run) -> float:
    """When its newest checkpoint was."""
    return max((mtime(c.path) for c in run.found.candidates), default=0.0)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key under which ``version_10`` comes after ``version_9``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d{1,18})", name) if part]


def _find_here(folder: Folder, readers: Sequence[Reader]) -> Optional[_Run]:
    tracker_only = None
    for reader in readers:
        found = reader.find(folder)
        if found.candidates:
            return _Run(folder.path, reader, found)
        if found.tracker is not None and tracker_only is None:
            tracker_only = _Run(folder.path, reader, found)
    # a tracker without a single checkpoint (left by a copy) does not hide another framework's checkpoints
    return tracker_only


def _newest_first(candidates: list[Candidate]) -> list[Candidate]:
    """By step as a number. Those without a step come first only where they were written later than the newest step."""
    stepped = sorted(
        (c for c in candidates if c.step is not None), key=lambda c: (c.step or 0, c.number, c.path), reverse=True
    )
    stepless = [c for c in candidates if c.step is None]
    if not stepless:
        return stepped
    times = {c.path: mtime(c.path) for c in stepless}
    family_time: dict[str, float] = {}
    for c in stepless:
        key = c.family or c.path
        family_time[key] = max(family_time.get(key, 0.0), times[c.path])
    stepless.sort(key=lambda c: (family_time[c.family or c.path], c.number, times[c.path], c.path), reverse=True)
    newest_step_time = mtime(stepped[0].path) + _CLOSE_S if stepped else 0.0
    first = [c for c in stepless if c.link is None and family_time[c.family or c.path] > newest_step_time]
    return first + stepped + [c for c in stepless if c not in first]


def _judge(run: _Run, every: bool, refused: Mapping[str, str]) -> list[Checkpoint]:
    """Look at the candidates, newest first, and compare them with each other."""
    judged: list[Checkpoint] = []
    target = run.found.tracker.target if run.found.tracker else None
    ordered = _newest_first(run.found.candidates)
    for index, candidate in enumerate(ordered):
        older = ordered[index + 1].path if index + 1 < len(ordered) else ""
        judged.append(_judge_one(run, candidate._replace(older=older), refused))
        if not every and (_certain(judged) or (len(judged) >= _LOOKED_BACK and any(c.valid for c in judged))):
            break
    missed = [c for c in run.found.candidates if c.path == target and not any(str(j.path) == target for j in judged)]
    return _compare(judged + [_judge_one(run, candidate, refused) for candidate in missed])


def _judge_one(run: _Run, candidate: Candidate, refused: Mapping[str, str]) -> Checkpoint:
    checkpoint = run.reader.judge(candidate)
    why = refused.get(str(checkpoint.path), "")
    return replace(checkpoint, valid=False, why=why) if checkpoint.valid and why else checkpoint


def _certain(judged: list[Checkpoint]) -> bool:
    """One is valid, whatever the older ones look like. (Looked at newest first, so it is the last one.)"""
    last = judged[-1]
    if not last.valid or last.grade is not Grade.CONTENT or last.empty_shards:
        return False
    if not last.lacks and not last.rewritten:
        return True
    alike = [
        c for c in judged if c.valid and set(c.lacks) <= set(last.lacks) and bool(c.rewritten) >= bool(last.rewritten)
    ]
    return len(alike) >= _ALIKE


def _compare(judged: list[Checkpoint]) -> list[Checkpoint]:
    """What one checkpoint cannot show by itself: it is worse than others of the same run."""
    best = max((c.seen for c in judged), default=Grade.CONTENT)
    in_order = any(c.valid and not c.rewritten for c in judged)
    common = set.intersection(*(set(c.lacks) for c in judged if c.valid)) if any(c.valid for c in judged) else set()
    out = []
    for index, c in enumerate(judged):
        why = ""
        if c.valid and c.grade < best:
            why = c.doubt or "holds no data files"
        elif c.valid and set(c.lacks) - common:
            part = min(set(c.lacks) - common)
            why = f"{part} {'are' if part.startswith('random') else 'is'} missing, which other checkpoints here have"
        elif c.valid and c.rewritten and in_order:
            why = f"{c.rewritten} (in others here it is the newest)"
        elif c.valid and c.empty_shards:
            older = next((o for o in judged[index + 1 :] if o.valid and o.seen is Grade.CONTENT), None)
            torn = [
                name
                for name in c.empty_shards
                if older and name not in older.empty_shards and (older.path / name).is_file()
            ]
            why = f"{torn[0]} is empty, and is not in {older.path.name}" if torn and older else ""
        out.append(replace(c, valid=False, why=why) if why else c)
    return out


def _choose(run: _Run, judged: list[Checkpoint], warnings: list[str]) -> Optional[Checkpoint]:
    """The tracker's checkpoint if it is valid, else the newest valid one."""
    valid = [c for c in judged if c.valid and not c.last_resort] or [c for c in judged if c.valid]
    newest = valid[0] if valid else None
    chosen = newest
    tracker = run.found.tracker
    if tracker is not None and tracker.target is not None:
        target = next((c for c in judged if str(c.path) == tracker.target), None)
        name, says = tracker.name, plain(os.path.basename(tracker.target))
        fallback = f"resuming from {plain(newest.path.name)}" if newest else "nothing valid is left"
        if target is None:
            warnings.append(f"{name} names {says}, which is missing (a dangling tracker); {fallback}")
        elif not target.valid:
            warnings.append(f"{name} names {says}, which is incomplete ({target.why}); {fallback}")
        else:
            chosen = target
            if newest is not None and newest != target:
                warnings.append(
                    f"{plain(newest.path.name)} looks whole, but {name} says {says}: it was never published, or the "
                    f"tracker was set back; resuming from {says}"
                )
    if chosen is None:
        return None
    _mention(chosen, judged, warnings)
    return chosen


def _mention(chosen: Checkpoint, judged: list[Checkpoint], warnings: list[str]) -> None:
    if chosen.grade is not Grade.CONTENT:
        warnings.append(
            f"no file of {plain(chosen.path.name)} has content that can be judged; its name alone was judged"
        )
    elif lacks := [part for part in chosen.lacks if not part.startswith(_MINOR)]:
        warnings.append(f"{plain(chosen.path.name)} has no {' and no '.join(lacks)}, like the others here")
    if chosen.rewritten:
        warnings.append(f"{plain(chosen.path.name)}: {chosen.rewritten}, or the files were copied in another order")
    if chosen.last_resort:
        warnings.append(f"{plain(chosen.path.name)} is {chosen.last_resort}")
    unreadable = [c for c in judged if c.unreadable]
    for c in unreadable[:3]:
        warnings.append(f"{plain(c.path.name)} could not be read: {c.why}")
    later = [c for c in judged if c.valid and c.mtime > chosen.mtime + 60 and c.step is not None and c is not chosen]
    if later and chosen.step is not None and (later[0].step or 0) < chosen.step:
        warnings.append(
            f"{plain(later[0].path.name)} was written after {plain(chosen.path.name)}: if they are of two runs, give each "
            "its own directory"
        )


def _unusable(root: str, checkpoints: list[Checkpoint], runs: list[_Run]) -> str:
    if not checkpoints:
        tracker = runs[0].found.tracker
        what = f"{tracker.name} is there, but not one checkpoint" if tracker else "not one checkpoint can be read"
        return f"{plain(root)}: {what}"
    first = checkpoints[0]
    return (
        f"{plain(root)} holds {len(checkpoints)} checkpoint(s), none of them valid; the newest, "
        f"{plain(first.path.name)}: {first.why}"
    )
