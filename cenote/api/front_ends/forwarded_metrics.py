"""HTTP metrics of a front-end process: the supervisor counts them, so that every front-end exposes the sum."""

from __future__ import annotations

from cenote.api.wire.channel import Channel
from cenote.api.wire.control_messages import FrontEndStats, SupervisorToFrontEnd
from cenote.api.wire.messages import MetricsCall
from cenote.utils.metrics import MetricFamily

# a report is sent at this many replies; fewer wait for the next periodic report
REPLIES_PER_REPORT = 64


class ForwardedMetrics:
    """Implement ServerMetrics over the channel to the supervisor."""

    def __init__(self, channel: Channel[SupervisorToFrontEnd]) -> None:
        self._channel = channel
        self._replies: list[tuple[str, str, int, float]] = []
        self._reported_in_flight = 0  # requests in flight, as last sent

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        self._replies.append((handler, method, status, seconds))
        if len(self._replies) >= REPLIES_PER_REPORT:
            self._send()

    async def collect(self) -> list[MetricFamily]:
        self._send()
        return (await self._channel.call(MetricsCall())).families

    def report(self, num_in_flight: int) -> None:
        """Send the statistics to the supervisor if they changed since the last report."""
        if self._replies or num_in_flight != self._reported_in_flight:
            self._reported_in_flight = num_in_flight
            self._send()

    def _send(self) -> None:
        self._channel.send(FrontEndStats(self._replies, self._reported_in_flight))
        self._replies = []
