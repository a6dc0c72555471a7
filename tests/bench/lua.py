"""What a submission pays inside slurmctld: aistation.lua's hook under each Lua found, with the table of 16,384 nodes.

CPU time of each call, since the machine may be shared; the file is opened in each call, as in slurmctld.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Optional

from rich.console import Console
from rich.table import Table

from aistation_slurm.placement.table import BYTES_MAX, ROWS_MAX, PartitionRow, body, compact, render

MODULE = Path(__file__).resolve().parents[2] / "slurm_plugins/aistation.lua"
NODES, LEAF = 16_384, 16
P99_AIM_US, RELOAD_AIM_MS = 50.0, 5.0

SCRIPT = """
local clock = os.clock
slurm = { SUCCESS = 0, NO_VAL = 4294967294, NO_VAL16 = 65534, INFINITE = 4294967295, SPREAD_JOB = 131072 }
slurm.log_info, slurm.log_user = string.format, string.format
local module_path, table_path, other_path, calls = arg[1], arg[2], arg[3], tonumber(arg[4])
local aistation = dofile(module_path)
aistation.decisions_path = table_path
local parts = { gpu = { name = "gpu", flag_default = 1, total_nodes = 16384, total_cpus = 16384 * 128 } }
local env = { [0] = "AISTATION_RESUME=auto", "AISTATION_MAX_RESTARTS=3", "AISTATION_CKPT_DIR=/lustre/me/run7" }
local function job(number)
  local asked = { script = "#!/bin/sh", requeue = 65534, req_switch = slurm.NO_VAL, min_nodes = slurm.NO_VAL }
  if number % 4 == 0 then asked.tres_per_job = "gres:gpu:" .. (8 * (number % 2000 + 2))
  elseif number % 4 == 1 then asked.num_tasks, asked.cpus_per_task = number % 9000 + 200, 4
  else asked.min_nodes, asked.max_nodes = number * 7 % 16384 + 1, number * 7 % 16384 + 1 end
  if number % 3 == 0 then asked.spank_job_env = env end
  return asked
end
local function measured(submitted)
  local began = clock()
  aistation.job_submit(submitted, parts, 1000)
  return (clock() - began) * 1e6
end
local reloads = {}
for round = 1, 50 do
  aistation.decisions_path = round % 2 == 0 and table_path or other_path
  reloads[round] = measured(job(round))
end
aistation.decisions_path = table_path
measured(job(1))
local times, placed = {}, 0
for number = 1, calls do
  local submitted = job(number)
  times[number] = measured(submitted)
  if submitted.req_switch ~= slurm.NO_VAL then placed = placed + 1 end
end
table.sort(times)
table.sort(reloads)
local middle, spins, sink = times[math.ceil(calls / 2)], 8, 0
local function spin()
  local began = clock()
  for step = 1, spins do sink = sink + step % 7 end
  return (clock() - began) * 1e6
end
repeat -- as much arithmetic as takes as long as half of the calls do
  spins = spins * 1.25
  local all = 0
  for _ = 1, 200 do all = all + spin() end
until all / 200 >= middle
local floor = {}
for number = 1, calls do floor[number] = spin() end
table.sort(floor)
print(floor[math.ceil(calls * 0.99)], middle, times[math.ceil(calls * 0.99)], times[calls], reloads[25], reloads[50], placed)
"""


class Costs(NamedTuple):
    """Microseconds of one call; reload: of a call that reads a table anew. placed: share of jobs that got a limit.

    floor_p99: of plain arithmetic that takes as long as the median call: what other work on the machine does to the figure.
    """

    floor_p99: float
    p50: float
    p99: float
    worst: float
    reload_p50: float
    reload_worst: float
    placed: float


def large_table(partitions: int = 4, avoid: int = 300) -> str:
    """A body for 16,384 nodes in each partition, with a limit for each size and a long list of degraded nodes."""
    limits = [
        (nodes, -(-nodes // LEAF) + (nodes > 4096) + nodes // 2000, 60 * (1 + nodes // 512))
        for nodes in range(2, NODES + 1)
    ]
    rows = compact(limits, LEAF)
    bad = tuple(f"gpu{number}" for number in range(1, NODES, NODES // avoid))
    names = ["gpu", *(f"part{number}" for number in range(1, partitions))]
    return body([PartitionRow(name, NODES, NODES - len(bad), 8, bad, rows) for name in names])


def fullest_table() -> str:
    """As much as aistation.lua takes: the worst reload."""
    rows = "".join(f"{size}-{size} 16 {size % 7} {size % 9000} 0\n" for size in range(2, ROWS_MAX + 2))
    names = ",".join(f"gpu{number}" for number in range(10_000, 20_000))
    return f"list 1 {names[: BYTES_MAX - 150 - len(rows)].rstrip(',')}\npartition gpu 16384 16000 8 1\n{rows}"


def costs(interpreter: str, text: str, calls: int) -> Costs:
    """Run the hook ``calls`` times under one Lua."""
    with tempfile.TemporaryDirectory(prefix="ais-bench-lua-") as folder:
        script, table, other = Path(folder, "bench.lua"), Path(folder, "decisions"), Path(folder, "other")
        script.write_text(SCRIPT, encoding="utf-8")
        table.write_text(render(text, int(time.time()), 3600), encoding="utf-8")
        other.write_text(render(text, int(time.time()) - 1, 3600), encoding="utf-8")
        argv = [interpreter, str(script), str(MODULE), str(table), str(other), str(calls)]
        result = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
    *times, placed = (float(word) for word in result.stdout.split())
    return Costs(*times, placed=placed / calls)


def measure(console: Console, calls: int = 20_000, interpreters: Optional[list[str]] = None) -> None:
    """Print the table of figures."""
    found = interpreters or [name for name in ("lua5.1", "lua5.3", "lua5.4") if shutil.which(name)]
    if not found:
        console.print("lua: no lua5.1 here (Debian: lua5.1); not measured")
        return
    shown = Table(title=f"job_submit.lua: one call with a table of {NODES} nodes, CPU time")
    columns = (
        "Lua",
        "table",
        "bytes",
        "p50 us",
        f"p99 us (aim {P99_AIM_US:g})",
        "p99 of arithmetic as long",
        "worst us",
    )
    for column in (*columns, "reload ms", f"worst reload ms (aim {RELOAD_AIM_MS:g})", "given a limit"):
        shown.add_column(column)
    for interpreter in found:
        for name, text in (("4 partitions, 300 degraded", large_table()), ("as large as is taken", fullest_table())):
            got = costs(interpreter, text, calls)
            shown.add_row(
                interpreter,
                name,
                str(len(text)),
                f"{got.p50:.1f}",
                f"{got.p99:.1f}",
                f"{got.floor_p99:.1f}",
                f"{got.worst:.0f}",
                f"{got.reload_p50 / 1000:.2f}",
                f"{got.reload_worst / 1000:.2f}",
                f"{100 * got.placed:.0f} %",
            )
    console.print(shown)
