"""``make bench`` or ``python -m tests.bench [gate|agent|klog|watchdog|recovery|table|lua|submit|placement ...]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tests.bench import agent, gate, klog, lua, placement_table, recovery, submit, watchdog
from tests.bench.ways import all_ways

ALL = ("gate", "agent", "klog", "watchdog", "table", "lua", "submit", "recovery")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "what", nargs="*", choices=[*ALL, "placement", []], help="default: all but placement, which takes hours"
    )
    parser.add_argument("--rounds", type=int, default=100, help="rounds of the gate (default 100)")
    parser.add_argument(
        "--idle", type=float, default=120.0, help="seconds of the idle watchdog, and of the agent (default 120)"
    )
    parser.add_argument("--recoveries", type=int, default=20, help="GPU faults with AIStation, idle and full (20 each)")
    parser.add_argument("--best", type=int, default=5, help="stock Slurm with a script and StartTime=now (default 5)")
    parser.add_argument("--stock", type=int, default=2, help="two-minute rounds of stock Slurm by default (default 2)")
    parser.add_argument(
        "--silent", type=int, default=5, help="power cuts, and trapped SIGTERMs, with AIStation (default 5)"
    )
    parser.add_argument("--patience", type=float, default=170.0, help="seconds after which a job counts as never back")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="recovery: the ways whose name has this, such as idle"
    )
    parser.add_argument("--seeds", type=int, default=1, help="placement: traces a load (default 1)")
    parser.add_argument("--jobs", type=int, default=400, help="placement: jobs of a trace (default 400)")
    parser.add_argument("--loads", default="0.7,0.9,1.1", help="placement: offered loads (default 0.7,0.9,1.1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="recovery, placement: every round and all figures")
    args = parser.parse_args()
    console = Console()
    chosen = args.what or list(ALL)
    if "gate" in chosen:
        gate.measure(console, args.rounds)
    if "agent" in chosen:
        agent.measure(console, idle_s=args.idle)
    if "klog" in chosen:
        klog.measure(console)
    if "watchdog" in chosen:
        watchdog.measure(console, args.idle)
    if "table" in chosen:
        placement_table.measure(console)
    if "lua" in chosen:
        lua.measure(console)
    if "submit" in chosen:
        submit.measure(console)
    if "placement" in chosen:
        from tests.bench import placement_cluster

        loads = [float(load) for load in args.loads.split(",")]
        placement_cluster.measure(console, range(1, args.seeds + 1), args.jobs, loads, json_file=args.json)
    if "recovery" in chosen:
        recovery.measure(
            console, all_ways(args.recoveries, args.best, args.stock, args.silent, args.only), args.patience, args.json
        )


if __name__ == "__main__":
    main()
