"""Invalid values in the files of vision models raise a one-line LoadError that names the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cenote import LLM
from cenote.errors import LoadError
from tests.models.tiny_qwen3_vl import save_tiny_qwen3_vl


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eyes")
    save_tiny_qwen3_vl(folder)
    return folder


def refused(saved: Path, folder: Path, file: str, changes: dict[str, Any], **options: Any) -> str:
    shutil.copytree(saved, folder, dirs_exist_ok=True)
    values = json.loads((folder / file).read_text())
    inside = changes.get("vision_config")
    if isinstance(inside, dict):
        changes = {"vision_config": values["vision_config"] | inside}
    (folder / file).write_text(json.dumps(values | changes))
    with pytest.raises(LoadError) as caught:
        LLM(str(folder), dtype="float32", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vision_config": None}, "has no 'vision_config'"),
        ({"vision_config": "tower"}, "has no 'vision_config'"),
        ({"vision_config": {"hidden_size": None}}, "vision_config: invalid value in the config"),
        ({"vision_config": {"hidden_size": -1}}, "vision_config: invalid value in the config"),
        ({"vision_config": {"depth": "three"}}, "num_layers='three'"),
        ({"vision_config": {"num_heads": 0}}, "vision_config: invalid value in the config"),
        ({"vision_config": {"depth": 4}}, "blocks.3"),
        ({"image_token_id": "abc"}, "invalid image_token_id 'abc'; the model has"),
        ({"image_token_id": 10**6}, "invalid image_token_id 1000000; the model has"),
    ],
)
def test_an_invalid_config_json_is_refused_in_one_line(
    saved: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    assert words in refused(saved, tmp_path, "config.json", changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_mean": [1, 2]}, "invalid image_mean=[1, 2]; expected 3 numbers"),
        ({"size": {"longest_edge": "many"}}, "invalid max_pixels='many'"),
        ({"patch_size": 7}, "patch_size=7 differs from 8 in config.json"),
        ({"resample": 17}, "invalid resample=17; expected 0 to 5"),
    ],
)
def test_an_invalid_preprocessor_config_json_is_refused_in_one_line(
    saved: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    found = refused(saved, tmp_path, "preprocessor_config.json", changes)

    assert words in found and "preprocessor_config.json" in found
