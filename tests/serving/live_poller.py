"""How long /health/live takes, measured by a process of its own: `python -m tests.serving.live_poller PORT PID`.

The time in which the front-end, or the poller itself, had something to compute and no core does not count: other
processes of the machine had them. Linux counts it for every thread (schedstat). All other time is the server's delay.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .server_process import ServerProcess

POLL_S = 0.02
ANSWER_TIMEOUT_S = 60
NANOSECONDS = 1e9


class LivePoller:
    """Asks /health/live all the time, until the end of the block."""

    def __init__(self, server: ServerProcess) -> None:
        (front_end,) = server.front_ends()
        command = [sys.executable, "-m", __name__, str(server.port), str(front_end)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> LivePoller:
        self.take()  # the process has started
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=ANSWER_TIMEOUT_S)

    def take(self) -> float:
        """Return the longest delay since the last call, in seconds; infinity if the server did not answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline() or "inf")


def main(port: int, pid: int) -> None:
    """Poll; print the longest delay for each line that is read, after a poll that began behind it."""
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    longest_s = 0.0
    while True:
        is_asked = bool(select.select([sys.stdin], [], [], POLL_S)[0])
        if is_asked and not sys.stdin.readline():
            return
        longest_s = max(longest_s, poll(connection, pid))
        if is_asked:
            print(longest_s, flush=True)
            longest_s = 0.0


def poll(connection: HTTPConnection, pid: int) -> float:
    started_at, waits = time.monotonic(), (read_core_waits("self"), read_core_waits(pid))
    try:
        connection.request("GET", "/health/live")
        reply = connection.getresponse()
        reply.read()
    except OSError:
        return float("inf")
    elapsed_s = time.monotonic() - started_at
    own_s, server_s = [
        max((wait_s - before.get(thread, 0.0) for thread, wait_s in after.items()), default=0.0)
        for before, after in zip(waits, (read_core_waits("self"), read_core_waits(pid)), strict=True)
    ]
    return elapsed_s - own_s - server_s if reply.status == 200 else float("inf")


def read_core_waits(pid: int | str) -> dict[str, float]:
    """Return the seconds that each thread of a process has waited for a core so far."""
    waits = {}
    with suppress(OSError):  # a thread has exited in the meantime, or the process: no answer comes then
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                waits[thread] = int(file.read().split()[1]) / NANOSECONDS
    return waits


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
