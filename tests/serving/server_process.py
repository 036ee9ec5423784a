"""`cenote serve` as a child process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .forked_server import ForkedServer, fork_server

if TYPE_CHECKING:
    import httpx

LISTENING = re.compile(r"listening on (\S+);")
LISTEN_FLAGS = ("--host", "127.0.0.1", "--port", "0")
# several threads wait for each other, for long if other processes use the cores
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
TIMEOUT_S = 60.0  # far more than any step takes


class ServerProcess:
    """One run of `cenote serve`; collects the lines that it prints."""

    listen_flags: tuple[str, ...] = LISTEN_FLAGS
    is_forked = sys.platform.startswith("linux")  # False: started as users start it, which takes seconds

    def __init__(self, *flags: str, **environment: str) -> None:
        self.started = time.perf_counter()
        self.api_key: str | None = None  # that clients of client() send
        self.lines: list[str] = []
        self.lines_changed = threading.Condition()
        argv = ["serve", *(flags if "--uds" in flags else (*self.listen_flags, *flags))]
        if self.is_forked and environment.items() <= ENVIRONMENT.items():
            self.process: subprocess.Popen[str] | ForkedServer = fork_server(argv, ENVIRONMENT)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cenote", *argv],
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **ENVIRONMENT, **environment},
            )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    @property
    def address(self) -> str:
        """The address that the server logs before the model is loaded."""
        match = LISTENING.search(self.wait_for_line(LISTENING.pattern))
        assert match is not None, self.output
        return match[1]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def startup_s(self) -> float:
        """Seconds since the start, or CPU seconds if fewer: other processes may use the cores."""
        cpu_s = sum(map(read_cpu_s, (self.process.pid, *self.front_ends())))
        return min(time.perf_counter() - self.started, cpu_s)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_for_line(self, pattern: str) -> str:
        """Wait for a line that matches the pattern and return it."""
        with self.lines_changed:
            assert self.lines_changed.wait_for(lambda: self._find(pattern) or self._has_exited(), TIMEOUT_S), (
                self.output
            )
            line = self._find(pattern)
            assert line is not None, f"no line matches {pattern}:\n{self.output}"
            return line

    def wait_until_ready(self) -> ServerProcess:
        self.wait_for_line("is ready after")
        return self

    @property
    def engine(self) -> int | None:
        """The id of the engine process; None if there is none at the moment."""
        return next(iter(self.engines), None)

    @property
    def engines(self) -> list[int]:
        """The ids of all engine processes."""
        pids = [pid for pid in children(self.process.pid) if "cenote.api.engine_process" in command_line(pid)]
        return sorted(pids)

    def front_ends(self) -> list[int]:
        """Return the ids of the front-end processes, oldest first."""
        pids = children(self.process.pid)
        return sorted(pid for pid in pids if "cenote.api.front_ends.front_end" in command_line(pid))

    def client(self, **options: Any) -> httpx.Client:
        import httpx  # servers also start in an environment of a reader, which does not have it

        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return httpx.Client(base_url=self.address, timeout=TIMEOUT_S, **{"headers": headers, **options})

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        status = self.process.wait(TIMEOUT_S)
        self.reader.join(TIMEOUT_S)
        return status

    def stop(self) -> int:
        if self.process.poll() is None:
            self.signal()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.lines_changed:
                self.lines.append(line)
                self.lines_changed.notify_all()
        self.process.stderr.close()
        with self.lines_changed:
            self.lines_changed.notify_all()

    def _has_exited(self) -> bool:
        return self.process.stderr is not None and self.process.stderr.closed

    def _find(self, pattern: str) -> str | None:
        return next((line for line in self.lines if re.search(pattern, line)), None)


def read_metrics(client: httpx.Client) -> dict[str, float]:
    """Return the metrics without labels of their own."""
    lines = [line for line in client.get("/metrics").text.splitlines() if line and not line.startswith("#")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


def children(pid: int) -> list[int]:
    pids = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # exited in the meantime
        if int(fields[1]) == pid and fields[0] != "Z":
            pids.append(int(status.parent.name))
    return pids


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files(pid: int) -> set[str]:
    names = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.add(os.readlink(link))
        except OSError:
            continue  # closed in the meantime
    return names


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.02)


def peak_megabytes(server: ServerProcess) -> int:
    """Return the sum of the peak resident memory of the server's processes so far."""
    peaks = []
    for pid in (server.process.pid, *children(server.process.pid)):
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert match is not None
        peaks.append(int(match[1]) // 1024)
    return sum(peaks)
