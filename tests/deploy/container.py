"""Run the command of a container without a container: its arguments, variables, probes and time to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cenote.bench.spawn import find_free_port
from tests.deploy.chart import DEPLOY
from tests.deploy.dockerfile import read_dockerfile

AUDIT_FOLDER = Path(__file__).with_name("write_audit")
REPOSITORY = Path(__file__).parents[2]
ANY_USER = 23456  # not the one of the image
TIMEOUT_S = 90.0


@dataclass
class Container:
    """A container of a manifest, with its paths in a folder of the test."""

    spec: dict[str, Any]
    folder: Path  # in place of / for what may be written
    grace_period_s: float
    replacements: Mapping[str, str] = field(default_factory=dict)  # in arguments
    port: int = field(default_factory=find_free_port)

    def __post_init__(self) -> None:
        self.log = self.folder / "server.log"
        self.write_log = self.folder / "writes.log"
        mounts = {mount["mountPath"] for mount in self.spec.get("volumeMounts", ())} | {"/data"}
        self.writable = {path: self.folder / path.strip("/") for path in sorted(mounts) if path in ("/data", "/tmp")}
        for path in self.writable.values():
            path.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        user = find_other_user()
        if user is not None:
            for path in (self.folder, *self.writable.values()):
                os.chown(path, user, 0)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.make_command(),
                env=self.make_environment(),
                stdin=subprocess.DEVNULL,
                stderr=log,
                cwd=REPOSITORY,
                **({} if user is None else {"user": user, "group": 0, "extra_groups": []}),
            )

    def make_command(self) -> list[str]:
        command, *rest = [*self.spec["command"], *self.spec["args"]]
        assert command == "cenote"
        changes = {"--port=8000": f"--port={self.port}", "--host=0.0.0.0": "--host=127.0.0.1", **self.replacements}
        return [sys.executable, "-m", "cenote", *(changes.get(word, word) for word in rest)]

    def make_environment(self) -> dict[str, str]:
        """Return the variables of the image and of the manifest only, as a container has them."""
        image = read_dockerfile(DEPLOY / "docker" / "Dockerfile.cpu").environment
        given = {variable["name"]: variable["value"] for variable in self.spec["env"]}
        environment = {**image, **given, "PATH": os.environ["PATH"]}
        moved = {name: self._move(value) for name, value in environment.items()}
        writable = [*map(str, self.writable.values()), "/dev/", "/proc/"]
        python_path = f"{AUDIT_FOLDER}{os.pathsep}{REPOSITORY}"
        return {
            **moved,
            "PYTHONPATH": python_path,
            "WRITABLE": os.pathsep.join(writable),
            "WRITE_LOG": str(self.write_log),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def _move(self, value: str) -> str:
        for path, folder in self.writable.items():
            if value == path or value.startswith(f"{path}/"):
                return f"{folder}{value.removeprefix(path)}"
        return value

    @property
    def output(self) -> str:
        return self.log.read_text()

    def probe(self, name: str) -> int | None:
        """Return the status of a probe of the manifest, None without a connection."""
        try:
            return self.get(self.spec[name]["httpGet"]["path"], timeout_s=self.spec[name]["timeoutSeconds"]).status_code
        except httpx.TransportError:
            return None

    def get(self, path: str, timeout_s: float = TIMEOUT_S) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=timeout_s)

    def wait_for_start(self) -> list[int | None]:
        """Return the statuses of the startup probe until the first 200."""
        statuses: list[int | None] = []
        limit_s = min(
            TIMEOUT_S, self.spec["startupProbe"]["periodSeconds"] * self.spec["startupProbe"]["failureThreshold"]
        )
        began = time.monotonic()
        while time.monotonic() - began < limit_s:
            assert self.process.poll() is None, self.output
            statuses.append(self.probe("startupProbe"))
            if statuses[-1] == 200:
                return statuses
            time.sleep(0.02)
        raise AssertionError(f"not started after {limit_s} s: {self.output}")

    def terminate(self) -> tuple[int, float]:
        """Send SIGTERM; return the exit status and the seconds until then, within the grace period."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(self.grace_period_s), time.monotonic() - began

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def foreign_writes(self) -> Sequence[str]:
        return self.write_log.read_text().splitlines() if self.write_log.exists() else []


def find_other_user() -> int | None:
    """Return another user id if this process may change it and that user can run this Python."""
    if os.getuid() != 0:
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import torch"], user=ANY_USER, group=0, extra_groups=[], capture_output=True
        )
    except PermissionError:
        return None
    return ANY_USER if done.returncode == 0 else None
