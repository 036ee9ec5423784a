"""A server under load: what it serves, the requests it gets, the rounds it has done."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from cenote.bench.backends import Backend, Vectors, WrongReply, body_of, error_in, vectors_in
from cenote.bench.client import Address, Client, NoReply, message
from cenote.bench.client_processes import ClientProcesses
from cenote.bench.load import Load, Request, Sender, run_load
from cenote.bench.load_stats import Round

WARM_UP_CLIENTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What is the same in every request to every server."""

    backend: Backend
    endpoint: str
    model: str | None  # None: whatever the server names first
    encoding_format: str
    extra: Mapping[str, object]
    headers: Mapping[str, str]
    timeout_s: float
    tls: ssl.SSLContext | None = None
    num_processes: int = 1  # that ask


@dataclass(slots=True)
class Target:
    """One server."""

    name: str
    address: Address
    asking: Asking
    model: str | None = None
    root: str | None = None  # what it has loaded, where it tells
    requests: list[Request] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    processes: ClientProcesses | None = None

    async def ask_model(self) -> str | None:
        """The first of the models that the server names, unless one was given; what went wrong, if anything."""
        self.model = self.asking.model
        try:
            async with self.client() as client:
                for path in ("/v1/models", "/models"):
                    reply = await client.send(message("GET", self.address, path, headers=self.asking.headers))
                    if reply.status == 200:
                        card = msgspec.json.decode(reply.body, type=_Models).data[0]
                        self.model, self.root = self.model or card.id, card.root
                        return None
            return f"status {reply.status}: {error_in(reply.body)}"
        except (NoReply, msgspec.DecodeError, UnicodeDecodeError) as error:
            return str(error)
        except IndexError:
            return "an empty list"

    def prepare(self, groups: Sequence[Sequence[str]]) -> None:
        """Every request as the bytes that will be sent: nothing of it is done while the clock runs."""
        asking = self.asking
        for texts in groups:
            body = body_of(
                asking.backend,
                texts,
                model=self.model,
                encoding_format=asking.encoding_format,
                extra=asking.extra,
            )
            ready = message("POST", self.address, asking.endpoint, headers=asking.headers, body=body)
            self.requests.append(Request(ready, asking.backend.num_items(texts)))
        if asking.num_processes > 1:
            self.processes = ClientProcesses(asking.num_processes, self.address, self.requests, asking.timeout_s)

    def close(self) -> None:
        if self.processes is not None:
            self.processes.close()

    async def run_round(self, load: Load, num_warmups: int) -> Round:
        if self.processes is not None:
            done = await asyncio.to_thread(self.processes.run_round, load, num_warmups)
            self.rounds.append(done)
            return done
        async with self.client() as client:
            if num_warmups:
                at_once = load.concurrency or load.max_concurrency or WARM_UP_CLIENTS
                await run_load(Sender(client, self.requests), Load(at_once, num_requests=num_warmups))
            sender = Sender(client, self.requests)
            resent, cpu_s = client.num_resent, time.process_time()
            await run_load(sender, load)
            done = Round(sender.samples, time.process_time() - cpu_s, client.num_resent - resent)
        self.rounds.append(done)
        return done

    async def embed(self, num_requests: int) -> list[Vectors]:
        """The vectors of the first requests; WrongReply where there are none."""
        found = []
        async with self.client() as client:
            for request in self.requests[:num_requests]:
                try:
                    reply = await client.send(request.message)
                except NoReply as error:
                    raise WrongReply(str(error)) from None
                if reply.status != 200:
                    raise WrongReply(f"status {reply.status}: {error_in(reply.body)}")
                found.append(vectors_in(reply.body))
        return found

    def client(self) -> Client:
        return Client(self.address, timeout_s=self.asking.timeout_s, tls=self.asking.tls)


class _Card(msgspec.Struct):
    id: str
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Card]
