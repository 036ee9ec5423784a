"""What is left of descriptors bounds the connections, and memory that is nearly full the large requests."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cenote.api import pressure
from cenote.api.admission.admission_metrics import collect_server_metrics
from cenote.api.admission.controller import AdmissionController
from cenote.api.admission.counters import MEMORY, Counters
from cenote.api.api_keys import ANONYMOUS
from cenote.api.http.server_state import ServerState
from cenote.api.pressure import describe_limit, limit_connections, watch_pressure
from cenote.api.replies import error_reply
from cenote.config.server import ServerConfig
from cenote.errors import OutOfResources
from cenote.utils.system_limits import MemoryLimit, count_open_files

from .http.memory_transport import echo

MEGABYTE = 1_000_000


@contextmanager
def file_limit(limit: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    ("limit", "options", "expected"),
    [
        (1024, {}, 896),
        (1024, {"api_server_count": 8}, 512),
        (1024, {"grpc_port": 1}, 448),
        (8192, {}, 4096),
        (200, {}, 100),
    ],
)
def test_connections_leave_descriptors_for_other_things(limit: int, options: dict[str, int], expected: int) -> None:
    settings = ServerConfig(**options)  # type: ignore[arg-type]

    with file_limit(limit):
        assert limit_connections(settings) == expected
        assert (describe_limit(settings) is None) == (expected * settings.api_server_count >= 4096)


def run_watch(state: ServerState, counters: Counters) -> None:
    async def run() -> None:
        watch = asyncio.create_task(watch_pressure(state, counters))
        await asyncio.sleep(0.05)
        watch.cancel()

    asyncio.run(run())


def test_connections_follow_what_other_users_of_descriptors_leave() -> None:
    state, counters = ServerState(echo, max_connections=4096), Counters()

    with file_limit(count_open_files() + 100):
        run_watch(state, counters)

    assert 1 <= state.max_connections <= 100
    assert metric(counters, "descriptors") > 0.1


def test_the_memory_of_the_container_is_a_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.current").write_text("900")
    (tmp_path / "memory.stat").write_text("active_file 100\ninactive_file 50\n")
    monkeypatch.setattr(pressure, "find_memory_limit", lambda: MemoryLimit(1000, tmp_path))
    counters = Counters()

    run_watch(ServerState(echo), counters)

    assert metric(counters, "memory") == 0.75


def metric(counters: Counters, resource_name: str) -> float:
    (family,) = [item for item in collect_server_metrics(counters, 0) if item.name == "cenote_used_share"]
    return next(series.value for series in family.series if series.labels == (resource_name,))


def test_while_memory_is_nearly_full_large_requests_run_one_at_a_time() -> None:
    counters = Counters()
    controller = AdmissionController(max_queue_tokens=1000, max_inflight_bytes=10 * MEGABYTE, counters=counters)
    counters.own[MEMORY] = 0.95

    controller.check_open(MEGABYTE, None, ANONYMOUS, ())
    controller.add_bytes(MEGABYTE, "the body")
    controller.add_bytes(MEGABYTE, "the answer", MEGABYTE)  # of the same request
    controller.check_open(1000, None, ANONYMOUS, ())
    with pytest.raises(OutOfResources, match="95% of the memory") as caught:
        controller.check_open(MEGABYTE, None, ANONYMOUS, ())
    with pytest.raises(OutOfResources):
        controller.add_bytes(MEGABYTE, "the body")
    reply = error_reply(caught.value)
    assert reply.status == 503 and reply.headers["retry-after"] == "1"

    controller.remove_bytes(2 * MEGABYTE)
    controller.add_bytes(MEGABYTE, "the body")
    counters.own[MEMORY] = 0.5
    controller.add_bytes(MEGABYTE, "the body")
