"""A server under load: what it serves, the requests it gets, the rounds it has done."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from cenote.bench.backends import Backend, InvalidReply, Vectors, encode_request, parse_error, parse_vectors
from cenote.bench.client import HttpClient, NoResponse, ServerAddress, encode_http_request
from cenote.bench.client_processes import ClientProcesses
from cenote.bench.load import EncodedRequest, LoadPattern, RequestSender, run_load
from cenote.bench.load_stats import LoadRound

WARM_UP_CLIENTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
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
class LoadTarget:
    """One server."""

    name: str
    address: ServerAddress
    request_settings: RequestSettings
    model: str | None = None
    root: str | None = None  # what it has loaded, where it tells
    requests: list[EncodedRequest] = field(default_factory=list)
    rounds: list[LoadRound] = field(default_factory=list)
    processes: ClientProcesses | None = None

    async def fetch_model(self) -> str | None:
        """The first of the models that the server names, unless one was given; what went wrong, if anything."""
        self.model = self.request_settings.model
        try:
            async with self.make_client() as client:
                for path in ("/v1/models", "/models"):
                    reply = await client.send(
                        encode_http_request("GET", self.address, path, headers=self.request_settings.headers)
                    )
                    if reply.status == 200:
                        card = msgspec.json.decode(reply.body, type=_ModelList).data[0]
                        self.model, self.root = self.model or card.id, card.root
                        return None
            return f"status {reply.status}: {parse_error(reply.body)}"
        except (NoResponse, msgspec.DecodeError, UnicodeDecodeError) as error:
            return str(error)
        except IndexError:
            return "an empty list"

    def prepare(self, groups: Sequence[Sequence[str]]) -> None:
        """Every request as the bytes that will be sent: nothing of it is done while the clock runs."""
        asking = self.request_settings
        for texts in groups:
            body = encode_request(
                asking.backend,
                texts,
                model=self.model,
                encoding_format=asking.encoding_format,
                extra=asking.extra,
            )
            ready = encode_http_request("POST", self.address, asking.endpoint, headers=asking.headers, body=body)
            self.requests.append(EncodedRequest(ready, asking.backend.num_items(texts)))
        if asking.num_processes > 1:
            self.processes = ClientProcesses(asking.num_processes, self.address, self.requests, asking.timeout_s)

    def close(self) -> None:
        if self.processes is not None:
            self.processes.close()

    async def run_round(self, load: LoadPattern, num_warmups: int) -> LoadRound:
        if self.processes is not None:
            done = await asyncio.to_thread(self.processes.run_round, load, num_warmups)
            self.rounds.append(done)
            return done
        async with self.make_client() as client:
            if num_warmups:
                at_once = load.concurrency or load.max_concurrency or WARM_UP_CLIENTS
                await run_load(RequestSender(client, self.requests), LoadPattern(at_once, num_requests=num_warmups))
            sender = RequestSender(client, self.requests)
            resent, cpu_s = client.num_resent, time.process_time()
            await run_load(sender, load)
            done = LoadRound(sender.samples, time.process_time() - cpu_s, client.num_resent - resent)
        self.rounds.append(done)
        return done

    async def fetch_vectors(self, num_requests: int) -> list[Vectors]:
        """The vectors of the first requests; WrongReply where there are none."""
        found = []
        async with self.make_client() as client:
            for request in self.requests[:num_requests]:
                try:
                    reply = await client.send(request.message)
                except NoResponse as error:
                    raise InvalidReply(str(error)) from None
                if reply.status != 200:
                    raise InvalidReply(f"status {reply.status}: {parse_error(reply.body)}")
                found.append(parse_vectors(reply.body))
        return found

    def make_client(self) -> HttpClient:
        return HttpClient(self.address, timeout_s=self.request_settings.timeout_s, tls=self.request_settings.tls)


class _ModelEntry(msgspec.Struct):
    id: str
    root: str | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelEntry]
