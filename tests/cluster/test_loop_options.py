"""The options on a real Slurm: refused or kept, from `sbatch` to the script of every attempt and to the watchdog's event."""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import Cluster, CommandError, suite
from tests.cluster.host_root import USERS

pytestmark = pytest.mark.cluster

OPTIONS = ("resume", "ckpt-dir", "resume-args", "max-restarts", "hang-timeout", "health", "switch", "dataset")

# A file system whose server never answers: everything that touches it sits in state D until this process ends.
HUNG_MOUNT = """
import ctypes, os, stat, sys, time
try:
    os.mknod("/dev/fuse", 0o600 | stat.S_IFCHR, os.makedev(10, 229))
except FileExistsError:
    pass
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"hung", sys.argv[1].encode(), b"fuse", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2) as up:
        # The events stay in the spool, and nobody but the tests restarts a job.
        if suite.has_command("watchdog"):
            up.stop_watchdog()
        yield up


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.reset()
    for path in spool(cluster).iterdir():
        path.unlink(missing_ok=True)  # the epilog of a job that was cancelled just now may be renaming it


def spool(cluster: Cluster) -> Path:
    return cluster.disk("ctl") / "var/spool/aistation/events"


def home(cluster: Cluster) -> Path:
    """Alice's folder on the shared file system, where her jobs start: /shared/alice inside."""
    return cluster.dir / "shared/alice"


def output(cluster: Cluster, job_id: int) -> str:
    return (home(cluster) / f"slurm-{job_id}.out").read_text(encoding="utf-8")


def variables(text: str, prefix: str = "AISTATION_") -> dict[str, str]:
    """Of the lines of `env` those whose name has the prefix, without it."""
    return dict(re.findall(rf"^{prefix}([A-Z_]+)=(.*)$", text, re.MULTILINE))


def events(cluster: Cluster, job_id: int, count: int = 1) -> list[dict[str, str]]:
    """The events of a job, oldest attempt first; waits until there are ``count``."""

    def whole() -> list[Path]:
        found = sorted(spool(cluster).glob(f"{job_id}.*.ev"))
        return found if len(found) >= count else []

    paths = cluster.wait_for(whole, 30, f"{count} events of job {job_id}")
    texts = [path.read_text(encoding="utf-8") for path in paths]
    found = [dict(line.partition("=")[::2] for line in text.split("\n")[:-1]) for text in texts]
    return sorted(found, key=lambda event: int(event["RESTART_COUNT"]))


def restart(cluster: Cluster, job_id: int) -> None:
    """What the watchdog does, by hand: requeue, then a start time that does not wait for Slurm's 121 s."""
    cluster.run(["scontrol", "requeue", str(job_id)])
    cluster.wait_job(job_id, "PENDING")
    cluster.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now+2seconds"])


def checkpoint(cluster: Cluster, directory: str, step: int, user: str = "alice") -> None:
    """A checkpoint as transformers' Trainer writes it, with one real tensor."""
    folder = cluster.dir / directory.lstrip("/") / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    header = b'{"w":{"dtype":"F32","shape":[64],"data_offsets":[0,256]}}'
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + os.urandom(256))
    (folder / "trainer_state.json").write_text(f'{{"global_step": {step}, "epoch": 1.0}}', encoding="utf-8")
    for path in (folder, *folder.iterdir(), folder.parent):
        os.chown(path, USERS[user], USERS[user])


def submit_error(cluster: Cluster, *argv: str, script: str = "#!/bin/sh\ntrue\n") -> str:
    """What a command says that is refused."""
    with pytest.raises(CommandError) as refused:
        cluster.run(argv, "alice", input=script)
    return str(refused.value)


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_the_options_are_in_the_help(cluster: Cluster, command: str) -> None:
    text = cluster.run([command, "--help"], "alice").stdout
    assert [name for name in OPTIONS if f"--ais-{name}=" not in text] == []


