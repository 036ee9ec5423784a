"""`pytest --workers N`: forked workers run the tests that one process has collected, a file at a time.

All modules are imported once, not once in every worker. A worker takes the next file when it has finished one.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO

import pytest

# folders whose files share servers with several models: one worker runs all of them
SHARED_SERVERS = ("tests/clients/", "tests/ui/")
INDEX_BYTES = 4  # of a group of tests in the pipe from which all workers read


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, metavar="N", help="run the tests in N processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    num_workers = session.config.getoption("workers")
    if num_workers < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    WorkerPool(session).run(num_workers)
    return True


def get_group(item: pytest.Item) -> str:
    path = item.nodeid.partition("::")[0]
    return next((folder for folder in SHARED_SERVERS if path.startswith(folder)), path)


class WorkerPool:
    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        groups: dict[str, list[pytest.Item]] = {}  # in the order of their first items
        for item in session.items:
            groups.setdefault(get_group(item), []).append(item)
        self.groups = list(groups.values())
        self.queue, queue_end = os.pipe()
        os.write(queue_end, b"".join(index.to_bytes(INDEX_BYTES, "big") for index in range(len(self.groups))))
        os.close(queue_end)
        self.selector = selectors.DefaultSelector()

    def run(self, num_workers: int) -> None:
        # the folder of all workers: made here, as each of them would make one
        self.session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        for _ in range(min(num_workers, len(self.groups))):
            self._start_worker([])
        try:
            while self.selector.get_map():
                for key, _ in self.selector.select():
                    key.data.receive()
            if self.session.shouldfail:
                raise self.session.Failed(self.session.shouldfail)
        finally:
            for key in list(self.selector.get_map().values()):
                os.kill(key.data.pid, signal.SIGKILL)
                key.data.reports.close()
            os.close(self.queue)

    def _start_worker(self, first: Sequence[pytest.Item]) -> None:
        """Start a worker, which runs the items of `first` before it takes others."""
        reports, reports_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(reports)
            self._run_worker(first, reports_end)
        os.close(reports_end)
        self.selector.register(
            reports, selectors.EVENT_READ, Worker(self, pid, os.fdopen(reports, "rb", buffering=0), first)
        )

    def _run_worker(self, first: Sequence[pytest.Item], reports: int) -> None:
        status = 1
        try:
            config = self.session.config
            capture = config.pluginmanager.getplugin("capturemanager")
            capture.stop_global_capturing()  # its files are those of the parent
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
            capture.start_global_capturing()
            capture.suspend_global_capture()
            sender = ReportSender(config, reports)
            config.pluginmanager.register(sender)
            items = chain(first, self._take_items(sender))
            item = next(items, None)
            while item is not None:
                next_item = next(items, None)  # which fixtures the item leaves to it
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
                item = next_item
            status = 0
        finally:
            os._exit(status)

    def _take_items(self, sender: ReportSender) -> Iterator[pytest.Item]:
        while data := os.read(self.queue, INDEX_BYTES):
            index = int.from_bytes(data, "big")
            sender.send(index)
            yield from self.groups[index]

    def on_exit(self, worker: Worker, status: int) -> None:
        self.selector.unregister(worker.reports)
        worker.reports.close()
        if status == 0:
            return
        message = f"the worker ended with status {status}"
        if worker.nodeid is None:
            raise pytest.UsageError(f"{message} outside of a test")
        self.report(
            pytest.TestReport(worker.nodeid, (worker.nodeid, None, worker.nodeid), {}, "failed", message, "call")
        )
        if not self.session.shouldfail:
            self._start_worker([item for item in worker.items.values() if item.nodeid != worker.nodeid])

    def report(self, report: pytest.TestReport) -> None:
        self.session.config.hook.pytest_runtest_logreport(report=report)
        if self.session.shouldfail:
            while os.read(self.queue, 1 << 16):  # the workers stop after their files
                pass


class Worker:
    """A worker as its parent knows it: receives the reports of its tests."""

    def __init__(self, pool: WorkerPool, pid: int, reports: BinaryIO, items: Sequence[pytest.Item]) -> None:
        self.pool = pool
        self.pid = pid
        self.reports = reports
        self.items = {item.nodeid: item for item in items}  # that it has taken and not finished
        self.nodeid: str | None = None  # of the test that runs
        self.received = b""

    def receive(self) -> None:
        data = self.reports.read(1 << 20)
        if not data:
            self.pool.on_exit(self, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))
            return
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            self._on_message(json.loads(line))

    def _on_message(self, message: Any) -> None:
        if isinstance(message, int):
            self.items.update({item.nodeid: item for item in self.pool.groups[message]})
        elif isinstance(message, str):
            self.nodeid = message
        elif message is None:
            assert self.nodeid is not None, "a test has begun"
            del self.items[self.nodeid]
            self.nodeid = None
        else:
            if isinstance(message["longrepr"], list):  # where a test was skipped, and why: a tuple before it was JSON
                message["longrepr"] = tuple(message["longrepr"])
            config = self.pool.session.config
            self.pool.report(config.hook.pytest_report_from_serializable(config=config, data=message))


class ReportSender:
    """In a worker: sends the index of each group that it takes; the name of each test, its reports, and None."""

    def __init__(self, config: pytest.Config, fd: int) -> None:
        self.config = config
        self.fd = fd

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.send(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.send(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_runtest_logfinish(self) -> None:
        self.send(None)

    def send(self, message: Any) -> None:
        data = memoryview(json.dumps(message, default=str).encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self.fd, data) :]
