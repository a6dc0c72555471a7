"""Prolog, TaskProlog, Epilog, EpilogSlurmctld, and how Slurm runs them."""

from __future__ import annotations

from collections.abc import Iterator

from aistation_slurm.doctor.hooks import HOOKS, Hook, is_ours, paths_of
from aistation_slurm.doctor.model import NEWEST, Item, Severity, Site

__all__ = ["judge"]

RUN_IN_JOB_SINCE = (24, 5)
FLAG_WHY = (
    "without DeferBatch (which implies Alloc) Slurm runs the Prolog on a node only when the first step starts there: the "
    "batch script is running already, and other nodes of the job are not checked before it"
)


def judge(site: Site) -> Iterator[Item]:
    for hook in HOOKS:
        yield from _set(site, hook)
    if paths_of(site, "Prolog"):
        yield from _flags(site)


def _set(site: Site, hook: Hook) -> Iterator[Item]:
    rule, script = f"hooks.{_snake(hook.key)}", f"{site.prefix}/{hook.script}"
    paths = paths_of(site, hook.key)
    if not paths:
        yield site.advise(rule, hook.severity, hook.key, f"{hook.key} is not set", hook.lost, script)
        return
    relative = [path for path in paths if not path.startswith("/")]
    if relative:
        said = f"{hook.key}={relative[0]} is not an absolute path"
        yield site.advise(
            rule, hook.severity, hook.key, said, "Slurm's daemons have no PATH and no folder of yours", script
        )
        return
    if site.host is not None and hook.key in site.host.dropped:
        yield site.advise(
            "hooks.dropped",
            Severity.ERROR,
            hook.key,
            f"slurmctld runs without {hook.key}: its log says that the script was not there, or not executable, when it started",
            f"`scontrol show config` shows it all the same, and `scontrol reconfigure` does not bring it back; {hook.lost}",
            None,
            f"make sure that {paths[0]} is there, then `systemctl restart slurmctld`",
        )
    known = [site.host.files[path] for path in paths if site.host is not None and path in site.host.files]
    if len(known) == len(paths) and all(fact.exists for fact in known) and not any(is_ours(fact) for fact in known):
        yield site.advise(
            rule,
            hook.severity,
            hook.key,
            f"{hook.key}={', '.join(paths)} is the site's own and does not call AIStation",
            f"Slurm takes one; {hook.lost}",
            None,
            f"`aistation install --chain {hook.key}={paths[0]}` writes a wrapper that runs both",
        )


def _flags(site: Site) -> Iterator[Item]:
    flags = site.words("PrologFlags")
    given = site.value("PrologFlags")
    if "deferbatch" not in flags:
        kept = [] if given in ("", "(null)") else [flag for flag in given.split(",") if flag.lower() != "alloc"]
        wanted = ",".join(["Alloc", "DeferBatch", *kept])
        said = f"PrologFlags={given or '(unset)'} has no DeferBatch"
        yield site.advise("hooks.prolog_flags", Severity.ERROR, "PrologFlags", said, FLAG_WHY, wanted)
    if "nohold" in flags:
        yield site.advise(
            "hooks.no_hold",
            Severity.WARNING,
            "PrologFlags",
            "PrologFlags has NoHold",
            "salloc returns before the gate has judged the nodes, and its first step meets a sick one",
            ",".join(flag for flag in given.split(",") if flag.lower() != "nohold"),
        )
    if "runinjob" in flags and site.version >= RUN_IN_JOB_SINCE:
        yield site.advise(
            "hooks.run_in_job",
            Severity.WARNING,
            "PrologFlags",
            "PrologFlags has RunInJob",
            "the Prolog then sees only the devices of its job, so a GPU that fell off the bus beside them is not noticed there",
            ",".join(flag for flag in given.split(",") if flag.lower() != "runinjob"),
        )
    if "serial" in flags:
        yield site.advise(
            "hooks.serial",
            Severity.NOTE,
            "PrologFlags",
            "PrologFlags has Serial",
            f"jobs that start together on a node wait for each other's gate, up to {site.config.gate.budget_s:g} s each",
        )
    several = len(site.conf.settings.get("prolog", ())) > 1
    if several and site.version < (24, 5) and site.version != NEWEST:
        yield site.advise(
            "hooks.several",
            Severity.ERROR,
            "Prolog",
            "Prolog is set more than once",
            "before 24.05 Slurm takes the last one alone",
            None,
            "keep one line: a wrapper (`aistation install --chain Prolog=...`), or a pattern such as /etc/slurm/prolog.d/*",
        )


def _snake(key: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(key))
