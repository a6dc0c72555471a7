"""`python -m tests.cluster`: boot a cluster and work in it, as root on its controller.

    .venv/bin/python -m tests.cluster                    an interactive shell; leaving it ends the cluster
    .venv/bin/python -m tests.cluster -- sinfo -N        run one command there instead
    .venv/bin/python -m tests.cluster --stock --nodes 8  stock Slurm, more nodes

In the shell:  fault gpu2 gpu_lost 3   fault gpu2 ib_down mlx5_3   fault gpu2 nvml_block dstate   heal gpu2
               power gpu2 off          power gpu2 on               on gpu2 COMMAND...             as alice COMMAND...
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from tests.cluster import Cluster, ClusterError, faults
from tests.cluster.fleet import CONTROLLER

CONTROL = "/var/lib/test-cluster"

RC_FILE = f"""
PS1='[test cluster \\u@\\h \\w]# '
ask() {{ echo "$*" > {CONTROL}/requests; cat {CONTROL}/answers; }}
fault() {{ ask fault "$@"; }}
heal() {{ ask heal "$@"; }}
power() {{ ask power "$@"; }}
on() {{
  local pid; pid=$(pgrep -n -f "holder.py .*/host/$1/plan.json") || {{ echo "$1 is off" >&2; return 1; }}
  shift; nsenter --target "$pid" --mount --net --uts --ipc --pid --time -- "$@"
}}
as() {{ local user=$1; shift; (cd "/shared/$user" && setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"); }}
echo 'sinfo, sbatch, aistation... work here. More: fault NODE NAME ARGS | heal NODE | power NODE on|off'
echo '  | on NODE COMMAND | as USER COMMAND (alice, bob). `exit` ends the cluster.'
"""


def carry_out(cluster: Cluster, words: Sequence[str]) -> str:
    """One request of the shell: "fault gpu2 gpu_lost 3". Returns what to print; wrong requests are explained."""
    names = [name for name in faults.__all__ if name != "Fault"]
    usage = f"fault NODE NAME ARGS (NAME: {', '.join(names)}), heal NODE, power NODE on|off"
    try:
        if words[0] == "fault" and words[2] in names:
            fault = getattr(faults, words[2])(*map(_number_or_text, words[3:]))
            cluster.inject(words[1], fault)
            return f"{words[1]}: {fault.what}"
        if words[0] == "heal":
            cluster.heal(words[1])
            return f"{words[1]} is healthy (its kernel log is as it was)"
        if words[0] == "power" and words[2] in ("on", "off"):
            (cluster.start_node if words[2] == "on" else cluster.kill_node)(words[1])
            return f"{words[1]} is {words[2]}"
    except (IndexError, KeyError, TypeError, ValueError, ClusterError) as exc:
        return f"{type(exc).__name__}: {exc}\nusage: {usage}"
    return f"usage: {usage}"


def _number_or_text(word: str) -> Any:
    return int(word) if word.isdigit() else word


def _serve_requests(cluster: Cluster, requests: Path, answers: Path) -> None:
    """Answer the shell's requests; two named pipes, so that nothing but the cluster's folder is needed."""
    while True:
        with requests.open(encoding="utf-8") as lines:
            for line in lines:
                words = line.split()
                if words == ["end"]:
                    return
                answers.write_text(carry_out(cluster, words or [""]) + "\n", encoding="utf-8")


def shell(cluster: Cluster, command: Sequence[str]) -> int:
    """Run the command, or an interactive bash with the helper functions; returns its exit code."""
    folder = cluster.disk(CONTROLLER) / CONTROL.lstrip("/")
    folder.mkdir(mode=0o700)
    (folder / "rc").write_text(RC_FILE, encoding="utf-8")
    for name in ("requests", "answers"):
        os.mkfifo(folder / name, 0o600)
    server = threading.Thread(
        target=_serve_requests, args=(cluster, folder / "requests", folder / "answers"), daemon=True
    )
    server.start()
    argv = list(command) or ["bash", "--rcfile", f"{CONTROL}/rc", "-i"]
    # Ctrl-C is for the shell. Were it ignored here instead of handled, the commands of the shell would ignore it too.
    previous = signal.signal(signal.SIGINT, lambda *_: None) if not command else None
    try:
        host = cluster.host(CONTROLLER)
        environment = {**host.environment("root"), "TERM": os.environ.get("TERM", "dumb")}
        return subprocess.call(host.enter_argv(argv, "root", "/root"), env=environment)
    finally:
        if previous is not None:
            signal.signal(signal.SIGINT, previous)
        (folder / "requests").write_text("end\n", encoding="utf-8")
        server.join(10)


def main(argv: Optional[Sequence[str]] = None) -> int:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description=about.partition(": ")[2],
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=4, help="number of nodes (default: 4)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs a node (default: 8)")
    parser.add_argument("--hcas", type=int, default=8, help="InfiniBand HCAs a node (default: 8)")
    parser.add_argument("--stock", action="store_true", help="Slurm alone, without AIStation")
    parser.add_argument("--mode", choices=("enforce", "observe"), default="enforce", help="AIStation's mode")
    parser.add_argument("--conf", default="", metavar="LINES", help="more slurm.conf lines; a key replaces ours")
    parser.add_argument("command", nargs="*", help="a command to run instead of a shell (after --)")
    args = parser.parse_args(argv)
    cluster = Cluster(args.nodes, args.gpus, args.hcas, not args.stock, args.conf.replace("\\n", "\n"), args.mode)
    try:
        with cluster:
            print(f"{args.nodes} nodes up in {cluster.startup_s:.1f} s; folder {cluster.dir}", file=sys.stderr)
            return shell(cluster, args.command)
    except ClusterError as exc:
        print(f"python -m tests.cluster: {exc}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
