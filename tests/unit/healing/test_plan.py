"""What healing does next, as a table: nothing here looks at a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from aistation_slurm.config import Healing
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.healing.history import Attempt, Case
from aistation_slurm.healing.plan import REBOOT_SEEN_S, Seen, decide

PCI = "0000:3a:00.0"
NOW = 10_000.0
RULES = Healing(enabled=True, settle_s=0.0, pass_every_s=20.0, passes=3)


def fail(check: str = "gpu.xid", action: Action = Action.GPU_RESET, device: Optional[str] = PCI) -> Finding:
    return Finding(check, Status.FAIL, "GPU2 0000:3a:00", "Xid 48", action, device=device)


OK = Finding("gpu.lost", Status.OK, "GPUs")
SHARED = Finding("fabric.port_state", Status.FAIL, "mlx5_0/1", "down", Action.INSPECT, Scope.SHARED)


def case(*attempts: Attempt, passes: int = 0, check: str = "gpu.xid", looked: Optional[float] = 0.0) -> Case:
    state = "judging" if attempts else "open"
    return Case(
        "a1b2c3",
        "gpu1",
        "ais:gpu.xid x [a1b2c3]",
        check,
        0.0,
        state=state,
        attempts=[*attempts],
        passes=passes,
        looked=looked,
    )  # type: ignore[arg-type]


def attempt(action: str = "gpu_reset", outcome: str = "done", began: float = 9000.0, boot: str = "b1") -> Attempt:
    return Attempt(action, PCI if action == "gpu_reset" else "", boot, began, began + 1, outcome)


def look(*findings: Finding, **facts: object) -> Seen:
    return replace(Seen("b1", findings), **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("title", "findings", "action", "targets"),
    [
        ("reset", [fail()], "gpu_reset", (PCI,)),
        ("two findings on one GPU", [fail(), fail("gpu.ecc_uncorrectable")], "gpu_reset", (PCI,)),
        ("two GPUs", [fail(), fail(device="0000:9a:00.0")], "gpu_reset", (PCI, "0000:9a:00.0")),
        ("a reboot resets too", [fail(), fail("gpu.lost", Action.REBOOT)], "reboot", ()),
        ("an NVSwitch has no address to reset", [fail(device=None)], "reboot", ()),
        ("no address that nvidia-smi would take", [fail(device="0000:3a:00.0;reboot")], "reboot", ()),
    ],
)
def test_the_first_action(title: str, findings: list[Finding], action: str, targets: tuple[str, ...]) -> None:
    step = decide(look(*findings), case(), 0, RULES, NOW)
    assert (step.kind, step.action, step.targets) == ("act", action, targets)


def test_a_sites_command_goes_before_what_the_finding_asks_for_and_the_longest_pattern_counts() -> None:
    rules = Healing(enabled=True, commands={"gpu.*": ("/a",), "gpu.xid": ("/b", "x")})
    step = decide(look(fail("gpu.xid", Action.INSPECT)), case(), 0, rules, NOW)
    assert (step.kind, step.action, step.targets) == ("act", "command", ("/b", "x"))


@pytest.mark.parametrize(
    ("title", "seen", "rules", "said"),
    [
        ("a job", look(fail(), occupied="job 7 has a step here"), RULES, "job 7"),
        ("not looked at for a job", Seen("b1", None, occupied="job 7"), RULES, "job 7"),
        ("observe", look(fail(), held="observe mode"), RULES, "observe mode"),
        ("breaker", look(fail("gpu.lost", Action.REBOOT), held="breaker"), RULES, "breaker"),
        ("not allowed", look(fail("gpu.lost", Action.REBOOT)), Healing(actions=("gpu_reset",)), "healing.actions"),
        (
            "no RebootProgram",
            look(fail("gpu.lost", Action.REBOOT), no_reboot="no RebootProgram"),
            RULES,
            "RebootProgram",
        ),
        ("no fault", look(OK), RULES, "does not show"),
        ("a fault of others alone", look(SHARED), RULES, "does not show"),
        ("nothing known", look(fail(action=Action.RESTART_APP)), RULES, "nothing is known"),
    ],
)
def test_what_waits(title: str, seen: Seen, rules: Healing, said: str) -> None:
    step = decide(seen, case(), 0, rules, NOW)
    assert step.kind == "wait"
    assert said in step.why


@pytest.mark.parametrize("action", [Action.INSPECT, Action.REPLACE_GPU])
def test_what_only_a_person_can_do_is_not_tried(action: Action) -> None:
    assert decide(look(fail(action=action), fail()), case(), 0, RULES, NOW).kind == "inspect"
    assert decide(look(fail(action=action), held="observe mode"), case(), 0, RULES, NOW).kind == "wait"


def test_a_drain_that_the_controller_made_for_a_shared_fault_is_left_to_it() -> None:
    assert decide(look(SHARED), case(check="fabric.port_state"), 0, RULES, NOW).kind == "wait"


def test_what_the_kernel_said_is_dealt_with_only_where_all_that_was_found_is_treated() -> None:
    both = look(fail(), fail(device="0000:9a:00.0"))
    assert decide(both, case(), 0, RULES, NOW).covers
    assert not decide(look(fail(), fail("gpu.pcie", Action.UPDATE_SOFTWARE)), case(), 0, RULES, NOW).covers
    rules = Healing(commands={"gpu.nvlink": ("/fm",)})
    nvlink = fail("gpu.nvlink")
    assert decide(look(nvlink), case(), 0, rules, NOW).covers
    mixed = decide(look(nvlink, fail(device="0000:9a:00.0")), case(), 0, rules, NOW)
    assert (mixed.action, mixed.covers) == ("command", False), "another card's Xid is not healed by it"


def test_the_bound_holds_whatever_the_case_itself_has() -> None:
    assert decide(look(fail()), case(), 1, RULES, NOW).kind == "act"
    assert decide(look(fail()), case(), 2, RULES, NOW).kind == "inspect"
    again = decide(look(fail()), case(attempt(), attempt()), 2, RULES, NOW)
    assert (again.kind, again.why) == ("inspect", "2 x gpu_reset did not help")


def test_what_still_fails_is_given_time_to_settle_and_then_tried_again() -> None:
    rules = Healing(settle_s=60.0)
    early = decide(look(fail()), case(attempt(), looked=NOW - 59), 1, rules, NOW)
    assert (early.kind, early.dirty) == ("wait", True)
    late = decide(look(fail()), case(attempt(), looked=NOW - 60), 1, rules, NOW)
    assert late.kind == "act"
    assert "still fails" in late.failed


def test_checks_pass_one_by_one_and_then_the_node_goes_back() -> None:
    kinds = [decide(look(OK), case(attempt(), passes=n), 1, RULES, NOW).kind for n in range(3)]
    assert kinds == ["pass", "pass", "give_back"]
    waits = case(attempt(), passes=2)
    waits.passed_at = NOW - 19
    assert decide(look(OK), waits, 1, RULES, NOW).kind == "wait"


def test_a_node_that_is_healed_but_fails_something_else_stays_and_costs_no_attempt() -> None:
    step = decide(look(OK, SHARED), case(attempt(), passes=2), 1, RULES, NOW)
    assert (step.kind, step.dirty, step.failed) == ("wait", True, "")
    rules = Healing(verify=("gpu.*",), passes=1)
    assert decide(look(OK, SHARED), case(attempt()), 1, rules, NOW).kind == "give_back"


def test_a_warning_counts_only_where_it_is_of_the_check_that_drained() -> None:
    warns = replace(fail(), status=Status.WARN)
    assert decide(look(OK, warns), case(attempt(), passes=2), 1, RULES, NOW).kind == "wait"
    assert decide(look(OK, warns), case(attempt(), passes=2, check="gpu.lost"), 1, RULES, NOW).kind == "give_back"


@pytest.mark.parametrize("held", ["observe mode", "the mass-drain breaker is open"])
def test_a_healed_node_is_not_given_back_while_nothing_may_be_done(held: str) -> None:
    assert decide(look(OK, held=held), case(attempt(), passes=2), 1, RULES, NOW).kind == "wait"


def test_what_cannot_be_judged_waits_and_then_counts_as_failed() -> None:
    waits = decide(look(OK, conclusive=False), case(attempt(), looked=NOW - 100), 1, RULES, NOW)
    assert (waits.kind, waits.dirty) == ("wait", True)
    late = decide(look(OK, conclusive=False), case(attempt(), looked=NOW - 901), 1, RULES, NOW)
    assert (late.kind, late.action, late.targets) == ("act", "gpu_reset", (PCI,))
    last = decide(look(OK, conclusive=False), case(attempt(), attempt(), looked=NOW - 901), 2, RULES, NOW)
    assert last.kind == "inspect"


def test_an_action_that_was_cut_off_may_still_run_until_its_deadline() -> None:
    cut = attempt(outcome="", began=NOW - 30)
    assert decide(look(OK), case(cut), 1, RULES, NOW).kind == "wait"
    assert decide(look(OK), case(cut), 1, RULES, NOW + 180).kind == "pass"
    assert decide(replace(look(OK), boot="b2"), case(cut), 1, RULES, NOW).kind == "pass", "no process outlives a boot"


def test_a_reboot_is_judged_in_the_new_boot_alone() -> None:
    asked = attempt("reboot", "asked", began=NOW - 5)
    assert decide(look(OK), case(asked), 1, RULES, NOW).kind == "wait"
    assert (
        decide(Seen("b1", None, occupied="rebooting", rebooting=True), case(asked), 1, RULES, NOW + 3000).kind == "wait"
    )
    assert decide(replace(look(OK), boot="b2"), case(asked), 1, RULES, NOW).kind == "pass"


@pytest.mark.parametrize(
    ("title", "outcome", "seen", "later_s"),
    [
        ("refused", "failed: Invalid node state", look(fail("gpu.lost", Action.REBOOT)), 0.0),
        ("given up by Slurm", "asked", look(fail("gpu.lost", Action.REBOOT)), REBOOT_SEEN_S),
        ("killed before it was asked for", "", look(fail("gpu.lost", Action.REBOOT)), REBOOT_SEEN_S),
    ],
)
def test_a_reboot_that_does_not_come_is_a_failed_attempt(title: str, outcome: str, seen: Seen, later_s: float) -> None:
    asked = attempt("reboot", outcome, began=NOW)
    assert decide(seen, case(asked), 1, RULES, NOW + later_s).kind == "act"
    assert decide(seen, case(asked, asked), 2, RULES, NOW + later_s).kind == "inspect"


def test_a_reboot_that_hangs_ends_in_an_inspection_though_nothing_could_be_looked_at() -> None:
    asked = attempt("reboot", "asked", began=NOW)
    blind = Seen("b1", None, occupied="a reboot is under way", rebooting=True)
    assert decide(blind, case(asked), 1, RULES, NOW + 3600).kind == "wait"
    assert decide(blind, case(asked, asked), 2, RULES, NOW + 3600).kind == "inspect"
