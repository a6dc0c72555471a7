"""What the start of a job asks Slurm, as the user: the job's own record, other holders of its directory, silent nodes.

Every answer is optional. Slurm may be slow, and the job must start all the same: each question has a limit, and after one
that got no answer no further one is asked. Not through aistation_slurm/slurm: that needs msgspec and subprocess, which would
cost the start more than the question.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Optional

from aistation_slurm.checkpoints.run_note import read_run
from aistation_slurm.node import bounded

__all__ = ["Deadline", "JobRecord", "SlurmView", "hostlist_text"]

ASK_S = 3.0
_USUAL = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/opt/slurm/current/bin", "/usr/local/slurm/bin")
_HOSTLIST = re.compile(r"[A-Za-z0-9_.\[][A-Za-z0-9_.,\[\]-]*")
_MAX_HOSTLIST = 64 * 1024


class Deadline:
    """The end of the time that a start may take. ``left`` is 0.0 after it, never negative."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, at_most: float) -> float:
        return max(0.0, min(at_most, self._end - time.monotonic()))


def hostlist_text(text: str) -> str:
    """The text where it can be a Slurm hostlist, else "": it goes into a command line and into the job's environment."""
    return text if len(text) <= _MAX_HOSTLIST and _HOSTLIST.fullmatch(text) else ""


class JobRecord:
    """One record of ``scontrol show job`` (22.05: one ``Key=value`` after the other, Comment and AdminComment on lines of
    their own). A job's name, comment and folders are its user's and can forge keys; nothing here decides for others.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.comment = self._line("Comment")
        self.admin_comment = self._line("AdminComment")
        self.excluded_nodes = hostlist_text(self._word("ExcNodeList"))
        self.states = frozenset(self._word("JobState").split("+")) - {""}

    @property
    def argument(self) -> str:
        """What names this one job in an update: ``77``, a task of an array ``70_7``, a component of a het job ``70+1``."""
        for whole, part, sign in (("ArrayJobId", "ArrayTaskId", "_"), ("HetJobId", "HetJobOffset", "+")):
            if self._word(whole).isdigit() and self._word(part).isdigit():
                return self._word(whole) + sign + self._word(part)
        return self._word("JobId")

    @property
    def tag_text(self) -> str:
        """The watchdog's segment of AdminComment, which no user can write: ``resume=auto max=3 attempt=1 last=infra``."""
        found = re.search(r"\[ais ([^\]]*)\]", self.admin_comment)
        return found.group(1)[:1000] if found else ""

    @property
    def tag(self) -> dict[str, str]:
        """Its keys and values."""
        return dict(word.partition("=")[::2] for word in self.tag_text.split() if "=" in word)

    @property
    def start(self) -> int:
        """Unix seconds at which this attempt began; 0 not known. (SLURM_TIME_FORMAT=%s)"""
        return int(self._word("StartTime")) if self._word("StartTime").isdigit() else 0

    def _word(self, key: str) -> str:
        found = re.search(rf"(?:^|\s){key}=(\S*)", self._text)
        value = found.group(1) if found else ""
        return "" if value in ("(null)", "None", "N/A") else value

    def _line(self, key: str) -> str:
        """A value with blanks, and with line ends where its user put some: up to the next line that begins with a key."""
        found = re.search(rf"^   {key}=(.*?)(?=\n   [A-Z][A-Za-z]*=|\s*\Z)", self._text, re.MULTILINE | re.DOTALL)
        value = found.group(1).strip() if found else ""
        return "" if value == "(null)" else value


class SlurmView:
    """Questions to Slurm within one deadline. ``answers`` is False as soon as one got no answer."""

    def __init__(self, env: Mapping[str, str], deadline: Deadline, directories: Iterable[str] = _USUAL) -> None:
        self.deadline = deadline
        path = [*directories, *env.get("AISTATION_JOB_PATH", "").split(":")]
        found = (d for d in path if d.startswith("/") and os.access(f"{d}/scontrol", os.X_OK))
        self._bin = next(found, "")
        # exactly these variables: SLURM_CLUSTERS and the like of the job would change the questions
        self._env = {**bounded.PLAIN_ENV, "SLURM_TIME_FORMAT": "%s"}
        conf = env.get("SLURM_CONF", "")
        if conf:
            self._env["SLURM_CONF"] = conf
        # without it Slurm's commands look for a controller by DNS for many seconds
        self.answers = bool(self._bin) and (not conf or os.path.exists(conf))

    def job(self, job_id: str) -> Optional[JobRecord]:
        """The record of one job by its number (each array task has its own), without states where Slurm knows none.

        None: no answer.
        """
        if not (job_id.isascii() and job_id.isdigit()):
            return None
        output = self._ask("scontrol", "show", "job", job_id, refusal="Invalid job id")
        if output is None:
            return None
        records = re.split(r"\n\s*\n(?=JobId=)", output)
        return JobRecord(next((text for text in records if re.match(rf"\s*JobId={job_id}\s", text)), ""))

    def jobs_of_directory(self, digest: str, but: str) -> list[str]:
        """The user's running jobs, ``but`` one, whose start-up noted this directory in the Comment."""
        output = self._ask("squeue", "--noheader", "--me", "--states=RUNNING,SUSPENDED", "--format=%A %k") or ""
        lines = [line.partition(" ") for line in output.splitlines()]
        return [job for job, _, comment in lines if job != but and read_run(comment).get("d") == digest]

    def silent_nodes(self, nodes: str, since: float) -> Optional[list[str]]:
        """Of ``nodes`` (a hostlist) those on which processes of before ``since`` (unix seconds) may be alive unseen.

        They are down or do not respond, are not switched off, and have not booted since. None: no answer.
        """
        if not hostlist_text(nodes):
            return []
        output = self._ask("sinfo", "--noheader", "--all", f"--nodes={nodes}", "--format=%T %N")
        if output is None:
            return None
        rows = [line.split() for line in output.splitlines()]
        quiet = ",".join(row[1] for row in rows if len(row) == 2 and _silent(row[0]))
        if not hostlist_text(quiet):
            return []
        output = self._ask("scontrol", "--oneliner", "show", "node", quiet)
        if output is None:
            return None
        found = re.findall(r"^NodeName=(\S+)(?:.*? BootTime=(\d+))?", output, re.MULTILINE)
        return sorted({name for name, boot in found if not boot or int(boot) <= since})

    def set_comment(self, job: str, comment: str) -> bool:
        """Write a job's Comment. False where Slurm did not take it."""
        return self._ask("scontrol", "update", f"JobId={job}", f"Comment={comment}") is not None

    def _ask(self, command: str, *words: str, refusal: str = "") -> Optional[str]:
        """Output of a command that succeeded; "" for one that failed with this refusal; None in all other cases."""
        limit = self.deadline.left(ASK_S)
        if not self.answers or limit < 0.1:
            return None
        try:
            outcome = bounded.run([f"{self._bin}/{command}", *words], limit, self._env)
        except OSError:  # no process or pipe to be had
            return None
        if outcome.code == 0:
            return outcome.output
        if refusal and refusal in outcome.output:
            return ""
        if outcome.code is None or "contact slurm" in outcome.output or "onfiguration" in outcome.output:
            self.answers = False
        return None


def _silent(state: str) -> bool:
    """A state as sinfo's %T has it: ``down``, ``down*``, ``idle*``, ``draining*``; ``~`` and ``%`` are power saving."""
    if "~" in state or "%" in state or state.startswith(("powered_down", "powering_down")):
        return False
    return "*" in state or state.startswith(("down", "unknown"))
