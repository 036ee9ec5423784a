"""HTTP metrics of a front-end process: the supervisor counts them, so that every front-end exposes the sum."""

from __future__ import annotations

import asyncio
import itertools

from cenote.api.wire.channel import Channel
from cenote.api.wire.control_messages import FrontEndStats, ReplayStats, SupervisorToFrontEnd
from cenote.api.wire.messages import MetricsCall, MetricsResponse
from cenote.utils.metrics import MetricFamily

# a report is sent at this many replies; fewer wait for the next periodic report
REPLIES_PER_REPORT = 64


class ForwardedMetrics:
    """Implement ServerMetrics over the channel to the supervisor."""

    def __init__(self, channel: Channel[SupervisorToFrontEnd]) -> None:
        self._channel = channel
        self._replies: list[tuple[str, str, int, float]] = []
        self._reported_in_flight = 0  # requests in flight, as last sent
        self._call_ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[list[MetricFamily]]] = {}

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        self._replies.append((handler, method, status, seconds))
        if len(self._replies) >= REPLIES_PER_REPORT:
            self._send()

    def observe_replay(self, stats: ReplayStats) -> None:
        self._channel.send(stats)

    async def collect(self) -> list[MetricFamily]:
        self._send()
        call_id = next(self._call_ids)
        future: asyncio.Future[list[MetricFamily]] = asyncio.get_running_loop().create_future()
        self._pending[call_id] = future
        self._channel.send(MetricsCall(call_id))
        try:
            return await future
        finally:
            del self._pending[call_id]

    def report(self, num_in_flight: int) -> None:
        """Send the statistics to the supervisor if they changed since the last report."""
        if self._replies or num_in_flight != self._reported_in_flight:
            self._reported_in_flight = num_in_flight
            self._send()

    def on_response(self, response: MetricsResponse) -> None:
        future = self._pending.get(response.call_id)
        if future is not None and not future.done():
            future.set_result(response.families)

    def _send(self) -> None:
        self._channel.send(FrontEndStats(self._replies, self._reported_in_flight))
        self._replies = []
