"""Changes of the table of a running server: a load that fails leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cenote.config.engine import EngineConfig
from cenote.config.model_table import ModelTable
from cenote.errors import BadRequest

from .stub_engine import RecordingFrontEnds, StubEngines, make_models

TABLE = ModelTable.of(EngineConfig(model="tiny"), ["tiny"])


@pytest.mark.parametrize("source", ["~nosuchuser/x", "/" + "x" * 300, "a/" * 3000], ids=["user", "name", "path"])
async def test_a_source_that_cannot_be_resolved_is_refused_before_it_is_in_the_table(
    tmp_path: Path, source: str
) -> None:
    models = make_models(TABLE, StubEngines(tmp_path, "load"))
    with pytest.raises(BadRequest, match="cannot be resolved: .*expected a hub name, a folder"):
        await models.load("bad", {"source": source})
    assert list(models.rows) == ["tiny"]
    assert isinstance(models.front_ends, RecordingFrontEnds) and models.front_ends.states is None
    with pytest.raises(BadRequest, match="cannot be resolved"):
        await models.reload("tiny", {"source": source})
    await models.stop()


async def test_a_row_that_the_front_ends_cannot_take_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = make_models(TABLE, StubEngines(tmp_path, "load"))
    sent: list[int] = []

    def refuse_two(states: object) -> None:
        sent.append(len(models.rows))
        if len(models.rows) == 2:
            raise RuntimeError("a defect")

    monkeypatch.setattr(models.front_ends, "set_models", refuse_two)
    with pytest.raises(RuntimeError, match="a defect"):
        await models.load("bad", {"source": "other"})
    assert list(models.rows) == ["tiny"]
    assert sent == [2, 1]
    await models.stop()


async def test_of_two_loads_of_a_new_name_the_second_is_in_the_table_although_the_first_has_failed(
    tmp_path: Path,
) -> None:
    models = make_models(TABLE, engines := StubEngines(tmp_path, "fail to load"))
    first = asyncio.create_task(models.load("new", {"source": "other"}))
    second = asyncio.create_task(models.load("new", {"source": "other"}))
    first.add_done_callback(lambda _: engines.do("load"))
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert str(results[0]) == "the bucket is away"
    assert list(models.rows) == ["tiny", "new"]
    assert [engines.entry.name for engines in models.sets] == ["new"]
    await models.unload("new")
    assert not models.sets
    await models.stop()
