"""Clients that send requests to several models until they are told to stop, and check every answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from .server_process import TIMEOUT_S, ServerProcess

Check = Callable[[httpx.Client], str]  # sends a request; returns what is wrong with the answer, or ""


@dataclass
class Load:
    """What the clients have seen so far."""

    num_answers: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def wait_for_answers(self, count: int) -> None:
        """Wait until every client has so many more answers."""
        goals = {name: done + count for name, done in self.num_answers.items()}
        end = time.monotonic() + TIMEOUT_S
        while any(self.num_answers[name] < goal for name, goal in goals.items()) and not self.failures:
            assert time.monotonic() < end, f"{self.num_answers} of {goals}"
            time.sleep(0.01)


@contextmanager
def load_on(server: ServerProcess, checks: Mapping[str, Check]) -> Iterator[Load]:
    """Run each check again and again in a thread of its own; there must be no failure at the end."""
    load = Load(dict.fromkeys(checks, 0))

    def run(name: str, check: Check) -> None:
        with server.client() as client:
            while not load.stop.is_set():
                try:
                    problem = check(client)
                except Exception as error:
                    problem = repr(error)
                if problem:
                    load.failures.append(f"{name}: {problem}")
                    return
                load.num_answers[name] += 1

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in checks.items()]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
    assert not load.failures, load.failures
    assert all(load.num_answers.values()), load.num_answers
