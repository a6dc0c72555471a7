"""What Slurm itself would not read, or would read otherwise than it looks."""

from __future__ import annotations

from collections.abc import Iterator

from aistation_slurm.doctor.model import Item, Severity, Site

__all__ = ["judge"]

SHOWN = 20
SEVERAL = frozenset(
    {
        "slurmctldhost",
        "controlmachine",
        "backupcontroller",
        "prolog",
        "epilog",
        "prologslurmctld",
        "epilogslurmctld",
        "switchname",
        "include",
    }
)
"""Keys that may stand more than once."""


def judge(site: Site) -> Iterator[Item]:
    faults = [*site.conf.faults]
    for more in (site.gres, site.cgroup, site.plugstack):
        faults += more.faults if more is not None else ()
    for fault in faults[:SHOWN]:
        why = "Slurm's daemons do not start with it, or leave the line out"
        yield Item("conf.syntax", Severity.ERROR, fault.message, why, "correct the line", fault.file, fault.line)
    for key, settings in site.conf.settings.items():
        values = {setting.value for setting in settings}
        if len(values) > 1 and key not in SEVERAL:
            last, first = settings[-1], settings[-2]
            yield Item(
                "conf.twice",
                Severity.WARNING,
                f"{last.key} is set {len(settings)} times, last to {last.value}",
                f"the last one counts; {first.file}:{first.line} says {first.value}",
                f"remove {first.file}:{first.line}",
                last.file,
                last.line,
            )
