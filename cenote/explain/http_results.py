"""Results of `cenote explain --http`: the stages of a request and the processes of the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from cenote.bench.load_stats import Percentiles
from cenote.explain.process_cpu import ProcessUsage

# stage of the header Server-Timing, in the order of a request -> roles of its processes
STAGES = {
    "parse": ("front-end",),
    "tokenize": ("front-end",),
    "wire": ("front-end", "engine"),
    "queue": ("engine",),
    "pack": ("engine",),
    "device": ("engine",),
    "deliver": ("engine", "front-end"),
    "encode": ("front-end",),
}
OTHER_STAGE = "other"  # sockets, HTTP, waiting for the event loop of the front-end, and the client


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLoadOptions:
    serve_args: Sequence[str]  # of `cenote serve`, without host and port
    model: str | None
    api_key: str | None = None
    connections: int
    client_processes: int
    length: int  # tokens per text
    encoding_format: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StageTime:
    name: str
    mean_ms: float
    share: float  # of the mean latency
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResults:
    model: str
    endpoint: str
    encoding_format: str
    connections: int
    client_processes: int
    seconds: float
    requests: int  # that succeeded
    failed: int
    requests_per_s: float
    tokens_per_request: float
    latency_ms: Percentiles
    stages: tuple[StageTime, ...]
    processes: tuple[ProcessUsage, ...]  # empty without /proc
    client_cores: float
    machine_cores: int
    device_busy: float  # share of the time
    inputs_per_batch: float | None  # None if no batch ran

    @property
    def front_ends(self) -> list[ProcessUsage]:
        return [process for process in self.processes if process.role == "front-end"]

    @property
    def engines(self) -> list[ProcessUsage]:
        return [process for process in self.processes if process.role == "engine"]

    @property
    def server_cores(self) -> float:
        return sum(process.cores for process in self.processes)


def make_stages(mean_ms: Mapping[str, float], latency_ms: float, roles: Set[str]) -> Iterator[StageTime]:
    """Yield the stages and what is left of the latency; `roles` are those of the processes of the server."""
    for name, stage_roles in STAGES.items():
        process = "server" if "server" in roles else " and ".join(stage_roles)
        yield StageTime(name, mean_ms.get(name, 0.0), mean_ms.get(name, 0.0) / latency_ms, process)
    rest_ms = max(0.0, latency_ms - sum(mean_ms.get(name, 0.0) for name in STAGES))
    yield StageTime(OTHER_STAGE, rest_ms, rest_ms / latency_ms, "sockets, event loop, client")