def test_options_in_the_script_reach_the_script_and_every_step(cluster: Cluster) -> None:
    job_id = cluster.submit(
        "#!/bin/bash\n"
        "#SBATCH --ais-resume --ais-ckpt-dir=run --ais-max-restarts=3\n"
        "#SBATCH --ais-resume-args='--load {path} --at {step}'\n"
        "#SBATCH --ais-hang-timeout=30 --ais-health=quick --ais-switch=pack,max=1,wait=2 --ais-dataset=/shared/data\n"
        "env\n"
        "cd / && srun env >/shared/alice/step\n"
    )
    cluster.wait_job(job_id, "COMPLETED")
    script = output(cluster, job_id)
    wanted = {
        "RESUME": "auto",
        "CKPT_DIR": "/shared/alice/run",
        "MAX_RESTARTS": "3",
        "RESUME_ARGS_TEMPLATE": "--load {path} --at {step}",
        "HANG_TIMEOUT": "30",
        "HEALTH": "quick",
        "SWITCH": "pack,max=1,wait=2",
        "DATASET": "/shared/data",
    }
    step = (home(cluster) / "step").read_text(encoding="utf-8")
    assert variables(script, "SLURM_SPANK_AISTATION_") == variables(step, "SLURM_SPANK_AISTATION_") == wanted
    assert variables(script) == {
        "ATTEMPT": "0",
        "RESUME_ARGS": "",
        "RESUME_PATH": "",
        "RESUME_STEP": "",
        "EXCLUDED_NODES": "",
    }
    assert variables(step) == variables(script)


def test_the_command_line_wins_over_the_script(cluster: Cluster) -> None:
    job_id = cluster.submit("#!/bin/sh\n#SBATCH --ais-resume=hf\nenv\n", "--ais-resume=dcp")
    cluster.wait_job(job_id, "COMPLETED")
    assert variables(output(cluster, job_id), "SLURM_SPANK_AISTATION_") == {"RESUME": "dcp"}


def test_the_options_are_kept_without_the_users_environment(cluster: Cluster) -> None:
    job_id = cluster.submit("env", "--export=NONE", "--ais-resume=hf")
    cluster.wait_job(job_id, "COMPLETED")
    assert variables(output(cluster, job_id)).get("ATTEMPT") == "0"


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("--ais-resume=torch", "auto, megatron, deepspeed, hf, lightning, dcp, nemo, none"),
        ("--ais-health=deep", "quick, full, off"),
        ("--ais-switch=tight", "pack, spread or any"),
        ("--ais-max-restarts=many", "a whole number from 0 to 1000"),
        ("--ais-resume-args=--load $(id)", "{path} {dir} {step}"),
    ],
)
def test_a_bad_value_is_refused_at_submission(cluster: Cluster, option: str, allowed: str) -> None:
    assert allowed in submit_error(cluster, "sbatch", option)
    assert allowed in submit_error(cluster, "sbatch", script=f"#!/bin/sh\n#SBATCH '{option}'\ntrue\n")
    assert allowed in submit_error(cluster, "srun", option, "true")
    assert cluster.run(["squeue", "-h"]).stdout == ""


def test_a_restart_resumes_from_the_newest_checkpoint_with_the_same_options(cluster: Cluster) -> None:
    checkpoint(cluster, "/shared/alice/kept", 900)
    job_id = cluster.submit(
        "env >env.$AISTATION_ATTEMPT\n"
        'echo train.py $AISTATION_RESUME_ARGS >>"env.$AISTATION_ATTEMPT"\n'
        '[ "$AISTATION_ATTEMPT" = 2 ] || { cp -a kept trained; exec sleep 300; }\n',
        "--ais-resume=hf",
        "--ais-ckpt-dir=trained",
        "--ais-resume-args=--load {path} --at {step}",
        "--ais-max-restarts=7",
    )
    for attempt in (0, 1):
        cluster.wait_for((home(cluster) / "trained").exists, 60, "the first checkpoint")
        cluster.wait_for((home(cluster) / f"env.{attempt}").exists, 60, f"attempt {attempt}")
        restart(cluster, job_id)
    cluster.wait_job(job_id, "COMPLETED", timeout=90)
    seen = [(home(cluster) / f"env.{attempt}").read_text(encoding="utf-8") for attempt in range(3)]
    path = "/shared/alice/trained/checkpoint-900"
    assert variables(seen[0])["RESUME_ARGS"] == variables(seen[0])["RESUME_PATH"] == ""
    for attempt in (1, 2):
        assert variables(seen[attempt]) == {
            "ATTEMPT": str(attempt),
            "RESUME_ARGS": f"--load {path} --at 900",
            "RESUME_PATH": path,
            "RESUME_STEP": "900",
            "EXCLUDED_NODES": "",
        }
        assert f"train.py --load {path} --at 900\n" in seen[attempt]
    kept = [variables(text, "SLURM_SPANK_AISTATION_") for text in seen]
    assert kept[0] == kept[1] == kept[2]
    assert f"aistation: attempt 2 resumes from {path}, step 900" in output(cluster, job_id)
    attempts = (home(cluster) / "trained/.aistation-attempts").read_text(encoding="utf-8").splitlines()
    assert len(attempts) == 2
    assert (home(cluster) / "trained/.aistation-attempts").stat().st_uid == USERS["alice"]
    for count, event in enumerate(events(cluster, job_id, 3)):
        assert event["SPANK_AISTATION_RESUME"] == "hf"
        assert event["SPANK_AISTATION_MAX_RESTARTS"] == "7"
        # a user's requeue raises the count before the epilog
        assert event["RESTART_COUNT"] == str(min(count + 1, 2))
        assert event["NODELIST"] in ("gpu1", "gpu2")


