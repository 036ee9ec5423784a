"""Report of `cenote bench serve`, as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from cenote.bench.load_stats import LoadStats, Percentiles, Ratio, format_ratio
from cenote.bench.report import machine_info
from cenote.utils.tables import align_columns

MAX_CLIENT_CPU = 0.9  # fraction of one core
MAX_SHOWN_ERRORS = 10
COLUMNS = ("requests", "failed", "requests/s", "items/s", "tokens/s", "p50 ms", "p90 ms", "p99 ms", "mean ms", "max ms")


@dataclass(slots=True)
class ServerResult:
    """Results of one server; ratios compare the first server with this one, per round."""

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
    """Results of LLM.embed in the benchmark process, all texts of a round in one call."""

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
    ready_s: float | None = None  # startup time of a spawned server

    @property
    def has_success(self) -> bool:
        return any(server.overall.ok for server in self.servers)

    def compute_ratios(self) -> None:
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
        report = {"machine": machine_info(), **asdict(self)}
        if self.in_process is not None:
            speed, engine = self.in_process.items_per_s, report["in_process"]
            engine |= {"items_per_s": speed, "tokens_per_s": speed * self.in_process.tokens / self.in_process.items}
        return report

    def to_text(self) -> str:
        facts = machine_info()
        lines = [f"{facts['processor']}, {facts['cores']} cores"]
        lines += [f"{self.workload}; {self.backend}, {self.items_per_request} per request, {self.endpoint}"]
        num_rounds = len(self.servers[0].rounds)
        lines += [self.load + (f", {num_rounds} interleaved rounds" if num_rounds > 1 else "")]
        if self.ready_s is not None:
            lines += [f"server ready after {self.ready_s:.1f} s"]
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
        return align_columns(rows, ">")

    def _format_comparisons(self) -> list[str]:
        lines = []
        first = self.servers[0]
        for server in self.servers:
            if self.is_open and (ratio := server.first_has_shorter_p99) is not None:
                lines.append(
                    f"p99 latency of {first.name} is lower than that of {server.name} by {format_ratio(ratio)}"
                )
            if not self.is_open and (ratio := server.first_is_faster) is not None:
                lines.append(f"{first.name} is faster than {server.name} by {format_ratio(ratio)}")
            if (ratio := server.share_of_in_process) is not None:
                cosine = "unknown" if server.least_cosine is None else f"{server.least_cosine:.6f}"
                lines.append(
                    f"{server.name} reaches {ratio.median:.1%} ({ratio.least:.1%}-{ratio.most:.1%}) of the in-process "
                    f"speed; minimum cosine similarity {cosine}"
                )
        return ["", *lines] if lines else []


def _speeds(server: ServerResult) -> list[float]:
    return [stats.items_per_s for stats in server.rounds]


def _latencies(server: ServerResult, name: str) -> list[float]:
    return [0.0 if stats.latency_ms is None else getattr(stats.latency_ms, name) for stats in server.rounds]


def _format_row(server: ServerResult) -> list[str]:
    stats = server.overall
    tokens = "-" if stats.tokens_per_s is None else f"{stats.tokens_per_s:,.0f}"
    rates = [f"{stats.requests:,}", f"{stats.failed:,}", f"{stats.requests_per_s:,.1f}", f"{stats.items_per_s:,.1f}"]
    return [server.name, *rates, tokens, *_format_percentiles(stats.latency_ms)]


def _format_percentiles(percentiles: Percentiles | None) -> list[str]:
    return ["-"] * 5 if percentiles is None else [f"{value:,.2f}" for value in asdict(percentiles).values()]


def _format_remarks(server: ServerResult, *, is_open: bool, num_clients: int = 1) -> Sequence[str]:
    """Return lines about server timing, offered rate, client CPU and errors; empty if there are none."""
    stats, lines = server.overall, []
    if stats.server_timing_ms:
        timings = [
            f"{name} {mean:.2f} ms ({stats.server_timing_share[name]:.0%})"
            for name, mean in stats.server_timing_ms.items()
        ]
        lines.append(f"{server.name}, server timing per request: {', '.join(timings)}")
    if is_open and stats.offered_per_s is not None:
        lines.append(
            f"{server.name} was offered {stats.offered_per_s:,.1f} and completed {stats.requests_per_s:,.1f} requests/s"
        )
    if num_clients > 1:
        lines.append(f"the {num_clients} client processes used {stats.client_cpu:.2f} cores")
    if stats.client_cpu > MAX_CLIENT_CPU * num_clients:
        used = f"{stats.client_cpu / num_clients:.0%} of a core" + (" each" if num_clients > 1 else "")
        lines.append(f"the client used {used}: it may have been the bottleneck, not {server.name}")
    if stats.resent:
        lines.append(f"{stats.resent:,} requests to {server.name} were resent because their connection had been closed")
    for failures in stats.errors[:MAX_SHOWN_ERRORS]:
        status = "no response" if failures.status is None else f"status {failures.status}"
        lines.append(f"{server.name}: {failures.count:,} failed with {status}: {failures.error}")
    return ["", *lines] if lines else []
