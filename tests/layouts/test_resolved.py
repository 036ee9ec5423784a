"""`cenote inspect` resolves the published settings of every model in the table, from its configuration files alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cenote.cli.model_settings import resolve_settings, settings_to_json
from cenote.config.engine import EngineConfig
from tests.layouts.builders import load_builders
from tests.layouts.checkpoint_files import write_checkpoint
from tests.layouts.export import TARGET, format_table
from tests.layouts.registry import BUILDERS
from tests.layouts.table import PublishedModel, read_table

TABLE = read_table()


@pytest.mark.parametrize("model", [row for row in TABLE if row.truth != "refused"], ids=lambda model: model.name)
def test_settings_are_resolved_as_published(model: PublishedModel, tmp_path: Path) -> None:
    folder = tmp_path / model.name.partition("/")[2]
    folder.mkdir()
    if model.builder is not None:
        load_builders()
        BUILDERS[model.builder](folder)
    else:
        write_checkpoint(folder, model.layout, tiny=False)

    settings = settings_to_json(resolve_settings(EngineConfig(model=str(folder), device="cpu")))

    found = {key: settings.get(key, {}).get("value") for key in model.expect}
    assert {key: "none" if value is None else value for key, value in found.items()} == model.expect
    doubts = settings["doubts"]["value"]
    assert len(doubts) == (model.doubt is not None)
    assert all(re.search(model.doubt or "", doubt) for doubt in doubts)


def test_the_table_is_large_and_every_row_has_a_source_and_a_way_to_check_it() -> None:
    assert len(TABLE) >= 150
    for model in TABLE:
        assert model.source, model.name
        assert model.expect or model.truth == "refused", model.name
        assert (model.test is not None) == (model.truth == "plain"), model.name
        assert (model.message is not None) == (model.truth == "refused"), model.name


def test_the_copy_of_the_table_in_the_package_is_current() -> None:
    assert TARGET.read_text() == format_table(), "write it again: python -m tests.layouts.export"
