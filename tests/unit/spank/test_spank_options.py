"""The SPANK plugin itself, loaded by a driver that stands in for sbatch (driver.c)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aistation_slurm.checkpoints.choose import PLACEHOLDERS

REPOSITORY = Path(__file__).resolve().parents[3]
FOLDER = REPOSITORY / "slurm_plugins"
LOCAL, REMOTE, ALLOCATOR, SLURMD, JOB_SCRIPT = "1", "2", "3", "4", "5"

FRAMEWORKS = "auto, megatron, deepspeed, hf, lightning, dcp, nemo, none"
SWITCH_FORM = "pack, spread or any, then ,max=N (1 to 10000) and ,wait=MIN (0 to 10080) where wanted"

ACCEPTED = [
    ("--ais-resume", "AISTATION_RESUME=auto"),
    ("--ais-resume=", "AISTATION_RESUME=auto"),
    ("--ais-resume=(null)", "AISTATION_RESUME=auto"),  # how Slurm itself hands a bare option to srun inside the job
    *((f"--ais-resume={name}", f"AISTATION_RESUME={name}") for name in FRAMEWORKS.split(", ")),
    ("--ais-ckpt-dir=/lustre/run 1", "AISTATION_CKPT_DIR=/lustre/run 1"),
    ("--ais-ckpt-dir=ckpt", "AISTATION_CKPT_DIR={cwd}/ckpt"),
    ("--ais-ckpt-dir=/" + "x" * 1022, "AISTATION_CKPT_DIR=/" + "x" * 1022),
    ("--ais-dataset=../data", "AISTATION_DATASET={cwd}/../data"),
    (
        "--ais-resume-args=--load {path} --step {step}",
        "AISTATION_RESUME_ARGS_TEMPLATE=--load {path} --step {step}",
    ),
    (
        "--ais-resume-args=x.ckpt={name},{dir}:{tag}@1%",
        "AISTATION_RESUME_ARGS_TEMPLATE=x.ckpt={name},{dir}:{tag}@1%",
    ),
    ("--ais-max-restarts=0", "AISTATION_MAX_RESTARTS=0"),
    ("--ais-max-restarts=1000", "AISTATION_MAX_RESTARTS=1000"),
    ("--ais-hang-timeout=30", "AISTATION_HANG_TIMEOUT=30"),
    ("--ais-health=full", "AISTATION_HEALTH=full"),
    ("--ais-switch=pack", "AISTATION_SWITCH=pack"),
    ("--ais-switch=any,max=4", "AISTATION_SWITCH=any,max=4"),
    ("--ais-switch=pack,wait=0,max=2", "AISTATION_SWITCH=pack,wait=0,max=2"),
]

REFUSED = [
    ("--ais-resume=torch", f"--ais-resume=torch: expected one of {FRAMEWORKS}"),
    ("--ais-resume=AUTO", FRAMEWORKS),
    ("--ais-resume=auto\nX=1", "control characters"),
    ("--ais-ckpt-dir=", "--ais-ckpt-dir=: expected DIR"),
    ("--ais-ckpt-dir=/a\tb", "control characters"),
    ("--ais-ckpt-dir=/a\x7f", "control characters"),
    ("--ais-ckpt-dir=/a\x85b", "control characters"),  # next line, C2 85 in UTF-8
    ("--ais-ckpt-dir=/" + "x" * 1023, "less than 1024 bytes"),
    ("--ais-ckpt-dir=" + "x" * 1020, "less than 1024 bytes"),
    ("--ais-resume-args=--load {file}", "{path} {dir} {step} {tag} {name}"),
    ("--ais-resume-args=--load {path", "{path}"),
    ("--ais-resume-args=--load path}", "{path}"),
    ("--ais-resume-args={}", "{path}"),
    *((f"--ais-resume-args=--load {c}", "without quotes") for c in "\"'$`\\;&|<>()*?[]~#!"),
    ("--ais-max-restarts=-1", "a whole number from 0 to 1000"),
    ("--ais-max-restarts=1001", "a whole number from 0 to 1000"),
    ("--ais-max-restarts=3x", "a whole number from 0 to 1000"),
    ("--ais-max-restarts=99999999999999999999", "a whole number from 0 to 1000"),
    ("--ais-hang-timeout=0", "minutes, a whole number from 1 to 10080"),
    ("--ais-health=deep", "one of quick, full, off"),
    ("--ais-switch=tight", SWITCH_FORM),
    ("--ais-switch=pack,", SWITCH_FORM),
    ("--ais-switch=max=2", SWITCH_FORM),
    ("--ais-switch=pack,max=", SWITCH_FORM),
    ("--ais-switch=pack,max=0", SWITCH_FORM),
    ("--ais-switch=pack,max=2,wait=5m", SWITCH_FORM),
    ("--ais-switch=pack,most=2", SWITCH_FORM),
]


@pytest.fixture(scope="module")
def plugin() -> Path:
    subprocess.run(["make", "-C", str(FOLDER)], check=True, capture_output=True, timeout=120)
    return FOLDER / "spank_aistation.so"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    program = tmp_path_factory.mktemp("driver") / "driver"
    source = Path(__file__).with_name("driver.c")
    argv = ["cc", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-o", str(program), str(source), "-ldl"]
    subprocess.run(argv, check=True, timeout=120)
    return program


class Sbatch:
    """Gives options to the plugin, in one process per call, with an environment of its own."""

    def __init__(self, driver: Path, plugin: Path, cwd: Path) -> None:
        self.argv = [str(driver), str(plugin)]
        self.cwd = cwd

    def __call__(self, *options: str, context: str = ALLOCATOR, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.argv, context, *options],
            cwd=self.cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


@pytest.fixture
def sbatch(driver: Path, plugin: Path, tmp_path: Path) -> Sbatch:
    return Sbatch(driver, plugin, tmp_path)


def lines(result: subprocess.CompletedProcess[str], kind: str) -> list[str]:
    return [line[len(kind) + 1 :] for line in result.stdout.split("\n") if line.startswith(kind + " ")]


@pytest.mark.parametrize(("option", "wanted"), ACCEPTED, ids=[option[:40] for option, _ in ACCEPTED])
def test_a_good_value_becomes_one_variable(sbatch: Sbatch, option: str, wanted: str) -> None:
    result = sbatch(option)
    assert (result.returncode, result.stderr) == (0, "")
    assert lines(result, "set") == [wanted.replace("{cwd}", str(sbatch.cwd))]


@pytest.mark.parametrize(("option", "named"), REFUSED, ids=[repr(option)[:40] for option, _ in REFUSED])
def test_a_bad_value_is_refused_and_the_allowed_ones_are_named(sbatch: Sbatch, option: str, named: str) -> None:
    result = sbatch(option)
    assert lines(result, "refused")
    assert named in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not lines(result, "set")


def test_every_option_has_help_and_only_resume_may_lack_a_value(sbatch: Sbatch) -> None:
    options = [line.split(" ", 2) for line in lines(sbatch(), "option")]
    assert [(name, has_arg) for name, has_arg, _ in options] == [
        ("ais-resume", "2"),
        ("ais-ckpt-dir", "1"),
        ("ais-resume-args", "1"),
        ("ais-max-restarts", "1"),
        ("ais-hang-timeout", "1"),
        ("ais-health", "1"),
        ("ais-switch", "1"),
        ("ais-dataset", "1"),
    ]
    assert all(len(usage) > 20 for _, _, usage in options)


def test_a_template_takes_the_placeholders_that_the_start_up_helper_fills(sbatch: Sbatch) -> None:
    for name in (*PLACEHOLDERS, "other"):
        refused = bool(lines(sbatch(f"--ais-resume-args=--x {{{name}}}"), "refused"))
        assert refused == (name not in PLACEHOLDERS)


def test_no_option_sets_nothing(sbatch: Sbatch) -> None:
    assert lines(sbatch(), "set") == []


def test_the_last_value_wins(sbatch: Sbatch) -> None:
    """#SBATCH lines, then the environment, then the command line; the same option may come three times."""
    result = sbatch("--ais-resume=hf", "--ais-resume", "--ais-resume=dcp", "--ais-resume=dcp")
    assert lines(result, "set") == ["AISTATION_RESUME=dcp"]


