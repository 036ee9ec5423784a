"""Server under load: its model, its encoded requests and its completed rounds."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from cenote.bench.backends import BACKENDS, Backend, InvalidReply, Vectors, encode_request, parse_error, parse_vectors
from cenote.bench.client_processes import ClientProcesses
from cenote.bench.load import EncodedRequest, LoadPattern, RequestSender, run_load
from cenote.bench.load_stats import LoadRound
from cenote.utils.async_http_client import AsyncHttpClient, NoResponse, ServerAddress, encode_http_request
from cenote.utils.bounded_executor import BoundedExecutor

WARM_UP_CLIENTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """Settings common to all requests to all servers."""

    backend: Backend = BACKENDS["openai-embeddings"]
    path: str = ""  # empty: that of the backend
    model: str | None = None  # None: the first model of the server
    encoding_format: str = "base64"
    extra: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    tls: ssl.SSLContext | None = None
    num_processes: int = 1  # client processes

    @property
    def endpoint(self) -> str:
        return self.path or self.backend.path


@dataclass(slots=True)
class LoadTarget:
    """One server under load."""

    name: str
    address: ServerAddress
    request_settings: RequestSettings
    model: str | None = None
    root: str | None = None  # path or name of the loaded model, if reported
    requests: list[EncodedRequest] = field(default_factory=list)
    rounds: list[LoadRound] = field(default_factory=list)
    processes: ClientProcesses | None = None

    async def fetch_model(self) -> str | None:
        """Set `model` from the server's model list unless one was given; return an error message or None."""
        self.model = self.request_settings.model
        try:
            async with self.make_client() as client:
                for path in ("/v1/models", "/models"):
                    reply = await client.send(
                        encode_http_request("GET", self.address, path, headers=self.request_settings.headers)
                    )
                    if reply.status == 200:
                        card = msgspec.json.decode(reply.content, type=_ModelList).data[0]
                        self.model, self.root = self.model or card.id, card.root
                        return None
            return f"status {reply.status}: {parse_error(reply.content)}"
        except (NoResponse, msgspec.DecodeError, UnicodeDecodeError) as error:
            return str(error)
        except IndexError:
            return "empty model list"

    def prepare(self, groups: Sequence[Sequence[str]]) -> None:
        """Encode all requests in advance, outside the measured time."""
        settings = self.request_settings
        for texts in groups:
            body = encode_request(
                settings.backend,
                texts,
                model=self.model,
                encoding_format=settings.encoding_format,
                extra=settings.extra,
            )
            message = encode_http_request("POST", self.address, settings.endpoint, headers=settings.headers, body=body)
            self.requests.append(EncodedRequest(message, settings.backend.num_items(texts)))
        if settings.num_processes > 1:
            self.processes = ClientProcesses(settings.num_processes, self.address, self.requests, settings.timeout_s)

    def close(self) -> None:
        if self.processes is not None:
            self.processes.close()

    async def run_round(self, load: LoadPattern, num_warmups: int) -> LoadRound:
        if self.processes is not None:
            executor = BoundedExecutor("rounds", num_threads=1, max_waiting=1)
            round_ = await executor.run(self.processes.run_round, load, num_warmups)
            executor.close()
            self.rounds.append(round_)
            return round_
        async with self.make_client() as client:
            if num_warmups:
                concurrency = load.concurrency or load.max_concurrency or WARM_UP_CLIENTS
                await run_load(RequestSender(client, self.requests), LoadPattern(concurrency, num_requests=num_warmups))
            sender = RequestSender(client, self.requests)
            resent, cpu_s = client.num_resent, time.process_time()
            await run_load(sender, load)
            round_ = LoadRound(sender.samples, time.process_time() - cpu_s, client.num_resent - resent)
        self.rounds.append(round_)
        return round_

    async def fetch_vectors(self, num_requests: int) -> list[Vectors]:
        """Return the vectors of the first requests; raise InvalidReply on failure."""
        vectors = []
        async with self.make_client() as client:
            for request in self.requests[:num_requests]:
                try:
                    reply = await client.send(request.message)
                except NoResponse as error:
                    raise InvalidReply(str(error)) from None
                if reply.status != 200:
                    raise InvalidReply(f"status {reply.status}: {parse_error(reply.content)}")
                vectors.append(parse_vectors(reply.content))
        return vectors

    def make_client(self) -> AsyncHttpClient:
        return AsyncHttpClient(self.address, timeout_s=self.request_settings.timeout_s, tls=self.request_settings.tls)


class _ModelEntry(msgspec.Struct):
    id: str
    root: str | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelEntry]
