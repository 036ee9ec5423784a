"""Requests that clients send without a pause while a server is disturbed."""

from __future__ import annotations

import threading

import httpx
import pytest

from tests.serving.server_process import ServerProcess

NUM_CLIENTS = 4


class Load:
    """Clients that send requests until stopped, and compare the vectors with those of a quiet server."""

    def __init__(self, server: ServerProcess, *, connection_errors: bool = False) -> None:
        self.server = server
        self.allows_connection_errors = connection_errors
        self.texts = [f"the cat {'is in ' * (number % 7)}the city {number}" for number in range(64)]
        with server.client() as client:
            data = client.post("/v1/embeddings", json={"input": self.texts}).json()["data"]
        self.expected = [entry["embedding"] for entry in data]
        self.num_answered = self.num_broken = 0
        self.failures: list[str] = []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(NUM_CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def _run(self, number: int) -> None:
        with self.server.client() as client:
            while not self.stopping.is_set():
                number = (number * 5 + 3) % 61
                indices = range(number, number + 1 + number % 3)
                try:
                    reply = client.post("/v1/embeddings", json={"input": [self.texts[index] for index in indices]})
                except httpx.TransportError as error:
                    self.num_broken += 1
                    if not self.allows_connection_errors:
                        self.failures.append(repr(error))
                    continue
                if reply.status_code != 200:
                    self.failures.append(reply.text)
                    continue
                for index, entry in zip(indices, reply.json()["data"], strict=True):
                    if entry["embedding"] != pytest.approx(self.expected[index], abs=1e-5):
                        self.failures.append(f"a wrong vector for text {index}")
                self.num_answered += 1
