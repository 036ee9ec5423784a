"""docs/models.md lists exactly the registered architectures, with heads that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from cenote.cli.main import main
from cenote.models import registry
from cenote.models.architecture import HFConfig
from cenote.models.catalog import read_supported_models
from tests.tiny import SIZES

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROWS = {row.name: row for row in read_supported_models()}
# by stem, if Transformers has a config class to build the family with
CONFIGS = {
    stem: config
    for stem in registry.FAMILIES
    if (config := getattr(transformers, f"{stem}Config", None)) is not None and config.model_type in SIZES
}


def split_name(name: str) -> str | None:
    """Return the stem of a name that is a family's stem and a suffix."""
    stems = (name.removesuffix(suffix) for suffix, _ in registry.KIND_SUFFIXES if name.endswith(suffix))
    return next((stem for stem in stems if stem in registry.FAMILIES), None)


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--markdown"]) == 0

    assert capsys.readouterr().out == PAGE.read_text(), "write it again: cenote models --markdown > docs/models.md"


def test_a_filter_matches_names_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "qwen3-RERANKER"]) == 0
    found = capsys.readouterr().out
    assert main(["models", "no such model"]) == 1

    assert [line.split()[0] for line in found.splitlines()] == ["Qwen3ForCausalLM", "Qwen3ForSequenceClassification"]
    assert capsys.readouterr().out == ""


def test_every_registered_name_is_listed_and_every_listed_name_is_registered() -> None:
    exact = registry.EXACT_NAMES.keys()
    stems = {split_name(name) for name in ROWS.keys() - exact}

    assert not exact - ROWS.keys(), "cenote/models/supported_models.json lacks them"
    assert stems == registry.FAMILIES.keys()
    assert len(ROWS) == len(read_supported_models())
    for name, row in ROWS.items():
        kind = registry.find_architecture([name]).kind
        assert row.kind in (kind, "embed"), f"{name} is {kind} in the registry, {row.kind} in the catalog"


@pytest.mark.parametrize("stem", CONFIGS)
def test_a_listed_suffix_has_its_head_in_the_family(stem: str) -> None:
    names = [name for name in ROWS if name not in registry.EXACT_NAMES and split_name(name) == stem]
    config = CONFIGS[stem](**SIZES[CONFIGS[stem].model_type])

    family = registry.find_architecture(names).family(HFConfig(config.to_dict()))

    heads = {
        "sequence": family.sequence_head,
        "token": family.token_head,
        "reward": family.reward_head,
        "masked": family.masked_head,
        "sparse": family.masked_head,
    }
    headless = [name for name in names if heads.get(ROWS[name].kind, family) is None]
    assert not headless, f"cenote/models/supported_models.json promises {headless}"
