"""A Ray cluster on this machine: a head and nodes of one processor, each on a loopback address of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

HEAD = "127.0.0.2"
#: Generous: two cores may be busy with other tests.
PATIENCE = 300.0


class Cluster:
    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.nodes = folder, {}
        # Nothing of the user's, nothing sent anywhere. Ray's processes listen on loopback addresses alone.
        self.environment = {**os.environ, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        self.environment["RAY_AUTH_MODE"] = "disabled"
        self.environment["RAY_worker_niceness"] = "0"
        with socket.socket() as free:
            free.bind((HEAD, 0))
            self.address = f"{HEAD}:{free.getsockname()[1]}"

    def start(self, ip: str, *options: str, variables: Mapping[str, str] | None = None) -> None:
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--node-ip-address={ip}"]
        command += ["--object-store-memory=104857600", "--disable-usage-stats", *options]
        environment = {**self.environment, **(variables or {})}
        with (self.folder / f"{ip}.log").open("wb") as log:
            self.nodes[ip] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def start_head(self) -> None:
        port = self.address.partition(":")[2]
        options = [f"--port={port}", "--num-cpus=0", f"--temp-dir={self.folder}/ray", "--include-dashboard=false"]
        self.start(HEAD, "--head", *options)

    def start_node(self, ip: str, *, variables: Mapping[str, str] | None = None) -> None:
        self.start(ip, f"--address={self.address}", "--num-cpus=1", variables=variables)

    def kill(self, ip: str) -> None:
        """SIGKILL everything that belongs to a node: its daemon and its workers."""
        ours = [self.nodes[ip].pid]
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if any(str(self.folder) in word for word in line) and any(f"node_ip_address={ip}" in word for word in line):
                ours.append(process.pid)
        for pid in ours:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
        self.nodes.pop(ip).wait()

    def wait(self, ip: str) -> None:
        """Until a node says that it runs."""
        log, until = self.folder / f"{ip}.log", time.monotonic() + PATIENCE
        while "Ray runtime started" not in log.read_text():
            if time.monotonic() > until or self.nodes[ip].poll() is not None:
                raise TimeoutError(log.read_text())
            time.sleep(0.2)

    def alive(self) -> set[str]:
        """Addresses of the nodes, as another program is told."""
        names = "*[node['NodeManagerAddress'] for node in ray.nodes() if node['Alive']]"
        script = f"import ray; ray.init({self.address!r}, log_to_driver=False); print({names})"
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)
        return set(done.stdout.split())


@contextlib.contextmanager
def cluster(home: Path, nodes: int, others: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[Cluster]:
    """A head and ``nodes`` nodes, and ``others`` with variables of their own; everything is killed at the end."""
    # Not a folder of pytest's: the path of a socket in it would be too long.
    with tempfile.TemporaryDirectory(prefix="rc-", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder), home)
        try:
            made.start_head()
            made.wait(HEAD)
            every = {f"127.0.0.{3 + number}": {} for number in range(nodes)} | dict(others or {})
            # One after the other: of several that start at once on one machine, some give up.
            for ip, variables in every.items():
                made.start_node(ip, variables=variables)
                made.wait(ip)
            yield made
        finally:
            for ip in list(made.nodes):
                made.kill(ip)
