"""`cenote inspect` resolves the published settings of every model in the table, from its configuration files alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cenote.cli.model_settings import resolve_settings, settings_to_json
from cenote.config.engine import EngineConfig
from cenote.models.catalog import CheckedModel, read_checked_models
from tests.layouts.builders import load_builders
from tests.layouts.checkpoint_files import write_checkpoint
from tests.layouts.registry import BUILDERS
from tests.layouts.table import PublishedModel, read_table

TABLE = read_table()
RECALLED = re.compile("memory|assumed|not seen")  # in the sources of the table
CHECKS = {
    "sentence-transformers": ("true layout", "Sentence Transformers"),
    "transformers": ("true layout", "Transformers"),
    "plain": ("architecture only", "an independent implementation"),
    "refused": ("refused", ""),
}


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


def test_the_table_of_the_package_says_how_each_model_is_checked() -> None:
    rows = read_checked_models()

    assert list(rows) == sorted(map(describe, TABLE), key=lambda row: row.name.lower())


def describe(model: PublishedModel) -> CheckedModel:
    """Return the row that tells users how this model is checked."""
    check, compared = CHECKS[model.truth]
    if model.truth == "plain" and model.builder is not None:
        check = "true layout"  # the named test compares the folder that the builder writes
    names = model.layout.get("config", {}).get("architectures", [""])
    return CheckedModel(
        name=model.name,
        architecture=model.expect.get("architecture", names[0]),
        check="real weights" if model.real else model.checked or check,  # type: ignore[arg-type]
        compared_with=compared,
        files="memory" if RECALLED.search(model.source) else "a similar model" if model.like else "public sources",
        settings=model.expect,
    )
