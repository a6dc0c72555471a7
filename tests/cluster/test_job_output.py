"""What a failed job's own output says, read by the epilog as the user, on a real Slurm."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster

pytestmark = pytest.mark.cluster

SHOUT = "[rank3]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
ONCE = f"""#!/bin/bash
[ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && exit 0
echo '{SHOUT}'
exit 1
"""
OWN = """#!/bin/bash
echo "[rank1]: ValueError: bad learning rate" >&2
exit 1
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, aistation=True, config={"watchdog": {"poll_s": 5.0}}) as up:
        yield up


def story(cluster: Cluster, job_id: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(cluster.run(["aistation", "explain", str(job_id), "--json"]).stdout)
    return told


def test_a_network_error_without_a_known_fault_is_tried_again(cluster: Cluster) -> None:
    job_id = cluster.submit(ONCE, "--gpus-per-node=8", "--nodes=2", "--ais-resume", user="alice")
    cluster.wait_job(job_id, "COMPLETED", timeout=90)
    job = cluster.show_job(job_id)
    assert job["Restarts"] == "1"
    assert " own=1 " in job["AdminComment"]
    assert "its output tells of communication, rank 3 first" in json.dumps(story(cluster, job_id))
    assert all("DRAIN" not in cluster.node(name)["flags"] for name in cluster.names)


def test_a_programs_own_error_is_its_users(cluster: Cluster) -> None:
    job_id = cluster.submit(OWN, "--gpus-per-node=8", "--ais-resume", user="alice")
    cluster.wait_job(job_id, "FAILED", timeout=90)
    told = "left alone (user): the job failed with exit code 1, and no fault was found on gpu1; its output tells of program"
    cluster.wait_for(lambda: told in json.dumps(story(cluster, job_id)), 60, "the job to be judged")
    assert cluster.show_job(job_id)["Restarts"] == "0"


def test_output_that_the_epilog_cannot_read_stops_nothing(cluster: Cluster) -> None:
    """A link to a file of root's, put in place of the output: nothing of it is read, and the job is the user's."""
    script = "#!/bin/bash\nrm out-$SLURM_JOB_ID; ln -s /etc/shadow out-$SLURM_JOB_ID; exit 1\n"
    job_id = cluster.submit(script, "--gpus-per-node=8", "--ais-resume", "--output=out-%j", user="alice")
    cluster.wait_job(job_id, "FAILED", timeout=90)
    cluster.wait_for(lambda: "left alone (user)" in json.dumps(story(cluster, job_id)), 60, "the job to be judged")
    time.sleep(6)
    assert f"{job_id}@" not in cluster.run(["scontrol", "show", "nodes"]).stdout
