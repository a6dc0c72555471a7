"""``make torture [ROUNDS=200] [SEED=1]``: exit code 0 when nothing was lost, doubled or touched, else 1."""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.cluster.torture.campaign import Campaign
from tests.cluster.torture.report import print_all
from tests.cluster.torture.site import Site


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="rounds of trouble, about 7 s each (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="where every choice comes from (default 1)")
    parser.add_argument("--quiet", action="store_true", help="do not print what is done")
    args = parser.parse_args()
    console = Console()
    columns = [TextColumn("round"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    with Site() as site, Progress(*columns, console=console) as bar:
        task = bar.add_task("rounds", total=args.rounds)

        def say(text: str) -> None:
            if not args.quiet or text.startswith("VIOLATION"):
                console.print(f"{time.strftime('%H:%M:%S')} {text}", markup=False, highlight=False)

        campaign = Campaign(site, args.rounds, args.seed, say, lambda done: bar.update(task, completed=done))
        campaign.run()
        bar.stop()
        print_all(campaign, console)
    return 1 if campaign.found else 0


if __name__ == "__main__":
    sys.exit(main())
