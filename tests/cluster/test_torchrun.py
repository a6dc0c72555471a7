"""A real torchrun job (PyTorch DDP over gloo, two nodes) loses a node, and the newest checkpoint is torn: it goes on, exactly.

PyTorch comes from scripts/install-torch.sh into .venv/torch, which the nodes see below /opt/aistation. Where it cannot be
installed, these tests are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import pytest

from tests.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

REPO = Path(__file__).resolve().parents[2]
EXAMPLE = REPO / "examples/torch_ddp"
TORCH = REPO / ".venv/torch/bin"
STEPS, STEP_TIME_S = 240, 0.05
NODE = {"PATH": "/opt/aistation/.venv/torch/bin:/usr/bin:/bin"}  # as after `source .../bin/activate`


@pytest.fixture(scope="module")
def torch_installed() -> None:
    argv = ["sh", str(REPO / "scripts/install-torch.sh")]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("PyTorch was not installed within 400 s; try sh scripts/install-torch.sh by hand")
    if done.returncode != 0:
        pytest.skip(f"PyTorch cannot be installed here: {(done.stderr or done.stdout).strip()[-600:]}")


@pytest.fixture(scope="module")
def undisturbed(torch_installed: None, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Loss by step of a training to which nothing happens: two ranks on this machine."""
    torchrun = [str(TORCH / "torchrun"), "--standalone", "--nnodes=1", "--nproc-per-node=2"]
    output = tmp_path_factory.mktemp("reference")
    training = [str(EXAMPLE / "train.py"), f"--output-dir={output}", f"--steps={STEPS}", f"--save-steps={STEPS}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*torchrun, *training], capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (attempt,) = losses_of_attempts(done.stdout)
    assert list(attempt) == list(range(1, STEPS + 1))
    return attempt


@pytest.fixture(scope="module")
def cluster(torch_installed: None) -> Iterator[Cluster]:
    with Cluster(nodes=3, config={"watchdog": {"poll_s": 5.0}}) as up:
        yield up


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.reset()


def losses_of_attempts(output: str) -> list[dict[int, float]]:
    """What the training printed: per attempt, step -> loss in the order of printing."""
    parts = re.split(r"^attempt \d+: .*$", output, flags=re.MULTILINE)[1:]
    found = [re.findall(r"^step (\d+) loss (\S+)$", part, flags=re.MULTILINE) for part in parts]
    return [{int(step): float(loss) for step, loss in pairs} for pairs in found]


def cut(path: Path) -> None:
    """As after a power cut: the file is there, its end is not."""
    os.truncate(path, path.stat().st_size * 2 // 3)


@dataclass(frozen=True)
class Case:
    """One kind of checkpoint, what tears it, and which of the job's nodes dies (0: the one of the script and rank 0)."""

    format: str
    prefix: str
    last_written: str
    tear: Callable[[Path], None]
    says: str
    dies: int


CASES = {
    "dcp-shard-cut": Case(
        "dcp", "step_", ".metadata", lambda c: cut(c / "__1_0.distcp"), "__1_0.distcp is cut short", dies=1
    ),
    "dcp-without-metadata": Case(
        "dcp", "step_", ".metadata", lambda c: (c / ".metadata").unlink(), ".metadata is missing", dies=0
    ),
    "hf-weights-cut": Case(
        "hf",
        "checkpoint-",
        "trainer_state.json",
        lambda c: cut(c / "model.safetensors"),
        "model.safetensors has",
        dies=0,
    ),
}


class Run:
    """The job of one test as its user sees it: output and checkpoints on the shared file system."""

    def __init__(self, cluster: Cluster, case: Case, name: str) -> None:
        self.case = case
        self.folder = cluster.dir / "shared/alice" / name
        self.output_file = cluster.dir / "shared/alice" / f"{name}.out"
        self.torn: set[int] = set()

    def output(self) -> str:
        return self.output_file.read_text(errors="replace") if self.output_file.exists() else ""

    def saved(self) -> set[int]:
        """Steps of the checkpoints whose saving ended, torn ones left out."""
        found = self.folder.glob(f"{self.case.prefix}*/{self.case.last_written}")
        return {int(path.parent.name.removeprefix(self.case.prefix)) for path in found} - self.torn

    def tear_newest(self) -> None:
        """Damage the newest checkpoint, and again, where the training still saves one behind our back."""
        newest = max(self.saved() | self.torn)
        if newest not in self.torn:
            self.torn.add(newest)
            self.case.tear(self.folder / f"{self.case.prefix}{newest}")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_node_dies_and_the_newest_checkpoint_is_torn(
    cluster: Cluster, undisturbed: dict[int, float], case: Case, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    run = Run(cluster, case, name)
    options = [f"--ais-ckpt-dir={name}", f"--output=/shared/alice/{name}.out"]
    env = {**NODE, "CKPT_FORMAT": case.format, "TRAIN_STEPS": str(STEPS), "TRAIN_STEP_TIME": str(STEP_TIME_S)}
    job_id = cluster.submit((EXAMPLE / "train.sbatch").read_text(), *options, user="alice", env=env)
    cluster.wait_job(job_id, "RUNNING", timeout=60)
    victim = cluster.expand(cluster.show_job(job_id)["NodeList"])[case.dies]
    request.addfinalizer(lambda: print(run.output()[-6000:]))  # pytest shows it where the test failed

    def in_mid_run() -> bool:
        assert cluster.show_job(job_id)["JobState"] == "RUNNING"
        return len(run.saved()) >= 3

    cluster.wait_for(in_mid_run, 240, "three checkpoints")
    run.tear_newest()
    cluster.kill_node(victim)

    def seen_down() -> bool:
        run.tear_newest()
        return cluster.node(victim)["state"] == "DOWN"

    cluster.wait_for(seen_down, 120, f"Slurm to see that {victim} is down")
    resumes_from = max(run.saved())
    assert resumes_from < max(run.torn)
    cluster.wait_job(job_id, "COMPLETED", timeout=300)

    job = cluster.show_job(job_id)
    assert job["Restarts"] == "1"
    assert victim not in cluster.expand(job["NodeList"])
    output = run.output()
    checkpoint = f"/shared/alice/{name}/{case.prefix}"
    assert f"aistation: skipped {checkpoint}{max(run.torn)}: {case.says}" in output
    assert f"aistation: attempt 1 resumes from {checkpoint}{resumes_from}, step {resumes_from}" in output
    assert f"resumed from {checkpoint}{resumes_from} at step {resumes_from}" in output
    before, after = losses_of_attempts(output)
    assert list(after) == list(range(resumes_from + 1, STEPS + 1))
    assert before == pytest.approx({step: undisturbed[step] for step in before}, rel=1e-5)
    assert after == pytest.approx({step: undisturbed[step] for step in after}, rel=1e-5)
    # a training that began anew, or without its optimizer's state, would not pass for this one
    assert after[resumes_from + 1] != pytest.approx(undisturbed[1], rel=1e-2)
