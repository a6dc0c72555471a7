"""What doctor knows of a site (:class:`Site`) and what it says about it (:class:`Item`). Values only.

A fact that could not be read is None: no rule speaks about it, and the report lists it as not looked at.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.doctor.conf_file import ConfFile, Setting
from aistation_slurm.doctor.plugstack import Plugstack
from aistation_slurm.topology.model import Problem

__all__ = ["NEWEST", "FileFact", "Host", "Item", "NodeFact", "Severity", "Site"]

NEWEST = (99, 99)
"""Release that is judged where none is known."""


class Severity(enum.Enum):
    """error: a part of AIStation does not work, or Slurm would be harmed. warning: it works worse than it could.
    note: worth knowing; a site may have its reasons."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Item:
    """One piece of advice. rule: stable name. change: what to write where, or the command; file, line: the present place."""

    rule: str
    severity: Severity
    message: str
    why: str
    change: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class FileFact:
    """A file that Slurm runs or loads, as this host has it.

    loose: the file or folder on its way that others than root and SlurmUser may change, "" for none. network: type of the
    network file system it lies on. interpreter: of its ``#!`` line; head: its first bytes, as text.
    """

    path: str
    exists: bool
    is_file: bool = True
    executable: bool = True
    loose: str = ""
    network: str = ""
    interpreter: str = ""
    interpreter_exists: bool = True
    head: str = ""
    release: Optional[tuple[int, int]] = None
    """Of a SPANK plugin: the Slurm release it was built for."""


@dataclass(frozen=True)
class NodeFact:
    """A node as slurmctld shows it. version: of its slurmd, "" where it is not registered. features: the available ones.

    gpus_used: as slurmctld counts them.
    """

    name: str
    hostname: str
    version: str
    state: str
    features: tuple[str, ...] = ()
    gpus_used: int = 0


@dataclass(frozen=True)
class Host:
    """The host that doctor runs on. controller, node: which part of Slurm runs here, by its name."""

    name: str
    controller: bool
    node: str = ""
    """NodeName; "" where it is no compute node."""
    slurmd_nodename: str = ""
    """SLURMD_NODENAME in the environment file of the agent's unit."""
    agent_runs: Optional[bool] = None
    watchdog_runs: Optional[bool] = None
    clock_offset_s: Optional[float] = None
    """This host's clock minus the controller's."""
    dropped: frozenset[str] = frozenset()
    """Hooks that the running slurmctld goes without, by its log."""
    files: Mapping[str, FileFact] = field(default_factory=dict)
    """By path: scripts, plugins, folders."""
    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Prolog and Epilog may be shell patterns: what each of them matches."""


@dataclass(frozen=True)
class Site:
    """Everything that the rules judge. version: release of Slurm (major, minor), NEWEST where it is not known."""

    conf: ConfFile
    config: Config = field(default_factory=Config)
    prefix: str = "/opt/aistation"
    version: tuple[int, int] = NEWEST
    gres: Optional[ConfFile] = None
    cgroup: Optional[ConfFile] = None
    plugstack: Optional[Plugstack] = None
    topology: Optional[tuple[Problem, ...]] = None
    leaves: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Leaf switch -> its nodes."""
    live: Optional[Mapping[str, str]] = None
    """`scontrol show config`: lower-case key -> value."""
    live_conf: str = ""
    """The slurm.conf that slurmctld itself read."""
    silent: tuple[str, ...] = ()
    """Controllers that `scontrol ping` finds down."""
    nodes: Optional[tuple[NodeFact, ...]] = None
    host: Optional[Host] = None
    unlooked: tuple[str, ...] = ()
    """What could not be read, each in words."""

    def value(self, key: str, default: str = "") -> str:
        """What is in force: the file's value, else what slurmctld shows, else ``default``."""
        setting = self.conf.get(key)
        if setting is not None:
            return setting.value
        shown = (self.live or {}).get(key.lower(), "")
        return default if shown in ("", "(null)", "n/a", "N/A") else shown

    def number(self, key: str, default: int) -> int:
        """A count or a time in seconds; ``default`` where it is unset or no number. Slurm shows ``300 sec``."""
        word = self.value(key, str(default)).split()[0:1]
        text = word[0] if word else ""
        return int(text) if text.isdigit() else default

    def words(self, key: str) -> tuple[str, ...]:
        """A comma-separated value, in lower case."""
        return tuple(word.strip().lower() for word in self.value(key).split(",") if word.strip())

    def option(self, key: str, name: str) -> Optional[str]:
        """``name=value`` inside a comma-separated value, as text; "" for the bare word; None where it is not there."""
        for word in self.words(key):
            left, _, right = word.partition("=")
            if left == name.lower():
                return right
        return None

    def at(self, key: str) -> tuple[str, int]:
        """File and line of the setting that counts; slurm.conf itself and 0 where there is none."""
        setting = self.conf.get(key)
        return (setting.file, setting.line) if setting else (self.conf.path, 0)

    def set_to(self, key: str, value: str) -> str:
        """The exact line to write, and where."""
        setting: Optional[Setting] = self.conf.get(key)
        line = f"{key}={value}"
        if setting is None:
            return f"{self.conf.path}: add `{line}`"
        return f"{setting.file}:{setting.line}: `{line}` instead of `{setting.key}={setting.value}`"

    def advise(
        self,
        rule: str,
        severity: Severity,
        key: str,
        message: str,
        why: str,
        value: Optional[str] = None,
        more: str = "",
    ) -> Item:
        """An item about one key of slurm.conf. value: what it should be; more: what to do besides."""
        file, line = self.at(key)
        change = "" if value is None else self.set_to(key, value)
        return Item(rule, severity, message, why, "; ".join(part for part in (change, more) if part), file, line)
