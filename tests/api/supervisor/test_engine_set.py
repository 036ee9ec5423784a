"""The replicas of a model, whichever of them exits, becomes ready or is replaced: their adapters and their speed."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cenote.api.admission.counters import Counters
from cenote.api.admission.engine_speed import RECOVERY_S, EngineSpeed, SpeedReport
from cenote.api.supervisor.engine_set import EngineSet
from cenote.api.supervisor.model_manager import ModelManager, list_handed_over
from cenote.api.wire.control_messages import ChangeAdapter
from cenote.api.wire.messages import Done
from cenote.errors import BadRequest, EngineStopped, PoolingError, UnknownModel, make_exited_error

Change = tuple[str, str | None, bool]


class Replica:
    """An engine process and its channel."""

    is_open = True

    def __init__(
        self, *, is_loaded: bool = True, has_been_ready: bool = False, error: PoolingError | None = None
    ) -> None:
        self.channel = self
        self.has_been_ready = is_loaded or has_been_ready
        self.is_ready = is_loaded
        self.status = "ready" if is_loaded else "restarting"
        self.tokens_per_s = 0.0
        self.error = error
        self.adapters = {"first": "/first"}
        self.changed_adapters: set[str] = set()
        self.changes: list[Change] = []
        self.on_change: Callable[[], Awaitable[None]] | None = None

    async def call(self, change: ChangeAdapter) -> Done:
        on_change = self.on_change
        self.changes.append((change.name, change.path, change.in_place))
        if on_change is not None:
            await on_change()
        if self.error is not None:
            raise self.error
        return Done()


def run_change(replicas: list[Replica], *change: Any) -> None:
    async def run() -> None:
        await EngineSet(None, replicas, 0).change_adapter(*change)  # type: ignore[arg-type]

    asyncio.run(run())


def test_all_replicas_change_and_one_that_is_being_started_gets_the_adapters_later() -> None:
    replicas = [Replica(), Replica(), Replica(is_loaded=False)]
    run_change(replicas, "late", "/late", False)

    assert [replica.changes for replica in replicas] == [[("late", "/late", False)]] * 2 + [[]]
    assert all(replica.adapters == {"first": "/first", "late": "/late"} for replica in replicas)
    assert replicas[2].changed_adapters == {"late"}
    run_change(replicas, "first", None, False)
    assert all(replica.adapters == {"late": "/late"} for replica in replicas)


def test_a_replica_that_becomes_ready_during_a_change_makes_it_as_well() -> None:
    replicas = [Replica(), Replica(is_loaded=False)]

    async def load_other() -> None:
        replicas[1].is_ready = True

    replicas[0].on_change = load_other
    run_change(replicas, "first", None, False)

    assert [replica.changes for replica in replicas] == [[("first", None, False)]] * 2


def test_an_adapter_that_one_replica_cannot_load_is_unloaded_at_the_others() -> None:
    replicas = [Replica(), Replica(error=BadRequest("no memory"))]
    with pytest.raises(BadRequest, match="no memory"):
        run_change(replicas, "late", "/late", False)

    assert replicas[0].changes == [("late", "/late", False), ("late", None, False)]
    assert all(replica.adapters == {"first": "/first"} for replica in replicas)


def test_an_adapter_that_one_replica_does_not_have_can_be_unloaded() -> None:
    replicas = [Replica(), Replica(error=UnknownModel("cannot be found"))]
    run_change(replicas, "first", None, False)
    assert all(replica.adapters == {} for replica in replicas)

    with pytest.raises(UnknownModel, match="cannot be found"):
        run_change([Replica(error=UnknownModel("cannot be found"))], "first", None, False)
    with pytest.raises(PoolingError, match="a defect"):
        run_change([Replica(), Replica(error=PoolingError("a defect"))], "first", None, False)


def test_a_replica_that_exits_does_not_stop_a_change_of_the_others() -> None:
    replicas = [Replica(error=make_exited_error()), Replica()]
    run_change(replicas, "late", "/late", False)
    assert all("late" in replica.adapters for replica in replicas)

    with pytest.raises(EngineStopped, match="exited before it responded"):
        run_change([Replica(error=make_exited_error())], "late", "/late", False)
    with pytest.raises(EngineStopped, match="exited before it responded"):
        run_change([Replica(is_loaded=False)], "late", "/late", False)


async def test_changes_of_one_adapter_follow_each_other_and_do_not_wait_for_those_of_others() -> None:
    replica, is_released = Replica(), asyncio.Event()
    order: list[str] = []

    engines = EngineSet(None, [replica], 0)  # type: ignore[arg-type,list-item]

    async def change(label: str, name: str, path: str | None) -> None:
        await engines.change_adapter(name, path, False)
        order.append(label)

    replica.on_change = is_released.wait  # type: ignore[assignment]
    slow = asyncio.create_task(change("slow", "late", "/late"))
    while not replica.changes:
        await asyncio.sleep(0)
    replica.on_change = None
    next_one = asyncio.create_task(change("next", "late", None))
    await change("other", "other", "/other")
    is_released.set()
    await asyncio.gather(slow, next_one)
    assert order == ["other", "slow", "next"]
    assert replica.adapters == {"first": "/first", "other": "/other"}


async def test_engines_that_replace_others_get_what_requests_have_loaded_and_not_what_the_old_options_name() -> None:
    source = SimpleNamespace(source="model")

    old = EngineSet(source, [Replica()], 0)  # type: ignore[arg-type,list-item]
    await old.change_adapter("late", "/late", False)
    handed_over = list_handed_over(old, source)  # type: ignore[arg-type]
    assert list_handed_over(old, SimpleNamespace(source="other")) == {}  # type: ignore[arg-type]
    new_replica = Replica()
    new = EngineSet(source, [new_replica], 1, handed_over)  # type: ignore[arg-type,list-item]
    # changed while the new engines were being started
    await old.change_adapter("late", None, False)
    await old.change_adapter("later", "/later", False)
    await old.change_adapter("first", None, False)
    await new.follow(old.requested_adapters)
    assert handed_over == {"late": "/late"}
    assert new_replica.changes == [("late", None, True), ("later", "/later", True)]


async def test_a_client_that_disconnects_does_not_stop_a_change() -> None:
    replicas, is_released = [Replica(), Replica()], asyncio.Event()
    for replica in replicas:
        replica.engine_id = 1  # type: ignore[attr-defined]
        replica.on_change = is_released.wait  # type: ignore[assignment]
    engines = EngineSet(None, replicas, 0)  # type: ignore[arg-type]
    models: Any = SimpleNamespace(sets=[engines], tasks=set())
    call = asyncio.create_task(ModelManager.change_adapter(models, 1, "late", "/late", False))
    while not replicas[1].changes:
        await asyncio.sleep(0)
    call.cancel()
    is_released.set()
    await asyncio.gather(*models.tasks)
    result = [name for replica in replicas for name in replica.adapters]

    assert result == ["first", "late"] * 2


# speed


def report_speed(replicas: list[Replica], late_s: float = 0.0) -> EngineSpeed:
    """Return what admission gets to know."""
    counters = Counters()

    async def report() -> None:
        EngineSet(None, replicas, 3).report_speed(counters, late_s)  # type: ignore[arg-type]

    asyncio.run(report())
    return EngineSpeed.read(counters, 3)


def test_admission_knows_the_rate_of_the_replicas_that_compute() -> None:
    replicas = [Replica(), Replica(), Replica(is_loaded=False)]
    assert report_speed(replicas) == (0.0, -math.inf, -math.inf)

    replicas[0].tokens_per_s, replicas[2].tokens_per_s = 1000.0, 5000.0

    assert report_speed(replicas) == (2000.0, -math.inf, -math.inf)  # the second one is as fast as the first


def test_the_rate_of_a_model_whose_only_replica_is_lost_stays_known() -> None:
    replica = Replica(is_loaded=False, has_been_ready=True)
    replica.tokens_per_s = 1000.0
    before = time.monotonic()

    speed = report_speed([replica])

    assert before <= speed.stopped_since <= time.monotonic()
    assert (speed.tokens_per_s, speed.stopped_until) == (1000.0, math.inf)


def test_as_much_may_wait_as_a_replica_that_hangs_leaves_undone() -> None:
    before = time.monotonic()

    speed = report_speed([Replica(), Replica()], late_s=2.5)

    assert before <= speed.stopped_until <= time.monotonic()
    assert speed.compute_stopped_s(time.monotonic()) == 2.5


def test_a_short_stop_after_a_long_one_does_not_shorten_what_may_wait() -> None:
    counters, report = Counters(), SpeedReport(0)
    report.write(counters, 1000.0, 500.0, late_s=20.0)

    report.write(counters, 1030.0, 500.0, late_s=1.0)
    assert EngineSpeed.read(counters, 0) == (500.0, 1010.0, 1030.0)
    report.write(counters, 1030.0 + RECOVERY_S, 500.0, late_s=1.0)
    assert EngineSpeed.read(counters, 0).compute_stopped_s(1031.0 + RECOVERY_S) == 1.0


def test_as_much_may_wait_as_a_process_has_been_lost_for_up_to_a_minute() -> None:
    counters, report = Counters(), SpeedReport(0)

    def stopped_s(now: float) -> float:
        return EngineSpeed.read(counters, 0).compute_stopped_s(now)

    report.write(counters, 1000.0, 500.0, is_stopped=True)
    assert [stopped_s(now) for now in (1000.0, 1003.0, 2000.0)] == [0.0, 3.0, 0.0]
    report.write(counters, 1004.0, 500.0)

    assert [stopped_s(now) for now in (1005.0, 1003.0 + RECOVERY_S, 1005.0 + RECOVERY_S)] == [4.0, 4.0, 0.0]
