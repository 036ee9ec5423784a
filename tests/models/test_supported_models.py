"""docs/models.md lists exactly the registered architectures, with heads that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from cenote.cli.main import main
from cenote.models import registry, supported_families, supported_models
from cenote.models.architecture import HFConfig
from tests.tiny import SIZES

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROWS = {row.name: row for row in supported_models.iter_supported_models()}
# by stem, if Transformers has a config class to build the family with
CONFIGS = {
    stem: config
    for stem in supported_families.SUPPORTED_FAMILIES
    if (config := getattr(transformers, f"{stem}Config", None)) is not None and config.model_type in SIZES
}


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
    missing = [
        *(registry.FAMILIES.keys() - supported_families.SUPPORTED_FAMILIES),
        *(registry.EXACT_NAMES.keys() - supported_models.SUPPORTED_NAMES),
    ]
    unknown = [
        *(supported_families.SUPPORTED_FAMILIES.keys() - registry.FAMILIES),
        *(supported_models.SUPPORTED_NAMES.keys() - registry.EXACT_NAMES),
    ]

    assert not missing, f"cenote/models/supported_models.py lacks {sorted(missing)}"
    assert not unknown, f"cenote/models/registry.py has no {sorted(unknown)}"
    assert len(ROWS) == len(list(supported_models.iter_supported_models()))
    assert not {*supported_models.ALSO_VERIFIED_WITH, *supported_models.VLLM_DIFFERENCES} - ROWS.keys()
    for name, row in ROWS.items():
        kind = registry.find_architecture([name]).kind
        assert row.kind == kind or row.kind == "embed", f"{name} is {kind} in the registry, {row.kind} in the catalog"


def test_models_are_listed_under_suffixes_that_the_family_has() -> None:
    for stem, family in supported_families.SUPPORTED_FAMILIES.items():
        assert not {*family.models, *family.kinds} - {*family.suffixes}, stem


@pytest.mark.parametrize("stem", CONFIGS)
def test_a_listed_suffix_has_its_head_in_the_family(stem: str) -> None:
    names = [f"{stem}{suffix}" for suffix in supported_families.SUPPORTED_FAMILIES[stem].suffixes]
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
    assert not headless, f"cenote/models/supported_models.py promises {headless}"