@pytest.mark.parametrize("context", ["0", REMOTE, SLURMD, JOB_SCRIPT, "6"])
def test_elsewhere_than_at_submission_it_registers_and_does_nothing(sbatch: Sbatch, context: str) -> None:
    result = sbatch(context=context, SLURM_JOB_ID="5", SLURM_SPANK_AISTATION_RESUME="auto")
    assert len(lines(result, "option")) == 8
    assert (lines(result, "init"), lines(result, "post_opt"), lines(result, "set")) == (["0"], ["0"], [])
    assert "SLURM_SPANK_AISTATION_RESUME=auto" in lines(result, "env")


def test_slurmstepd_never_refuses(sbatch: Sbatch) -> None:
    """A refusal there would fail the job's launch; the value was judged at submission."""
    result = sbatch("--ais-resume=forged", context=REMOTE)
    assert (result.returncode, lines(result, "set"), result.stderr) == (0, [], "")


def test_srun_allocates_with_the_options(sbatch: Sbatch) -> None:
    assert lines(sbatch("--ais-resume=hf", context=LOCAL), "set") == ["AISTATION_RESUME=hf"]


def test_srun_inside_a_job_leaves_the_jobs_values_alone(sbatch: Sbatch) -> None:
    """It gets the options again from the environment; a relative directory would mean another one there."""
    result = sbatch("--ais-ckpt-dir=ckpt", context=LOCAL, SLURM_JOB_ID="5")
    assert (result.returncode, lines(result, "set")) == (0, [])


