"""docs/models.md names every architecture that loads, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from cenote.models import catalog, guide
from cenote.models.architecture import HFConfig
from tests.tiny import SIZES

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROWS = list(guide.rows())


def test_the_page_is_what_the_command_prints() -> None:
    command = [sys.executable, "-m", "cenote", "models", "--markdown"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert printed == PAGE.read_text(), "write it again: cenote models --markdown > docs/models.md"


def test_every_name_of_the_catalog_is_in_the_guide() -> None:
    missing = [*(catalog.FAMILIES.keys() - guide.FAMILIES), *(catalog.NAMES.keys() - guide.NAMED)]
    unknown = [*(guide.FAMILIES.keys() - catalog.FAMILIES), *(guide.NAMED.keys() - catalog.NAMES)]

    assert not missing, f"cenote/models/guide.py lacks {sorted(missing)}"
    assert not unknown, f"cenote/models/catalog.py lacks {sorted(unknown)}"


def test_every_row_is_a_name_that_is_found() -> None:
    names = [row.name for row in ROWS]

    assert len(names) == len(set(names))
    for row in ROWS:
        form = catalog.find([row.name]).form
        assert row.form in (form, "embed"), row
    assert guide.ALSO.keys() | guide.VLLM.keys() <= set(names)


@pytest.mark.parametrize("stem", guide.FAMILIES)
def test_a_name_promises_only_what_its_family_has(stem: str) -> None:
    names = [f"{stem}{suffix}" for suffix in guide.FAMILIES[stem].suffixes]
    assert set(guide.FAMILIES[stem].models) <= set(guide.FAMILIES[stem].suffixes)
    config_class = next((getattr(transformers, name).config_class for name in names if hasattr(transformers, name)), None)
    if config_class is None or config_class.model_type not in SIZES:
        return  # Transformers has no config of it to ask the family with
    config = HFConfig(config_class(**SIZES[config_class.model_type]).to_dict())
    family = catalog.find(names).family(config)

    heads = {
        "sequence": family.sequence_head,
        "token": family.token_head,
        "reward": family.reward_head,
        "masked": family.masked_head,
        "sparse": family.masked_head,
    }
    for row in ROWS:
        if row.name in names:
            assert heads.get(row.form, family) is not None, row
