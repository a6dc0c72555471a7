"""``make bench`` or ``python -m tests.bench [gate|watchdog|recovery ...]``."""

from __future__ import annotations

import argparse

from rich.console import Console

from tests.bench import gate, recovery, watchdog


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("what", nargs="*", choices=["gate", "watchdog", "recovery", []], help="default: everything")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of the gate (default 100)")
    parser.add_argument("--idle", type=float, default=120.0, help="seconds of the idle watchdog (default 120)")
    parser.add_argument("--recoveries", type=int, default=10, help="recoveries measured with AIStation (default 10)")
    parser.add_argument("--stock", type=int, default=2, help="rounds of two minutes with stock Slurm (default 2)")
    parser.add_argument("--patience", type=float, default=150.0, help="seconds after which stock counts as never")
    args = parser.parse_args()
    console = Console()
    chosen = args.what or ["gate", "watchdog", "recovery"]
    if "gate" in chosen:
        gate.measure(console, args.rounds)
    if "watchdog" in chosen:
        watchdog.measure(console, args.idle)
    if "recovery" in chosen:
        recovery.measure(console, args.recoveries, args.stock, args.patience)


if __name__ == "__main__":
    main()
