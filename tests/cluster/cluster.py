"""The cluster that tests, benchmarks and the demo drive.

    with Cluster(nodes=4) as c:
        job = c.submit("srun hostname", "--nodes=2", user="alice")
        c.wait_job(job, "COMPLETED")

Needs root and Debian's Slurm packages. Everything it makes is inside its own namespaces and one folder below /tmp.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

from tests.cluster import fakenvml, host_root, slurm_conf, slurm_view, suite
from tests.cluster.faults import Fault
from tests.cluster.fleet import CONTROLLER, Fleet
from tests.cluster.hardware import Hardware
from tests.cluster.namespaces import ClusterError


class Cluster(Fleet):
    """N nodes ``gpu1``..``gpuN``, a controller ``ctl``, users alice and bob; two leaf switches and a spine."""

    def __init__(
        self,
        nodes: int = 4,
        gpus: int = 8,
        hcas: int = 8,
        aistation: bool = True,
        conf_extra: str = "",
        mode: str = "enforce",
        config: Optional[suite.Settings] = None,
        backup: bool = False,
    ) -> None:
        """Nothing is started yet.

        aistation: put the suite in force; false is stock Slurm. mode: "enforce" or "observe", for aistation.toml.
        conf_extra: slurm.conf lines; a key set here replaces the harness's own value.
        config: more of aistation.toml, {"node": {"poll_s": 1.0}}.
        backup: a primary and a backup controller, ``ctl1`` and ``ctl2``, each with its own watchdog; ``ctl`` is a login host.
        """
        super().__init__([f"gpu{i}" for i in range(1, nodes + 1)], pair=backup)
        self.gpus = gpus
        self.hcas = hcas
        self.aistation = aistation
        self.mode = mode
        self.config = dict(config or {})
        self.conf_extra = conf_extra
        self.notes: list[str] = []
        """What of the suite could not be put in force, and why."""
        self.startup_s = 0.0
        self.hardware: dict[str, Hardware] = {}
        self._agents: set[str] = set()

    @property
    def hostlist(self) -> str:
        """The nodes as a Slurm hostlist."""
        return self.names[0] if len(self.names) == 1 else f"gpu[1-{len(self.names)}]"

    @property
    def conf_dir(self) -> Path:
        """Folder that every host sees as /etc/slurm."""
        return self.dir / "etc/slurm"

    # ---- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Boot everything; returns when every node is IDLE. Raises ClusterError; then nothing is left running."""
        began = time.monotonic()
        try:
            self._make()
            self._write_munge_key()
            self._make_hardware()
            self._write_conf()
            self._boot_controller()
            self._start_munged(CONTROLLER)
            for name in self.controllers:
                if name != CONTROLLER:
                    self._boot_of_pair(name)
                self.start_slurmctld(name)
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(self._start_node, self.names))
            self.wait_for(self._all_idle, 60, "every node to be IDLE")
            if self.aistation:
                self._start_suite()
        except BaseException as exc:
            if isinstance(exc, ClusterError) and self._dir is not None:
                exc.args = (f"{exc}\n{self.last_words()}",)
            self.stop()
            raise
        self.startup_s = time.monotonic() - began
        for note in self.notes:
            print(f"test cluster: {note}", file=sys.stderr)

    def reset(self) -> None:
        """Cancel every job; repair and reboot nodes with a fault; make every node IDLE without drain or reason."""
        for user in ("root", *host_root.USERS):
            self.run(["scancel", f"--user={user}"], check=False)
        for name in self.names:
            if self.hardware[name].faulty:
                self.heal(name)
                if name in self._hosts:
                    self.kill_node(name)
        off = [name for name in self.names if name not in self._hosts]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.start_node, off))

        def idle() -> bool:
            if self._all_idle():
                return True
            for node in self._nodes():
                if "DRAIN" in node["flags"] or node["state"] in ("DOWN", "FAIL"):
                    self.run(["scontrol", "update", f"NodeName={node['name']}", "State=RESUME"], check=False)
            return False

        self.wait_for(idle, 90, "every node to be IDLE again")

    def _write_conf(self) -> None:
        settings = suite.slurm_settings(self.notes) if self.aistation else {}
        controllers = {name: self._addresses[name] for name in self.controllers}
        cgroups = "cgroup/v1" if self.root.top is None else "disabled"
        slurm_conf.write_conf(self.conf_dir, self.names, self.gpus, controllers, settings, self.conf_extra, cgroups)
        if len(controllers) > 1:
            (self.dir / slurm_conf.SHARED_STATE).mkdir(mode=0o700)
            os.chown(self.dir / slurm_conf.SHARED_STATE, *host_root.account(self.root, "slurm"))
        if self.aistation:
            suite.install_plugins(self.conf_dir, self.notes)
            for name in self._addresses:
                toml = self.disk(name) / "aistation/aistation.toml"
                toml.write_text(suite.node_config(self.mode, self.hcas, self.config), encoding="utf-8")

    def _write_munge_key(self) -> None:
        key = self.dir / "etc/munge/munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        for path in (key, key.parent):
            os.chown(path, *host_root.account(self.root, "munge"))

    # ---- hardware -----------------------------------------------------------------------------------------------

    def _make_hardware(self) -> None:
        library = fakenvml.build(self.dir / "product")
        for name in self.names:
            self.hardware[name] = Hardware(self.disk(name) / "aisim", name, self.gpus, self.hcas)
            self.hardware[name].install(library)

    def inject(self, node: str, fault: Fault) -> None:
        """Break something on a node: ``inject("gpu2", gpu_lost(3))``. Also possible while the node is off."""
        hardware = self._hardware_of(node)
        fault.apply(hardware)
        hardware.faulty = True

    def heal(self, node: str) -> None:
        """The node's hardware is as new; its kernel log keeps its lines until the node is rebooted."""
        self._hardware_of(node).make_healthy()

    def _hardware_of(self, node: str) -> Hardware:
        if node not in self.hardware:
            raise ClusterError(f"no node {node!r}; there are {', '.join(self.names)}")
        return self.hardware[node]

    # ---- daemons ------------------------------------------------------------------------------------------------

    def _start_node(self, name: str, new_boot: bool = True) -> None:
        steps: list[host_root.Step] = [["device", f"/dev/nvidia{i}", 195, i] for i in range(self.gpus)]
        steps.append(["device", "/dev/nvidiactl", 195, 255])
        steps.append(["bind", "/run/aisim", str(self.disk(name) / "aisim")])
        if new_boot:
            self._new_boot_id(name)
            self.hardware[name].boot((self.disk(name) / "boot_id").read_text(encoding="utf-8").strip())
        self._boot_node(name, steps)
        self._start_munged(name)
        self.start_slurmd(name)
        if name in self._agents:
            self.start_agent(name)

    def start_node(self, name: str, reboot: bool = True) -> None:
        """Switch a node on again; returns when slurmctld has seen it. ``reboot=False`` keeps the boot id.

        Slurm 22.05 with ReturnToService=1 may then have it DOWN ("Node unexpectedly rebooted"), as at a site.
        """
        if name in self._hosts:
            raise ClusterError(f"host {name} is switched on already")
        self._start_node(name, reboot)
        if any(self.slurmctld_runs(host) for host in self.controllers):
            off = int(self._off_since[name])
            self.wait_for(lambda: self.node(name)["boot_time"] > off, 60, f"slurmctld to see {name} after its boot")

    def _start_munged(self, host: str) -> None:
        service = self.start_service(f"munged.{host}", host, ["munged", "--foreground"], "munge")
        socket = Path(f"/proc/{self.host(host).pid}/root/run/munge/munge.socket.2")
        self.wait_for(lambda: socket.exists() or not service.alive, 20, f"munged on {host}", interval=0.01)
        if not service.alive:
            raise ClusterError(f"munged on {host} ended: {self.logs(f'munged.{host}').strip()}")

    @staticmethod
    def _on(daemon: str, controller: str) -> str:
        """The name of a controller's daemon: "slurmctld" on ctl, "slurmctld.ctl2"."""
        return daemon if controller == CONTROLLER else f"{daemon}.{controller}"

    def slurmctld_runs(self, host: str) -> bool:
        service = self._services.get(self._on("slurmctld", host))
        return service is not None and service.alive

    def start_slurmctld(self, host: str = "") -> None:
        """Start the controller daemon (of the primary, or of ``host``) and wait until it answers."""
        host = host or self.controllers[0]
        service = self.start_service(self._on("slurmctld", host), host, ["slurmctld", "-D"])

        def answers() -> bool:
            if not service.alive:
                raise ClusterError(f"slurmctld ended with code {service.process.returncode}")
            return self._is_up(host)

        self.wait_for(answers, 30, f"slurmctld on {host} to answer")

    def stop_slurmctld(self, sig: int = signal.SIGTERM, host: str = "") -> None:
        """SIGTERM saves Slurm's state, as `systemctl stop` does; pass SIGKILL for a crash."""
        self.end_service(self._on("slurmctld", host or self.controllers[0]), sig)

    def _boot_of_pair(self, name: str) -> None:
        self._new_boot_id(name)
        self._boot_node(name, [])
        self._start_munged(name)

    def kill_controller(self, host: str) -> None:
        """A power cut of ctl1 or ctl2: slurmctld and the watchdog end at once, its address no longer answers."""
        if host not in self.controllers or host == CONTROLLER:
            raise ClusterError(f"no controller {host!r} of a pair; Cluster(backup=True) has ctl1 and ctl2")
        self._cut_power(host)

    def start_controller(self, host: str) -> None:
        """Switch ctl1 or ctl2 on again, with slurmctld and, where the suite is in force, the watchdog."""
        self._boot_of_pair(host)
        self.start_slurmctld(host)
        if self.aistation:
            self.start_watchdog(host)

    def takeover(self) -> None:
        """`scontrol takeover`: the backup takes control now; the primary's slurmctld ends. Returns when it answers."""
        backup = self.controllers[1]
        # it is deaf for a moment after it gave control back
        self.wait_for(lambda: self._is_up(backup), 30, f"slurmctld on {backup} to answer")
        self.run(["scontrol", "takeover"], timeout=120)
        self.wait_for(lambda: not self._is_up(self.controllers[0]), 30, "the primary's slurmctld to end")
        self.run(["squeue", "-h"], timeout=120)

    def _is_up(self, host: str) -> bool:
        """By `scontrol ping`, which a slurmctld in standby answers too."""
        return f" at {host} is UP" in self.run(["scontrol", "ping"], timeout=30, check=False).stdout

    def start_slurmd(self, name: str) -> None:
        self.start_service(f"slurmd.{name}", name, ["slurmd", "-D"])

    def kill_slurmd(self, name: str, sig: int = signal.SIGKILL) -> None:
        """End slurmd alone; the job's processes live on."""
        self.end_service(f"slurmd.{name}", sig)

    # ---- AIStation's daemons ------------------------------------------------------------------------------------

    def _start_suite(self) -> None:
        """Start the daemons that the repository has. Raises ClusterError, with its words, where one ends at once."""
        signs: dict[str, Path] = {}  # daemon -> file that shows it is up
        if suite.has_command("watchdog"):
            for host in self.controllers:
                self.start_watchdog(host)
                signs[self._on("watchdog", host)] = self.disk(host) / "var/lib/aistation/journal.db"
        else:
            self.notes.append("no watchdog runs: aistation_slurm/cli/watchdog.py does not exist")
        if suite.has_command("agent"):
            for name in self.names:
                self.start_agent(name)
                signs[f"agent.{name}"] = Path(f"/proc/{self.host(name).pid}/root/run/aistation/state")
        else:
            self.notes.append("no agents run: aistation_slurm/cli/agent.py does not exist")
        for daemon, sign in signs.items():
            self._await_daemon(daemon, sign)

    def _await_daemon(self, daemon: str, sign: Path) -> None:
        service = self._services[daemon]
        self.wait_for(lambda: sign.exists() or not service.alive, 60, f"{daemon} to make {sign.name}")
        if not service.alive:
            raise ClusterError(f"{daemon} ended with code {service.process.returncode}:\n{self.logs(daemon)[-2000:]}")

    def start_agent(self, name: str) -> None:
        """`aistation agent` on a node; from now on also after each boot of that node."""
        self.start_service(f"agent.{name}", name, ["aistation", "agent"])
        self._agents.add(name)

    def stop_agent(self, name: str, sig: int = signal.SIGTERM) -> None:
        self._agents.discard(name)
        self.end_service(f"agent.{name}", sig)

    def start_watchdog(self, host: str = "") -> None:
        """`aistation watchdog run` on the controller (the primary, or ``host``), as user slurm."""
        host = host or self.controllers[0]
        self.start_service(self._on("watchdog", host), host, ["aistation", "watchdog", "run"], "slurm")

    def stop_watchdog(self, host: str = "") -> None:
        self.end_service(self._on("watchdog", host or self.controllers[0]), signal.SIGTERM)

    def reload_watchdog(self, host: str = "") -> None:
        """SIGHUP, as `systemctl reload` sends it."""
        os.kill(self._services[self._on("watchdog", host or self.controllers[0])].pid, signal.SIGHUP)

    def kill_watchdog(self, host: str = "") -> None:
        """SIGKILL: it can save nothing."""
        self.end_service(self._on("watchdog", host or self.controllers[0]), signal.SIGKILL)

    # ---- Slurm's commands and answers ---------------------------------------------------------------------------

    def submit(self, script: str, *options: str, user: str = "alice", env: Optional[Mapping[str, str]] = None) -> int:
        """sbatch a script (a missing `#!` line is added); returns the job id. Output goes to /shared/<user>/."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        result = self.run(["sbatch", "--parsable", *options], user, input=text, env=env)
        return int(result.stdout.strip().split(";")[0])

    def expand(self, hostlist: str) -> list[str]:
        """A Slurm hostlist as names; "" and "(null)" are none."""
        if hostlist in ("", "(null)"):
            return []
        return self.run(["scontrol", "show", "hostnames", hostlist]).stdout.split()

    def job(self, job_id: int) -> Optional[dict[str, Any]]:
        """The job as `squeue --json` has it; None when Slurm no longer knows it."""
        return slurm_view.find_job(self.run(["squeue", "--json", "--states=all"]).stdout, job_id)

    def show_job(self, job_id: int) -> dict[str, str]:
        """`scontrol show job` as key -> value."""
        return slurm_view.parse_record(self.run(["scontrol", "show", "job", str(job_id)]).stdout)

    def node(self, name: str) -> dict[str, Any]:
        """state ("IDLE"), flags (["DRAIN"]), reason (text or ""), boot_time (epoch s); the rest: `sinfo --json`."""
        return next(node for node in self._nodes() if node["name"] == name)

    def _nodes(self) -> list[dict[str, Any]]:
        # 22.05 has nodes in sinfo's JSON and no scontrol --json; since 23.11 sinfo's JSON has groups of nodes
        command = ["sinfo", "--json"] if self.root.top is None else ["scontrol", "show", "nodes", "--json"]
        return slurm_view.parse_nodes(self.run(command).stdout)

    def _all_idle(self) -> bool:
        return all(node["state"] == "IDLE" and not node["flags"] for node in self._nodes())

    def wait_job(self, job_id: int, *states: str, timeout: float = 60) -> dict[str, Any]:
        """Wait until the job is in one of ``states``; returns the job."""
        last: dict[str, Any] = {}

        def reached() -> bool:
            last.clear()
            last.update(self.job(job_id) or {"job_state": "UNKNOWN"})
            return last["job_state"] in states

        try:
            self.wait_for(reached, timeout, "")
        except ClusterError:
            seen = {key: last.get(key) for key in ("job_state", "state_reason", "nodes", "state_description")}
            wanted = " or ".join(states)
            raise ClusterError(f"waited {timeout:g} s for job {job_id} to be {wanted}; it is {seen}") from None
        return last
