"""The files that Slurm and AIStation run: there, executable, changed by nobody else, and on a disk of this host."""

from __future__ import annotations

from collections.abc import Iterator

from aistation_slurm.doctor.hooks import SCRIPTS, paths_of
from aistation_slurm.doctor.model import FileFact, Item, Severity, Site

__all__ = ["judge"]

_HANGS = "when that hangs, so does every start and end of a job on every node, in a state that no signal ends"


def judge(site: Site) -> Iterator[Item]:
    host = site.host
    if host is None:
        return
    seen: set[str] = set()
    for key, (on, root) in SCRIPTS.items():
        if not (host.node if on == "node" else host.controller):
            continue
        for path in paths_of(site, key):
            fact = host.files.get(path)
            if fact is not None and path not in seen:
                seen.add(path)
                yield from _script(site, key, fact, root)
    programs = host.files.get(site.prefix)
    if programs is not None and programs.network:
        yield Item(
            "files.network",
            Severity.ERROR,
            f"AIStation is installed in {programs.path}, which lies on {programs.network}, a network file system",
            _HANGS,
            "install it on a disk of each node",
            programs.path,
        )
    spool = host.files.get(site.config.watchdog.spool_dir)
    if spool is not None and not spool.exists:
        yield Item(
            "files.spool",
            Severity.ERROR,
            f"{spool.path} does not exist",
            "EpilogSlurmctld cannot leave its events there, so the watchdog learns of an ended job only at its next poll",
            f"`systemd-tmpfiles --create` (`aistation install`), or install -d -m 0700 -o {site.value('SlurmUser', 'slurm')} "
            f"{spool.path}",
            spool.path,
        )
    for path, fact in host.files.items():
        if path not in seen and fact.exists:
            yield from _safe(fact, path)


def _script(site: Site, key: str, fact: FileFact, root: bool) -> Iterator[Item]:
    file, line = site.at(key)
    prolog = key in ("Prolog", "Epilog")
    harm = "slurmd drains the node at the next job" if prolog else "Slurm cannot run it"
    if key in ("PrologSlurmctld", "EpilogSlurmctld"):
        harm = "slurmctld does not start with it (24.11 and newer), or goes on without the hook until its next start (22.05)"
    if not fact.exists or not fact.is_file:
        what = "does not exist" if not fact.exists else "is no file"
        yield Item(
            "files.missing",
            Severity.ERROR,
            f"{key}={fact.path} {what} on {site.host.name if site.host else 'this host'}",
            harm,
            f"put it there, or correct {key}",
            file,
            line,
        )
        return
    if not fact.executable:
        yield Item(
            "files.executable",
            Severity.ERROR,
            f"{key}={fact.path} is not executable",
            harm,
            f"chmod 755 {fact.path}",
            file,
            line,
        )
    if not fact.interpreter_exists:
        yield Item(
            "files.interpreter",
            Severity.ERROR,
            f"{key}={fact.path} needs {fact.interpreter}, which does not exist",
            harm,
            f"install {fact.interpreter}",
            file,
            line,
        )
    if fact.network:
        severity = Severity.ERROR if key in ("Prolog", "Epilog", "TaskProlog") else Severity.WARNING
        yield Item(
            "files.network",
            severity,
            f"{key}={fact.path} lies on {fact.network}, a network file system",
            _HANGS,
            "install it on a disk of each node",
            file,
            line,
        )
    yield from _safe(fact, f"{key}={fact.path}", root)


def _safe(fact: FileFact, what: str, root: bool = True) -> Iterator[Item]:
    if fact.loose:
        who = "root" if root else "Slurm"
        yield Item(
            "files.writable",
            Severity.ERROR,
            f"{what}: {fact.loose}",
            f"whoever may change it decides what {who} runs",
            f"chown root:root and chmod go-w {fact.loose.split(' ')[0]}",
            fact.path,
        )
