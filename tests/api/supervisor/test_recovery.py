"""What was ready once comes back by itself when its surroundings do; what has failed says why and since when."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cenote.api.supervisor import restart_policy
from cenote.api.supervisor.model_manager import ModelManager
from cenote.api.supervisor.restart_policy import MAX_FAILURES
from cenote.config.engine import EngineConfig
from cenote.config.model_table import ModelTable

from .stub_engine import RecordingFrontEnds, StubEngines, make_models

TABLE = ModelTable.of(EngineConfig(model="tiny"), ["tiny"])


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart_policy, "MIN_RESTART_DELAY_S", 0.01)
    monkeypatch.setattr(restart_policy, "MAX_RESTART_DELAY_S", 0.02)


async def wait_until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_at, "the condition did not become true"
        await asyncio.sleep(0.005)


def get_status(models: ModelManager) -> str:
    return models.rows["tiny"].status


def count_starts(models: ModelManager) -> int:
    (engines,) = models.sets
    return engines.children[0].init.engine_number


async def test_a_model_whose_source_is_away_for_long_is_loaded_again_when_it_is_back(tmp_path: Path) -> None:
    engines = StubEngines(tmp_path, "load")

    models = make_models(TABLE, engines)
    models.start()
    await wait_until(lambda: get_status(models) == "ready")
    engines.do("fail to load")
    await wait_until(lambda: count_starts(models) > MAX_FAILURES + 1)
    (row,) = await models.list_models()
    assert (row.state, row.error) == ("restarting", "the model cannot be loaded: the bucket is away")
    assert row.since is not None and 0 <= time.time() - row.since < 30
    engines.do("load")
    await wait_until(lambda: get_status(models) == "ready")
    (row,) = await models.list_models()
    assert (row.error, row.since) == (None, None)
    await models.stop()


async def test_a_model_that_is_unloaded_during_its_first_load_has_not_failed_and_the_server_lives(
    tmp_path: Path,
) -> None:
    failures: list[Any] = []

    models = make_models(TABLE, StubEngines(tmp_path, "load"), failures)
    models.start()
    await models.unload("tiny")
    (row,) = await models.list_models()
    assert (row.state, row.error, failures) == ("unloaded", None, [])
    assert (await models.load("tiny")).state == "ready"
    await models.stop()


async def test_a_model_whose_engine_crashes_again_and_again_has_failed_until_one_serves(tmp_path: Path) -> None:
    engines = StubEngines(tmp_path, "load")

    models = make_models(TABLE, engines)
    models.start()
    await wait_until(lambda: get_status(models) == "ready")
    engines.do("crash")
    await wait_until(lambda: get_status(models) == "failed")
    assert isinstance(models.front_ends, RecordingFrontEnds) and models.front_ends.states is not None
    (state,) = models.front_ends.states.models
    assert state.reason == "5 engine processes failed within 60 s, the last one: exited with SIGABRT"
    assert 0 < state.since <= time.time()
    engines.do("load")
    await wait_until(lambda: get_status(models) == "ready")
    await models.stop()


async def test_a_model_that_never_became_ready_fails_with_its_first_error(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    models = make_models(TABLE, StubEngines(tmp_path, "fail to load"), failures)
    models.start()
    await wait_until(lambda: bool(failures))
    assert count_starts(models) == 0
    await models.stop()
    assert [str(failure) for failure in failures] == ["the bucket is away"]


async def test_a_model_that_always_crashes_before_it_is_ready_is_given_up_however_long_a_start_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_policy, "FAILURE_WINDOW_S", 0.0)  # shorter than a start
    failures: list[BaseException] = []

    models = make_models(TABLE, StubEngines(tmp_path, "crash"), failures)
    models.start()
    await wait_until(lambda: bool(failures))
    assert (get_status(models), count_starts(models)) == ("failed", MAX_FAILURES - 1)
    assert models.rows["tiny"].outage[0] == str(failures[0])
    await models.stop()
    reason = "5 engine processes failed and none was ever ready, the last one: exited with SIGABRT"
    assert [str(failure) for failure in failures] == [reason]


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("a defect")])
async def test_an_engine_that_cannot_be_connected_is_started_again_until_it_can(
    tmp_path: Path, error: Exception
) -> None:
    models = make_models(TABLE, engines := StubEngines(tmp_path, "load"))
    front_ends = models.front_ends
    assert isinstance(front_ends, RecordingFrontEnds)
    models.start()
    await wait_until(lambda: get_status(models) == "ready")
    front_ends.error = error
    engines.do("load again")
    await wait_until(lambda: count_starts(models) > MAX_FAILURES + 1)
    assert str(error) in models.rows["tiny"].outage[0]
    front_ends.error = None
    await wait_until(lambda: get_status(models) == "ready")
    await models.stop()


async def test_a_model_that_was_unloaded_may_be_loaded_by_a_request_some_time_after_a_load_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cenote.api.supervisor.model_manager.MAX_RESTART_DELAY_S", 0.05)
    engines = StubEngines(tmp_path, "load")

    models = make_models(TABLE, engines)
    models.start()
    await wait_until(lambda: get_status(models) == "ready")
    await models.unload("tiny")
    engines.do("fail to load")
    with pytest.raises(ValueError, match="the bucket is away"):
        await models.load("tiny")
    assert get_status(models) == "failed"
    await wait_until(lambda: get_status(models) == "unloaded")
    assert models.rows["tiny"].outage[0] == "the bucket is away"
    engines.do("load")
    assert (await models.load("tiny")).state == "ready"
    await models.stop()


async def test_starts_that_the_system_refuses_never_count_and_leave_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_open: list[int] = []

    async def refuse(*_: object, **options: object) -> Any:
        num_open.append(len(os.listdir("/proc/self/fd")))
        raise OSError(24, "Too many open files")

    models = make_models(TABLE, StubEngines(tmp_path, "load"))
    with monkeypatch.context() as refusing:
        refusing.setattr(models.launcher, "start_engine", refuse)
        models.start()
        await wait_until(lambda: len(num_open) > 2 * MAX_FAILURES)
        assert models.rows["tiny"].outage[0] == "could not be started (Too many open files)"
    await wait_until(lambda: get_status(models) == "ready")
    await models.stop()
    assert max(num_open) == num_open[0]