def test_a_job_submitted_from_a_job_inherits_nothing(sbatch: Sbatch) -> None:
    outer = {
        "SLURM_JOB_ID": "5",
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_RESTART_COUNT": "2",
        "SLURM_SPANK_AISTATION_RESUME": "hf",
        "SLURM_SPANK_AISTATION_CKPT_DIR": "/outer",
        "SLURM_SPANK__SLURM_SPANK_OPTION_aistation_ais_resume": "hf",
        "SLURM_SPANK__SLURM_SPANK_OPTION_theirs_x": "1",
        "AISTATION_ATTEMPT": "2",
        "AISTATION_RESUME_ARGS": "--load /outer",
        "AISTATION_IF_UNREADABLE": "start",
        "SLURM_JOB_NAME": "x",
    }
    left = lines(sbatch(**outer), "env")
    assert sorted(left) == [
        "AISTATION_IF_UNREADABLE=start",
        "SLURM_JOB_ID=5",
        "SLURM_JOB_NAME=x",
        "SLURM_SPANK__SLURM_SPANK_OPTION_theirs_x=1",
    ]


def test_a_login_shell_keeps_its_default(sbatch: Sbatch) -> None:
    """Outside a job the environment form is a user's own default (spank(7))."""
    name = "SLURM_SPANK__SLURM_SPANK_OPTION_aistation_ais_resume"
    assert lines(sbatch(**{name: "hf"}), "env") == [f"{name}=hf"]


def test_only_spanks_own_symbols_are_exported(plugin: Path) -> None:
    """Slurm calls an exported init() or fini() of any plugin."""
    argv = ["nm", "-D", "--defined-only", str(plugin)]
    table = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
    assert {line.split()[-1] for line in table.splitlines()} == {
        "plugin_name",
        "plugin_type",
        "plugin_version",
        "spank_plugin_version",
        "slurm_spank_init",
        "slurm_spank_init_post_opt",
    }


@pytest.mark.parametrize(
    ("compiler", "named"), [("cc -nostdinc", "libslurm-dev"), ("no-such-compiler", "no C compiler found")]
)
def test_make_says_what_is_missing(plugin: Path, tmp_path: Path, compiler: str, named: str) -> None:
    for name in ("Makefile", "spank_aistation.c"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    argv = ["make", "-C", str(tmp_path), f"CC={compiler}"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode != 0
    assert named in result.stderr
    assert not (tmp_path / "spank_aistation.so").exists()