def test_only_jobs_that_opted_in_make_events(cluster: Cluster) -> None:
    plain = cluster.submit("true")
    none = cluster.submit("true", "--ais-resume=none")
    failed = cluster.submit("exit 3", "--ais-resume")
    for job_id in (plain, none):
        cluster.wait_job(job_id, "COMPLETED")
    cluster.wait_job(failed, "FAILED")
    (event,) = events(cluster, failed)
    assert (event["JOB_ID"], event["UID"], event["EXIT_CODE2"]) == (str(failed), str(USERS["alice"]), "3:0")
    assert int(event["TIME"]) <= time.time()
    assert not [path for path in spool(cluster).iterdir() if path.name.startswith((f"{plain}.", f"{none}."))]


def test_array_tasks_make_events_with_their_ids(cluster: Cluster) -> None:
    array = cluster.submit("echo attempt $AISTATION_ATTEMPT", "--ais-resume=hf", "--array=1-2")

    def theirs() -> list[str]:
        texts = [path.read_text(encoding="utf-8") for path in spool(cluster).glob("*.ev")]
        return [text for text in texts if f"ARRAY_JOB_ID={array}\n" in text]

    cluster.wait_for(lambda: len(theirs()) >= 2, 60, "the events of both tasks")
    texts = theirs()
    assert sorted(re.findall(r"^ARRAY_TASK_ID=(\d+)$", "".join(texts), re.MULTILINE)) == ["1", "2"]


def test_hostile_text_of_a_user_makes_one_harmless_event(cluster: Cluster) -> None:
    """Job name, comment and a directory full of shell characters; the event reaches root's programs."""
    folder = "a $(touch pwned) `touch pwned` %s 'x' \"y\""
    job_id = cluster.submit(
        "true", "--ais-resume", f"--ais-ckpt-dir={folder}", "--job-name=x\nJOB_ID=1", "--comment=$(touch pwned)\nUID=0"
    )
    cluster.wait_job(job_id, "COMPLETED")
    (event,) = events(cluster, job_id)
    assert event["SPANK_AISTATION_CKPT_DIR"] == f"/shared/alice/{folder}"
    assert (event["JOB_ID"], event["UID"]) == (str(job_id), str(USERS["alice"]))
    assert not list(cluster.dir.rglob("pwned"))


def test_a_managed_job_bears_a_tag_that_its_user_cannot_write(cluster: Cluster) -> None:
    result = cluster.run(
        ["sbatch", "--parsable", "--ais-resume=hf", "--ais-max-restarts=3", "--hold"],
        "alice",
        input="#!/bin/sh\ntrue\n",
    )
    job_id = int(result.stdout)
    assert "restarted after a hardware fault [ais resume=hf max=3]" in result.stderr
    assert cluster.show_job(job_id)["AdminComment"].startswith("[ais resume=hf max=3]")
    with pytest.raises(CommandError):
        cluster.run(["scontrol", "update", f"JobId={job_id}", "AdminComment=[ais resume=hf max=900]"], "alice")
    cluster.run(["scontrol", "update", f"JobId={job_id}", "Comment=mine"], "alice")
    assert "[ais resume=hf max=3]" in cluster.show_job(job_id)["AdminComment"]


def test_no_requeue_is_honoured_and_said(cluster: Cluster) -> None:
    argv = ["sbatch", "--parsable", "--ais-resume", "--no-requeue", "--hold"]
    result = cluster.run(argv, "alice", input="#!/bin/sh\ntrue\n")
    assert "--no-requeue stands" in result.stderr
    job = cluster.show_job(int(result.stdout))
    assert (job.get("AdminComment"), job["Requeue"]) == (None, "0")


def test_the_switch_limit_is_set_and_the_users_own_wins(cluster: Cluster) -> None:
    held = ["--hold", "--nodes=2"]
    asked = cluster.submit("true", *held, "--ais-switch=pack,max=1,wait=3")
    own = cluster.submit("true", *held, "--ais-switch=pack,max=1,wait=3", "--switches=2@1:00")
    assert cluster.show_job(asked)["Switches"] == "1@00:03:00"
    assert cluster.show_job(own)["Switches"] == "2@00:01:00"


