"""docs/models.md names every architecture that loads, with what its family has, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from cenote.cli.main import main
from cenote.models import registry, supported_models
from cenote.models.architecture import HFConfig
from tests.tiny import SIZES

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROWS = {row.name: row for row in supported_models.rows()}
# by stem, where Transformers has a config to ask the family with
CONFIGS = {
    stem: config
    for stem in supported_models.FAMILIES
    if (config := getattr(transformers, f"{stem}Config", None)) is not None and config.model_type in SIZES
}


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--markdown"]) == 0

    assert capsys.readouterr().out == PAGE.read_text(), "write it again: cenote models --markdown > docs/models.md"


def test_a_word_finds_names_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "qwen3-RERANKER"]) == 0
    found = capsys.readouterr().out
    assert main(["models", "no such model"]) == 1

    assert [line.split()[0] for line in found.splitlines()] == ["Qwen3ForCausalLM", "Qwen3ForSequenceClassification"]
    assert capsys.readouterr().out == ""


def test_every_name_of_the_catalog_has_a_row_and_every_row_a_name() -> None:
    missing = [
        *(registry.FAMILIES.keys() - supported_models.FAMILIES),
        *(registry.NAMES.keys() - supported_models.NAMED),
    ]
    unknown = [
        *(supported_models.FAMILIES.keys() - registry.FAMILIES),
        *(supported_models.NAMED.keys() - registry.NAMES),
    ]

    assert not missing, f"cenote/models/supported_models.py lacks {sorted(missing)}"
    assert not unknown, f"cenote/models/registry.py has no {sorted(unknown)}"
    assert len(ROWS) == len(list(supported_models.rows()))
    assert not {*supported_models.ALSO, *supported_models.VLLM} - ROWS.keys()
    for name, row in ROWS.items():
        form = registry.find([name]).form
        assert row.form == form or row.form == "embed", f"{name} is {form} by the catalog, {row.form} in the guide"


def test_models_are_listed_under_suffixes_that_the_family_has() -> None:
    for stem, family in supported_models.FAMILIES.items():
        assert not {*family.models, *family.forms} - {*family.suffixes}, stem


@pytest.mark.parametrize("stem", CONFIGS)
def test_a_name_promises_only_what_its_family_has(stem: str) -> None:
    names = [f"{stem}{suffix}" for suffix in supported_models.FAMILIES[stem].suffixes]
    config = CONFIGS[stem](**SIZES[CONFIGS[stem].model_type])

    family = registry.find(names).family(HFConfig(config.to_dict()))

    heads = {
        "sequence": family.sequence_head,
        "token": family.token_head,
        "reward": family.reward_head,
        "masked": family.masked_head,
        "sparse": family.masked_head,
    }
    headless = [name for name in names if heads.get(ROWS[name].form, family) is None]
    assert not headless, f"cenote/models/supported_models.py promises {headless}"
