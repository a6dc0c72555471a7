"""doctor and install on a real Slurm: clean where the suite is in force, faults named; a site's own scripts chained."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.cluster.suite import INSTALLED

pytestmark = pytest.mark.cluster

FORCED = {"requeue.job_file_append", "gres.constrain_devices"}
"""Notes on what namespaces on a small machine force on the test cluster (slurm_conf.py), or what it leaves at Slurm's default."""
SITE = "/etc/slurm/site"
SCRIPTS = {
    "prolog.sh": "echo prolog $SLURM_JOB_ID >>/var/log/site.log",
    "epilog.sh": "echo epilog $SLURM_JOB_ID >>/var/log/site.log",
    "end.sh": "echo end $SLURM_JOB_ID >>/var/log/slurm/site.log",
    "health.sh": "echo health >>/var/log/site.log",
    "task.sh": '[ -z "$SITE_FAILS" ] || exit 7\necho export SITE_VALUE=of-the-site\necho print the site says hello',
}
LUA = """
function slurm_job_submit(job, parts, uid)
  if job.name == "refused" then
    slurm.log_user("%s", "the site has a rule against this")
    return slurm.ERROR
  end
  job.comment = "seen by the site"
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, parts, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
CHAINS = {
    "Prolog": f"{SITE}/prolog.sh",
    "Epilog": f"{SITE}/epilog.sh",
    "TaskProlog": f"{SITE}/task.sh",
    "EpilogSlurmctld": f"{SITE}/end.sh",
    "HealthCheckProgram": f"{SITE}/health.sh",
    "job_submit.lua": "/etc/slurm/job_submit.lua",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, gpus=2, hcas=1, config={"watchdog": {"poll_s": 2.0}}) as up:
        yield up


def doctor(cluster: Cluster, host: str) -> tuple[int, dict[str, Any]]:
    done = cluster.run(["aistation", "doctor", "--json"], host=host, check=False)
    return done.returncode, json.loads(done.stdout)


def faults(cluster: Cluster, host: str) -> set[str]:
    _, found = doctor(cluster, host)
    return {item["rule"] for item in found["problems"] if item["severity"] != "note"}


def assert_clean(cluster: Cluster) -> None:
    for host in ("ctl", "gpu1"):
        code, found = doctor(cluster, host)
        assert [item for item in found["problems"] if item["rule"] not in FORCED] == []
        assert code == 0
        assert found["slurm_release"] is not None


def test_the_suite_in_force_is_clean(cluster: Cluster) -> None:
    assert_clean(cluster)


def test_what_went_wrong_since_is_named(cluster: Cluster) -> None:
    conf = cluster.conf_dir / "slurm.conf"
    good = conf.read_text()
    cluster.stop_watchdog()
    cluster.stop_agent("gpu1")
    cluster.run(["scontrol", "update", "NodeName=gpu2", "AvailableFeatures=fast", "ActiveFeatures=fast"])
    conf.write_text(good.replace("MinJobAge=300", "MinJobAge=250"))
    try:
        assert faults(cluster, "ctl") == {"daemons.watchdog", "daemons.stale", "features.declared"}
        assert faults(cluster, "gpu1") == {"daemons.agent", "daemons.stale", "features.declared"}
        cluster.run(["scontrol", "reconfigure"])
        assert faults(cluster, "ctl") == {"daemons.watchdog"}, "Slurm takes the feature away, as the advice says"
    finally:
        conf.write_text(good)
        cluster.run(["scontrol", "reconfigure"])
        cluster.start_watchdog()
        cluster.start_agent("gpu1")
    cluster.wait_for(
        lambda: not faults(cluster, "ctl") | faults(cluster, "gpu1"), 60, "doctor to find nothing any more"
    )


def test_without_a_controller_the_files_are_judged_all_the_same(cluster: Cluster) -> None:
    cluster.stop_slurmctld()
    try:
        _, found = doctor(cluster, "ctl")
        assert [text for text in found["not_looked_at"] if text.startswith("the running daemons: ")] != []
        assert {item["rule"] for item in found["problems"]} <= FORCED
    finally:
        cluster.start_slurmctld()
        cluster.wait_for(lambda: not faults(cluster, "ctl"), 60, "slurmctld to answer")


@pytest.mark.skipif(bool(os.environ.get("AIS_SLURM")), reason="newer slurmctld does not start at all")
def test_a_hook_that_was_not_there_at_the_start() -> None:
    """slurmctld 22.05 goes on without it, whatever `scontrol show config` says and `scontrol reconfigure` does."""
    with Cluster(nodes=1, gpus=1, hcas=1, conf_extra="EpilogSlurmctld=/etc/slurm/late.sh") as c:
        assert "files.missing" in faults(c, "ctl")
        late = c.conf_dir / "late.sh"
        late.write_text(
            "#!/bin/sh\n/opt/aistation/epilog/aistation-epilog-slurmctld\necho ran >>/var/log/slurm/late.log\n"
        )
        late.chmod(0o755)
        c.run(["scontrol", "reconfigure"])
        c.wait_job(c.submit("true"), "COMPLETED")
        assert faults(c, "ctl") == {"hooks.dropped"}
        c.stop_slurmctld()
        c.start_slurmctld()
        c.wait_for(lambda: not faults(c, "ctl"), 60, "doctor to find nothing any more")
        c.submit("true")
        c.wait_for(lambda: log_of(c, "ctl", "/var/log/slurm/late.log") == "ran\n", 60, "the hook to run")


@pytest.fixture(scope="module")
def chained(cluster: Cluster) -> Cluster:
    """A site's scripts in place first; then `aistation install --chain`, and the lines that it says to change."""
    folder = cluster.conf_dir / "site"
    folder.mkdir()
    for name, text in SCRIPTS.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (cluster.conf_dir / "job_submit.lua").write_text(LUA)
    chains = [word for key, path in CHAINS.items() for word in ("--chain", f"{key}={path}")]
    for host, role in (("ctl", "controller"), *((name, "node") for name in cluster.names)):
        argv = ["aistation", "install", "--role", role, "--slurm-dir", "/etc/slurm", *chains]
        said = cluster.run(argv, host=host).stdout
        assert "/etc/slurm/job_submit.lua: it is the site's" in said or role == "node"
        again = cluster.run(["aistation", "install", "--role", role, "--slurm-dir", "/etc/slurm"], host=host).stdout
        assert not re.search(r"^(written|updated)", again, re.MULTILINE)
    lua = cluster.conf_dir / "job_submit.lua"
    lua.rename(cluster.conf_dir / "job_submit.site.lua")
    lua.write_text((cluster.disk("ctl") / "aistation/wrappers/job_submit.lua").read_text())
    conf = cluster.conf_dir / "slurm.conf"
    ours = r"(?m)^(Prolog|Epilog|TaskProlog|EpilogSlurmctld|PrologFlags|JobSubmitPlugins|JobRequeue)=.*\n"
    conf.write_text(re.sub(ours, "", conf.read_text()) + "Include aistation.conf\n")
    cluster.stop_slurmctld()
    cluster.start_slurmctld()
    for name in cluster.names:
        cluster.kill_slurmd(name)
        cluster.start_slurmd(name)
    cluster.reset()
    return cluster


