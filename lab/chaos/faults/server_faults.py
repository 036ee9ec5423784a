"""Faults of the other processes and of what the system gives them: front-ends, descriptors, clock, disk."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from cenote.bench.load import run_load
from cenote.cache.disk_cache import FILE_NAME
from lab.chaos.faults.fault import Fault, FaultContext, make_open_loop
from lab.chaos.outcomes import FaultWindow
from lab.chaos.processes import find_client_ports, read_links, wait_until_stopped
from lab.chaos.server import THREADS

CACHE_FOLDER = "CACHE_FOLDER"
CACHE_ARGS = ("--result-cache-bytes", "1M", "--result-cache-dir", CACHE_FOLDER)
NUM_IDLE_CONNECTIONS = 32
NUM_SPARE_FILES = 2
CLOCK_JUMPS_S = (3600.0, -3600.0, 86400.0 * 365, -86400.0 * 365)
SLOW_DISK_S = 0.2
DISK_MIB = 8
FILLER_BYTES = 4096
SQLITE_TIMEOUT_S = 5.0
NEW_TEXTS_PER_S = 20.0


class LostFrontEnd(Fault):
    """SIGKILL to one of several front-end processes; only its open connections may break."""

    name = "lost-front-end"

    def skip_reason(self, context: FaultContext) -> str | None:
        return None if len(context.server.front_ends) > 1 else "needs --front-ends 2 or more"

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        front_end = context.source.choice(context.server.front_ends)
        os.kill(front_end, signal.SIGSTOP)  # it accepts no further connection while its connections are listed
        await wait_until_stopped(front_end)
        window.broken_ports = find_client_ports(front_end)
        os.kill(front_end, signal.SIGKILL)


class NoDescriptors(Fault):
    """The limit of open files of the front-ends is lowered to what they have open, and idle clients connect."""

    name = "no-descriptors"
    recovers_from_start = False

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        front_ends = context.server.front_ends
        limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in front_ends}
        address = (context.server.address.host, context.server.address.port)
        clients = []
        try:
            for pid, (_, hard) in limits.items():
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(read_links(pid)) + NUM_SPARE_FILES, hard))
            for _ in range(NUM_IDLE_CONNECTIONS):
                client = socket.socket()
                clients.append(client)
                client.setblocking(False)
                client.connect_ex(address)
            await asyncio.sleep(context.max_fault_s / 2)
        finally:
            for client in clients:
                client.close()
            for pid, limit in limits.items():
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


class ClockJump(Fault):
    """The wall clock of all processes of the server jumps forwards or backwards, and back again."""

    name = "clock-jump"
    recovers_from_start = False

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        with context.hooks.clock_offset(context.source.choice(CLOCK_JUMPS_S)):
            await asyncio.sleep(context.max_fault_s / 2)


class FullDisk(Fault):
    """No space for the result cache: its file system is full, or its files may not grow."""

    name = "full-disk"
    serve_args = CACHE_ARGS
    recovers_from_start = False

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        if os.path.ismount(context.cache_folder):
            filler = context.cache_folder / "filler"
            await THREADS.run(empty_journal, context.cache_folder / FILE_NAME)
            fill_disk(filler)
            await send_new_texts(context)
            filler.unlink()
            return
        engine = await context.server.wait_for_engine()
        limit = resource.prlimit(engine, resource.RLIMIT_FSIZE)
        resource.prlimit(engine, resource.RLIMIT_FSIZE, (0, limit[1]))
        await send_new_texts(context)
        resource.prlimit(engine, resource.RLIMIT_FSIZE, limit)


class SlowDisk(Fault):
    """Every access of the result cache to the disk takes a fifth of a second."""

    name = "slow-disk"
    serve_args = CACHE_ARGS
    recovers_from_start = False

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        with context.hooks.slow_disk(SLOW_DISK_S):
            await send_new_texts(context)


async def send_new_texts(context: FaultContext) -> None:
    """Send texts whose results are not in the cache: they are looked up and stored."""
    await run_load(context.sender, make_open_loop(context, NEW_TEXTS_PER_S))


def empty_journal(path: Path) -> None:
    """Give the space of the write-ahead log back: the cache could write into it while the disk is full."""
    full = suppress(sqlite3.OperationalError)  # the cache itself has filled the disk
    with full, closing(sqlite3.connect(path, timeout=SQLITE_TIMEOUT_S)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def fill_disk(path: Path) -> None:
    """Write a file until its file system is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(FILLER_BYTES))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Create the folder, as a file system of its own if possible; yield whether it is one."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", str(folder)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], capture_output=True, check=False)