@contextmanager
def replaced_module(cluster: Cluster, text: str) -> Iterator[None]:
    """Another aistation.lua; slurmctld reads it when job_submit.lua has a later time (of whole seconds)."""
    module, script = cluster.conf_dir / "aistation.lua", cluster.conf_dir / "job_submit.lua"
    good = module.read_text(encoding="utf-8")

    def put(content: str) -> None:
        module.write_text(content, encoding="utf-8")
        later = max(time.time(), script.stat().st_mtime) + 2
        os.utime(script, (later, later))

    put(text)
    try:
        yield
    finally:
        put(good)


@pytest.mark.parametrize(
    "text",
    ["this is not Lua", "error('100% broken')", "return { job_submit = function() error('100% broken') end }"],
    ids=["syntax", "raises at loading", "raises at a job"],
)
def test_a_broken_module_loses_no_job(cluster: Cluster, text: str) -> None:
    before = cluster.logs("slurmctld").count("aistation.lua is not usable")
    with replaced_module(cluster, text):
        job_id = cluster.submit("true", "--ais-resume")
        cluster.wait_job(job_id, "COMPLETED")
    assert cluster.logs("slurmctld").count("aistation.lua is not usable") == before + 1
    assert "AdminComment" not in cluster.show_job(job_id)
    again = cluster.submit("true", "--ais-resume", "--hold")
    assert cluster.show_job(again)["AdminComment"] == "[ais resume=auto]"


def test_a_job_submitted_from_a_managed_job_is_not_managed(cluster: Cluster) -> None:
    """Slurm hands the options on through the environment; an evaluation must not resume the training's checkpoints."""
    checkpoint(cluster, "/shared/alice/outer", 5)
    job_id = cluster.submit(
        "printf '#!/bin/sh\\nenv\\n' | srun sbatch --parsable --output=inner.out >inner.id",
        "--ais-resume=hf",
        "--ais-ckpt-dir=outer",
        "--nodes=1",
    )
    cluster.wait_job(job_id, "COMPLETED")
    inner = int((home(cluster) / "inner.id").read_text(encoding="utf-8"))
    cluster.wait_job(inner, "COMPLETED")
    assert "AISTATION" not in (home(cluster) / "inner.out").read_text(encoding="utf-8")
    assert "AdminComment" not in cluster.show_job(inner)


def test_a_directory_that_the_user_may_not_read_stops_the_start(cluster: Cluster) -> None:
    checkpoint(cluster, "/shared/bob/private", 5, user="bob")
    (cluster.dir / "shared/bob/private").chmod(0o700)
    job_id = cluster.submit("echo trained from step 0", "--ais-resume=hf", "--ais-ckpt-dir=/shared/bob/private")
    cluster.wait_job(job_id, "FAILED")
    text = output(cluster, job_id)
    assert "trained" not in text
    assert "/shared/bob/private" in text
    assert "Permission denied" in text
    assert "AISTATION_IF_UNREADABLE=start" in text
    assert cluster.show_job(job_id)["ExitCode"] == "75:0"
    asked = cluster.submit(
        "echo trained from step 0 $AISTATION_RESUME_ARGS.",
        "--ais-resume=hf",
        "--ais-ckpt-dir=/shared/bob/private",
        "--export=ALL,AISTATION_IF_UNREADABLE=start",
    )
    cluster.wait_job(asked, "COMPLETED")
    assert "trained from step 0 ." in output(cluster, asked)


def test_a_hung_file_system_does_not_hang_the_start(cluster: Cluster) -> None:
    """The start-up helper sits in state D; the job ends with a message, within the limit, and leaves the node free."""
    cluster.run(["mkdir", "/mnt/hung"], host="gpu1")
    with cluster.popen(["/usr/bin/python3", "-c", HUNG_MOUNT, "/mnt/hung"], host="gpu1") as mount:
        try:
            assert mount.stdout is not None
            if mount.stdout.readline() != "mounted\n":
                pytest.skip("this kernel has no FUSE; tests/unit/task_prolog has a helper in state D too")
            began = time.monotonic()
            job_id = cluster.submit(
                "echo trained",
                "--ais-resume=hf",
                "--ais-ckpt-dir=/mnt/hung/ckpt",
                "--nodelist=gpu1",
                "--export=ALL,AISTATION_STARTUP_TIMEOUT=2",
            )
            cluster.wait_job(job_id, "FAILED", timeout=60)
            assert time.monotonic() - began < 30
        finally:
            mount.kill()
    text = output(cluster, job_id)
    assert "aistation: /mnt/hung/ckpt did not answer within 2 s on gpu1: check its file system" in text
    assert "trained" not in text
    cluster.wait_for(lambda: cluster.node("gpu1")["state"] == "IDLE", 60, "gpu1 to be free again")
