"""What the measurement of servers looks like, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from cenote.bench.load_stats import LoadStats, Percentiles, Ratio
from cenote.bench.report import machine_info

MAX_CLIENT_CPU = 0.9  # of one core
MAX_SHOWN_ERRORS = 10
COLUMNS = ("requests", "failed", "requests/s", "items/s", "tokens/s", "p50 ms", "p90 ms", "p99 ms", "mean ms", "max ms")


@dataclass(slots=True)
class ServerResult:
    """One server. Ratios compare the first server with this one, round by round."""

    name: str
    url: str
    model: str | None
    rounds: list[LoadStats]
    overall: LoadStats
    first_is_faster: Ratio | None = None  # in items/s
    first_has_shorter_p50: Ratio | None = None
    first_has_shorter_p99: Ratio | None = None
    share_of_in_process: Ratio | None = None  # in items/s
    least_cosine: float | None = None  # with the vectors of LLM.embed


@dataclass(slots=True)
class InProcessResult:
    """LLM.embed in the measuring process, all texts of a round in one call."""

    model: str
    dtype: str
    items: int
    tokens: int
    seconds: list[float]

    @property
    def items_per_s(self) -> float:
        return self.items / median(self.seconds)


@dataclass(slots=True)
class ServeReport:
    backend: str
    endpoint: str
    encoding_format: str
    items_per_request: int
    workload: str
    load: str
    is_open: bool
    client_processes: int = 1
    servers: list[ServerResult] = field(default_factory=list)
    in_process: InProcessResult | None = None
    ready_s: float | None = None  # of a server that was started for this

    @property
    def has_success(self) -> bool:
        return any(server.overall.ok for server in self.servers)

    def compute_ratios(self) -> None:
        """Fill in the ratios."""
        first = self.servers[0]
        for server in self.servers:
            if server is not first:
                server.first_is_faster = Ratio.from_rounds(_speeds(first), _speeds(server))
                server.first_has_shorter_p50 = Ratio.from_rounds(_latencies(server, "p50"), _latencies(first, "p50"))
                server.first_has_shorter_p99 = Ratio.from_rounds(_latencies(server, "p99"), _latencies(first, "p99"))
            if self.in_process is not None:
                engine = [self.in_process.items / seconds for seconds in self.in_process.seconds]
                server.share_of_in_process = Ratio.from_rounds(_speeds(server), engine)

    def to_json(self) -> dict[str, Any]:
        found = {"machine": machine_info(), **asdict(self)}
        if self.in_process is not None:
            speed, engine = self.in_process.items_per_s, found["in_process"]
            engine |= {"items_per_s": speed, "tokens_per_s": speed * self.in_process.tokens / self.in_process.items}
        return found

    def to_text(self) -> str:
        facts = machine_info()
        lines = [f"{facts['processor']}, {facts['cores']} cores"]
        lines += [f"{self.workload}; {self.backend}, {self.items_per_request} per request, {self.endpoint}"]
        num_rounds = len(self.servers[0].rounds)
        lines += [self.load + (f", {num_rounds} interleaved rounds" if num_rounds > 1 else "")]
        if self.ready_s is not None:
            lines += [f"the server was ready {self.ready_s:.1f} s after its start"]
        lines += ["", *self._format_table(), *self._format_comparisons()]
        for server in self.servers:
            lines += _format_remarks(server, is_open=self.is_open, num_clients=self.client_processes)
        return "\n".join(lines)

    def _format_table(self) -> list[str]:
        rows = [["server", *COLUMNS], *(_format_row(server) for server in self.servers)]
        if self.in_process is not None:
            engine, speed = self.in_process, self.in_process.items_per_s
            cells = ["in-process", "", "", "", f"{speed:,.1f}", f"{speed * engine.tokens / engine.items:,.0f}"]
            rows.append(cells + [""] * (len(rows[0]) - len(cells)))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]

    def _format_comparisons(self) -> list[str]:
        lines = []
        first = self.servers[0]
        for server in self.servers:
            if self.is_open and (ratio := server.first_has_shorter_p99) is not None:
                lines.append(f"p99 of {first.name} is shorter than of {server.name} by {_format_ratio(ratio)}")
            if not self.is_open and (ratio := server.first_is_faster) is not None:
                lines.append(f"{first.name} is faster than {server.name} by {_format_ratio(ratio)}")
            if (ratio := server.share_of_in_process) is not None:
                cosine = "unknown" if server.least_cosine is None else f"{server.least_cosine:.6f}"
                lines.append(
                    f"{server.name} keeps {ratio.median:.1%} ({ratio.least:.1%}-{ratio.most:.1%}) of the in-process "
                    f"speed; least cosine {cosine}"
                )
        return ["", *lines] if lines else []


def _speeds(server: ServerResult) -> list[float]:
    return [each.items_per_s for each in server.rounds]


def _latencies(server: ServerResult, name: str) -> list[float]:
    return [0.0 if each.latency_ms is None else getattr(each.latency_ms, name) for each in server.rounds]


def _format_row(server: ServerResult) -> list[str]:
    shown = server.overall
    tokens = "-" if shown.tokens_per_s is None else f"{shown.tokens_per_s:,.0f}"
    rates = [f"{shown.requests:,}", f"{shown.failed:,}", f"{shown.requests_per_s:,.1f}", f"{shown.items_per_s:,.1f}"]
    return [server.name, *rates, tokens, *_format_percentiles(shown.latency_ms)]


def _format_percentiles(percentiles: Percentiles | None) -> list[str]:
    return ["-"] * 5 if percentiles is None else [f"{value:,.2f}" for value in asdict(percentiles).values()]


def _format_ratio(ratio: Ratio) -> str:
    return f"{ratio.median:.2f}x ({ratio.least:.2f}-{ratio.most:.2f})"


def _format_remarks(server: ServerResult, *, is_open: bool, num_clients: int = 1) -> Sequence[str]:
    """What the table has no room for; nothing where there is nothing to say."""
    shown, lines = server.overall, []
    if shown.server_timing_ms:
        inside = [
            f"{name} {mean:.2f} ms ({shown.server_timing_share[name]:.0%})"
            for name, mean in shown.server_timing_ms.items()
        ]
        lines.append(f"{server.name} spent, of a request's time: {', '.join(inside)}")
    if is_open and shown.offered_per_s is not None:
        lines.append(
            f"{server.name} was offered {shown.offered_per_s:,.1f} and answered {shown.requests_per_s:,.1f} requests/s"
        )
    if num_clients > 1:
        lines.append(f"the {num_clients} client processes used {shown.client_cpu:.2f} cores")
    if shown.client_cpu > MAX_CLIENT_CPU * num_clients:
        used = f"{shown.client_cpu / num_clients:.0%} of a core" + (" each" if num_clients > 1 else "")
        lines.append(f"the client used {used}: it may have been the limit, not {server.name}")
    if shown.resent:
        lines.append(f"{shown.resent:,} requests to {server.name} were sent again: their connection had been closed")
    for failures in shown.errors[:MAX_SHOWN_ERRORS]:
        status = "no reply" if failures.status is None else f"status {failures.status}"
        lines.append(f"{server.name}: {failures.count:,} failed with {status}: {failures.error}")
    return ["", *lines] if lines else []
