"""The wrappers beside scripts of a site: both run, their output and exit codes pass through."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aistation_slurm.install.plan import CHAINS, Settings, plan

PREFIX = str(Path(__file__).resolve().parents[3])
LUA = shutil.which("lua5.1") or shutil.which("lua5.3") or shutil.which("lua5.4")


class Wrapped:
    """The wrapper of one key with a script of ours and one of the site's, both of a few lines of shell."""

    def __init__(self, folder: Path, key: str, ours: str, theirs: str) -> None:
        template, _ = CHAINS[key]
        prefix = folder / "prefix"
        (prefix / "packaging").mkdir(parents=True)
        (prefix / "packaging/wrappers").symlink_to(f"{PREFIX}/packaging/wrappers")
        for name in ("systemd", "tmpfiles", "cron", "logrotate"):
            (prefix / "packaging" / name).symlink_to(f"{PREFIX}/packaging/{name}")
        (prefix / "slurm_plugins").symlink_to(f"{PREFIX}/slurm_plugins")
        names = {
            "Prolog": "prolog/aistation-prolog",
            "TaskProlog": "prolog/aistation-task-prolog",
            "Epilog": "epilog/aistation-epilog",
            "EpilogSlurmctld": "epilog/aistation-epilog-slurmctld",
            "HealthCheckProgram": "bin/aistation",
        }
        own, site = prefix / names[key], folder / "site.sh"
        own.parent.mkdir()
        for path, text in ((own, ours), (site, theirs)):
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        made = plan(Settings(prefix=str(prefix), command=str(prefix / "bin/aistation"), chains={key: str(site)}))
        self.path = folder / template
        self.path.write_text(next(one.text for one in made if one.path.endswith(f"wrappers/{template}")))
        self.path.chmod(0o755)

    def run(self) -> tuple[int, str, str]:
        done = subprocess.run([str(self.path)], env={"A": "1"}, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("key", "ours", "theirs", "code", "out"),
    [
        ("TaskProlog", "echo export B=2", "echo export A=$A", 0, "export A=1\nexport B=2\n"),
        ("TaskProlog", "echo export B=2", "echo no; exit 7", 7, "no\n"),
        ("TaskProlog", "echo print bad; exit 75", "echo export A=1", 75, "export A=1\nprint bad\n"),
        ("Prolog", "echo gate", "echo site; exit 3", 3, "gate\nsite\n"),
        ("Prolog", "echo sick; exit 1", "echo site", 1, "sick\n"),
        ("Epilog", "echo clean", "echo site; exit 4", 4, "clean\nsite\n"),
        ("Epilog", "exit 9", "echo site", 0, "site\n"),
        ("EpilogSlurmctld", "echo event", "echo site; exit 5", 5, "event\nsite\n"),
        ("HealthCheckProgram", "echo $*; exit 1", "echo site", 1, "check --act\nsite\n"),
        ("HealthCheckProgram", "exit 1", "exit 2", 2, ""),
        ("HealthCheckProgram", ":", "kill -TERM $$", 143, ""),
    ],
)
def test_both_run(key: str, ours: str, theirs: str, code: int, out: str, tmp_path: Path) -> None:
    assert Wrapped(tmp_path, key, ours, theirs).run()[:2] == (code, out)


def test_what_goes_to_stderr_stays_there(tmp_path: Path) -> None:
    assert Wrapped(tmp_path, "Epilog", "echo a >&2", "echo b >&2").run() == (0, "", "a\nb\n")


SLURM = """
slurm = { SUCCESS = 0, ERROR = -1, log_info = function(f, ...) print("log " .. string.format(f, ...)) end }
dofile(arg[1])
local job = { partition = arg[2] }
local worked, code = pcall(slurm_job_submit, job, {}, 1000)
print(worked, worked and code or "raised", job.seen or "not seen by AIStation")
print(slurm_job_modify({}, {}, {}, 1000))
"""
SITE = """
function slurm_job_submit(job, parts, uid)
  if job.partition == "bad" then return 2015 end
  if job.partition == "boom" then error("site bug") end
  if job.partition == "word" then return "fine" end
  job.partition = "chosen"
  return slurm.SUCCESS
end
function slurm_job_modify() return 17 end
"""


@pytest.mark.skipif(LUA is None, reason="no Lua")
class TestLua:
    def submit(self, folder: Path, partition: str, ours: str, site: str = SITE) -> list[str]:
        site_file = folder / "job_submit.site.lua"
        site_file.write_text(site)
        chained = Settings(prefix=PREFIX, slurm_dir=str(folder), chains={"job_submit.lua": f"{folder}/job_submit.lua"})
        made = next(one.text for one in plan(chained) if one.path.endswith("wrappers/job_submit.lua"))
        (folder / "job_submit.lua").write_text(made)
        (folder / "aistation.lua").write_text(ours)
        (folder / "slurm.lua").write_text(SLURM)
        argv = [str(LUA), str(folder / "slurm.lua"), str(folder / "job_submit.lua"), partition]
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()

    OURS = "return { job_submit = function(job) job.seen = 'saw ' .. job.partition end }"

    def test_the_sites_rules_come_first(self, tmp_path: Path) -> None:
        assert self.submit(tmp_path, "any", self.OURS) == ["true\t0\tsaw chosen", "17"]

    def test_what_the_site_refuses_stays_refused(self, tmp_path: Path) -> None:
        assert self.submit(tmp_path, "bad", self.OURS)[0] == "true\t2015\tnot seen by AIStation"

    def test_an_error_of_the_site_is_slurms_to_handle(self, tmp_path: Path) -> None:
        assert self.submit(tmp_path, "boom", self.OURS)[0] == "false\traised\tnot seen by AIStation"

    def test_an_answer_that_is_no_number_is_passed_on(self, tmp_path: Path) -> None:
        assert self.submit(tmp_path, "word", self.OURS)[0] == "true\tfine\tsaw word"

    @pytest.mark.parametrize("ours", ["return {", "return 5", "return { job_submit = function() error('x') end }"])
    def test_a_broken_module_of_ours_refuses_nothing(self, ours: str, tmp_path: Path) -> None:
        lines = self.submit(tmp_path, "any", ours)
        assert lines[0].startswith("log aistation: job passed unchanged")
        assert lines[1] == "true\t0\tnot seen by AIStation"

    def test_a_site_without_a_rule_for_changes(self, tmp_path: Path) -> None:
        site = "function slurm_job_submit() return slurm.SUCCESS end"
        assert self.submit(tmp_path, "any", self.OURS, site)[1] == "0"
