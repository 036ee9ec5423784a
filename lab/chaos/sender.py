"""Send the requests of a mix and check every reply against the answers of a quiet server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cenote.bench.backends import Vectors
from cenote.bench.load import RequestSender
from cenote.errors import LoadError
from cenote.utils.async_http_client import encode_http_request
from lab.chaos.expectations import OK
from lab.chaos.outcomes import Outcome, make_outcome
from lab.chaos.request_mix import ChaosRequest
from lab.chaos.traced_client import TracedClient

ABORT_SHARE, DEADLINE_SHARE = 0.05, 0.1
DEADLINE_S = 8.0
MAX_ABORT_S = 0.05
RETRY_PAUSE_S = 0.2  # of clients in a closed loop, after a reply that is not 200
PROBE_INTERVAL_S = 0.05

References = Mapping[bytes, Vectors]  # by body
Draw = Callable[[random.Random], ChaosRequest]


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What all requests of a run have in common."""

    api_keys: tuple[str, ...] = ()
    tolerance: float = 0.0
    references: References = field(default_factory=dict)


class CheckedSender(RequestSender):
    """Sends what `draw` returns, and records the outcome of each request."""

    def __init__(
        self,
        client: TracedClient,
        settings: LoadSettings,
        draw: Draw,
        *,
        seed: int,
        has_aborts: bool = False,
        pauses: bool = False,
    ) -> None:
        super().__init__(client, [])
        self.traced = client
        self.settings = settings
        self.draw = draw
        self.source = random.Random(seed)
        self.has_aborts = has_aborts  # whether some clients disconnect or set a deadline
        self.pauses = pauses
        self.outcomes: list[Outcome] = []
        self._in_flight: set[asyncio.Task[None]] = set()

    async def send(self, index: int, due: float | None = None) -> None:
        """Send one request; if the load is cancelled meanwhile, its outcome is recorded nevertheless."""
        task = asyncio.create_task(self._send_next())
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        await asyncio.shield(task)

    async def wait_idle(self) -> None:
        """Wait for the requests in flight."""
        if self._in_flight:
            await asyncio.wait(self._in_flight)

    async def _send_next(self) -> None:
        request = self.draw(self.source)
        abort_after_s = deadline_s = None
        if self.has_aborts and request.kind != "invalid":
            choice = self.source.random()
            if choice < ABORT_SHARE:
                abort_after_s = self.source.uniform(0, MAX_ABORT_S)
            elif choice < ABORT_SHARE + DEADLINE_SHARE:
                deadline_s = DEADLINE_S
        outcome = await self.send_request(request, abort_after_s=abort_after_s, deadline_s=deadline_s)
        if self.pauses and outcome.status != OK:
            await asyncio.sleep(RETRY_PAUSE_S)

    async def send_request(
        self, request: ChaosRequest, *, abort_after_s: float | None = None, deadline_s: float | None = None
    ) -> Outcome:
        request_id = f"{self.source.getrandbits(64):016x}"
        headers = {"X-Request-Id": request_id}
        if self.settings.api_keys and request.has_key:
            headers["Authorization"] = f"Bearer {self.source.choice(self.settings.api_keys)}"
        if deadline_s is not None:
            headers["X-Request-Timeout-Ms"] = str(int(deadline_s * 1000))
        message = encode_http_request("POST", self.client.address, request.path, headers=headers, body=request.body)
        exchange = await self.traced.exchange(message, abort_after_s=abort_after_s)
        outcome = make_outcome(
            request,
            exchange,
            request_id=request_id,
            expected=self.settings.references.get(request.body),
            tolerance=self.settings.tolerance,
            deadline_s=deadline_s,
        )
        self.outcomes.append(outcome)
        return outcome


async def record_references(
    client: TracedClient, requests: list[ChaosRequest], api_keys: tuple[str, ...]
) -> tuple[dict[bytes, Vectors], set[str]]:
    """Return the answers of a quiet server by body, and the kinds of requests that the model does not support."""
    references: dict[bytes, Vectors] = {}
    unsupported: set[str] = set()
    headers = {"Authorization": f"Bearer {api_keys[0]}"} if api_keys else {}
    for request in requests:
        if request.read is None or request.kind in unsupported:
            continue
        message = encode_http_request("POST", client.address, request.path, headers=headers, body=request.body)
        exchange = await client.exchange(message)
        if exchange.reply is None:
            raise LoadError(f"a quiet server did not answer {request.path}: {exchange.error}")
        if exchange.reply.status != OK:
            unsupported.add(request.kind)
            continue
        references[request.body] = request.read(exchange.reply.content)
    if not references:
        raise LoadError("the model answers none of the requests of the mix; it needs the task embed or score")
    return references, unsupported


async def wait_until_answered(sender: CheckedSender, request: ChaosRequest, limit_s: float) -> bool:
    """Send probes until one has its answer; return False after the limit."""
    began = time.perf_counter()
    while time.perf_counter() - began < limit_s:
        if (await sender.send_request(request)).status == OK:
            return True
        await asyncio.sleep(PROBE_INTERVAL_S)
    return False
