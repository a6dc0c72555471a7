"""What runs: controllers, slurmd of which release, the agent, the watchdog, clocks; and whether they know the file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from aistation_slurm.doctor.model import NEWEST, Item, Severity, Site
from aistation_slurm.slurm import hostlist

__all__ = ["judge"]

CLOCK_WARN_S = 2.0
CLOCK_BAD_S = 60.0
RELEASES = (
    (22, 5),
    (23, 2),
    (23, 11),
    (24, 5),
    (24, 11),
    (25, 5),
    (25, 11),
    (26, 5),
    (26, 11),
)
OLD_ALLOWED = 2
"""slurmd may be two releases older than slurmctld, three from 24.11 on."""
JUDGED = """Prolog Epilog TaskProlog EpilogSlurmctld PrologFlags PrologEpilogTimeout MessageTimeout BatchStartTimeout MinJobAge
JobRequeue KillWait SlurmdTimeout UnkillableStepTimeout SelectType GresTypes JobSubmitPlugins TopologyPlugin ReturnToService
HealthCheckProgram HealthCheckInterval RebootProgram"""
PLUGIN_KINDS = ("job_submit/", "select/", "topology/")
RESTART = frozenset({"selecttype", "grestypes", "topologyplugin", "jobsubmitplugins"})
"""Keys that `scontrol reconfigure` does not put in force."""


def judge(site: Site) -> Iterator[Item]:
    yield from _controllers(site)
    yield from _in_force(site)
    yield from _releases(site)
    yield from _lost_gpus(site)
    yield from _ours(site)
    yield from _clock(site)


def _controllers(site: Site) -> Iterator[Item]:
    for name in site.silent:
        yield Item(
            "daemons.controller",
            Severity.WARNING,
            f"slurmctld on {name} does not answer",
            "without a backup nobody takes over" if len(site.silent) == 1 else "nothing is scheduled",
            f"on {name}: systemctl status slurmctld",
        )


def _in_force(site: Site) -> Iterator[Item]:
    if site.live is None:
        return
    read = site.live_conf
    if read and site.host is not None and site.host.controller and read != site.conf.path:
        yield Item(
            "daemons.other_file",
            Severity.NOTE,
            f"slurmctld reads {read}, this is {site.conf.path}",
            "advice is about the file given",
            f"--slurm-conf {read}",
            site.conf.path,
        )
        return
    for key in JUDGED.split():
        setting, shown = site.conf.get(key), site.live.get(key.lower())
        if setting is None or shown is None or _same(setting.value, shown):
            continue
        restart = key.lower() in RESTART
        yield Item(
            "daemons.stale",
            Severity.WARNING,
            f"{key}={setting.value} in the file, {shown} in force",
            "the file was changed after slurmctld had read it",
            "restart slurmctld and all slurmd" if restart else "`scontrol reconfigure`",
            setting.file,
            setting.line,
        )


def _same(written: str, shown: str) -> bool:
    """10 is shown as ``10 sec``, no value as ``(null)``, flags in any order with what they imply, plugins by long names."""
    one, other = _plain(written), _plain(shown.removesuffix(" sec"))
    return one == other or (len(one) > 1 and one <= other)


def _plain(text: str) -> set[str]:
    words = {word.strip().lower() for word in text.split(",")} - {"", "(null)"}
    return {word.rpartition("/")[2] if word.startswith(PLUGIN_KINDS) else word for word in words}


def _lost_gpus(site: Site) -> Iterator[Item]:
    """GPUs that slurmctld takes for used on nodes without a job (SchedMD's bug 16121, mended in 23.02.2)."""
    names = [node.name for node in site.nodes or () if node.gpus_used and _is_idle(node.state)]
    if names:
        yield Item(
            "gres.leaked",
            Severity.WARNING,
            f"{hostlist.fold(names)}: idle, but slurmctld counts GPUs there as used (GresUsed of `scontrol -d show node`)",
            "jobs that need them stay PENDING (Resources) beside idle nodes. Slurm before 23.02.2 loses count where the last node "
            "of a requeued job goes down while the job is COMPLETING. Right only where a suspended job holds them",
            "`scontrol reconfigure`, or restart slurmctld: it counts anew, jobs run on; Slurm 23.02.2 or later for good",
        )


def _is_idle(state: str) -> bool:
    base, *flags = state.split("+")
    return re.sub(r"\W", "", base) == "IDLE" and "COMPLETING" not in flags


def _releases(site: Site) -> Iterator[Item]:
    found: dict[tuple[int, int], list[str]] = {}
    for node in site.nodes or ():
        numbers = node.version.split(".")
        if len(numbers) >= 2 and numbers[0].isdigit() and numbers[1].isdigit():
            found.setdefault((int(numbers[0]), int(numbers[1])), []).append(node.name)
    for release, names in found.items():
        if site.version in (NEWEST, release):
            continue
        steps = _steps(release, site.version)
        allowed = OLD_ALLOWED + (site.version >= (24, 11))
        bad = steps is None or steps < 0 or steps > allowed
        yield Item(
            "daemons.releases",
            Severity.ERROR if bad else Severity.WARNING,
            f"{hostlist.fold(names)}: slurmd {release[0]}.{release[1]:02d}, slurmctld {site.version[0]}.{site.version[1]:02d}",
            "they do not understand each other"
            if bad
            else "fine during an update; the SPANK plugin must be the one of each host's own release",
            "update slurmd there, and build the SPANK plugin anew"
            if not bad
            else "slurmctld first, then slurmd, at most two releases at a time",
        )


def _steps(old: tuple[int, int], new: tuple[int, int]) -> int | None:
    return RELEASES.index(new) - RELEASES.index(old) if old in RELEASES and new in RELEASES else None


def _ours(site: Site) -> Iterator[Item]:
    host = site.host
    if host is None:
        return
    if host.node and host.agent_runs is False:
        yield Item(
            "daemons.agent",
            Severity.WARNING,
            f"no agent runs on {host.name}",
            "faults under running jobs are seen only by cron or HealthCheckProgram, where one of them runs `aistation check --act`",
            "systemctl enable --now aistation-agent",
        )
    if host.controller and host.watchdog_runs is False:
        yield Item(
            "daemons.watchdog",
            Severity.ERROR,
            f"no watchdog runs on {host.name}",
            "no job is restarted from its checkpoint",
            "systemctl enable --now aistation-watchdog",
        )


def _clock(site: Site) -> Iterator[Item]:
    host = site.host
    if host is None or host.clock_offset_s is None or abs(host.clock_offset_s) <= CLOCK_WARN_S:
        return
    ahead = "ahead of" if host.clock_offset_s > 0 else "behind"
    yield Item(
        "daemons.clock",
        Severity.ERROR if abs(host.clock_offset_s) >= CLOCK_BAD_S else Severity.WARNING,
        f"the clock of {host.name} is {abs(host.clock_offset_s):.0f} s {ahead} the controller's",
        "munge refuses messages that are minutes off, and attempts of a job are told apart by their second",
        "run chrony or another NTP client on all hosts",
    )