def log_of(cluster: Cluster, host: str, path: str = "/var/log/site.log") -> str:
    return cluster.run(["cat", path], host=host, check=False).stdout


def test_doctor_is_content_with_what_install_wrote(chained: Cluster) -> None:
    assert f"{INSTALLED}/prolog/aistation-prolog || exit" in log_of(chained, "gpu1", "/etc/aistation/wrappers/prolog")
    assert_clean(chained)


def test_both_task_prologs_reach_the_job_and_all_hooks_run(chained: Cluster) -> None:
    chained.run(["mkdir", "-p", "/shared/alice/ckpt"], user="alice")
    options = ["--nodes=2", "--gpus-per-node=1", "--ais-resume", "--ais-ckpt-dir=/shared/alice/ckpt"]
    options.append("--output=/shared/alice/both.out")
    job = chained.submit("echo $SITE_VALUE, attempt $AISTATION_ATTEMPT", *options)
    found = chained.wait_job(job, "COMPLETED")
    assert found["comment"].startswith("seen by the site")
    out = log_of(chained, "ctl", "/shared/alice/both.out")
    assert "the site says hello" in out
    assert "of-the-site, attempt 0\n" in out
    for name in chained.names:
        chained.wait_for(
            lambda name=name: f"epilog {job}\n" in log_of(chained, name), 30, f"the site's epilog on {name}"
        )
        assert f"prolog {job}\n" in log_of(chained, name)
    chained.wait_for(
        lambda: f"end {job}\n" in log_of(chained, "ctl", "/var/log/slurm/site.log"), 30, "the site's own end"
    )


def test_exit_codes_of_the_sites_scripts_pass_through(chained: Cluster) -> None:
    job = chained.submit("echo never", "--ais-resume", "--output=/shared/alice/never.out", env={"SITE_FAILS": "1"})
    chained.wait_job(job, "FAILED")
    assert chained.show_job(job)["ExitCode"] == "7:0"
    assert "never" not in log_of(chained, "ctl", "/shared/alice/never.out")

    def told() -> bool:
        incidents = json.loads(chained.run(["aistation", "incidents", "--json"], check=False).stdout)["incidents"]
        return any(row["job_id"] == job for row in incidents)

    chained.wait_for(told, 30, "the watchdog to learn of it, by AIStation's half of EpilogSlurmctld")


def test_the_sites_rules_at_submission_stay(chained: Cluster) -> None:
    argv = ["sbatch", "--job-name=refused", "--wrap", "true"]
    done = chained.run(argv, user="alice", check=False)
    assert done.returncode != 0
    assert "the site has a rule against this" in done.stderr


def test_both_health_checks_run(chained: Cluster) -> None:
    # slurmd runs it when it starts, which the fixture had it do
    chained.wait_for(lambda: "health\n" in log_of(chained, "gpu1"), 90, "slurmd to run the site's health check")
    done = chained.run(["/etc/aistation/wrappers/health-check"], host="gpu1", check=False)
    assert done.returncode == 0
    assert "gpu1" in done.stdout


def test_uninstall_leaves_what_slurm_conf_still_names(chained: Cluster) -> None:
    said = chained.run(["aistation", "install", "--uninstall", "--dry-run"], host="gpu1").stdout
    for path in ("/etc/slurm/aistation.conf", "/etc/aistation/wrappers/prolog"):
        assert f"kept       {path}: slurm.conf still names it" in said
    assert "removed    /etc/systemd/system/aistation-agent.service" in said
