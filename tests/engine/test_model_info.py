"""What ModelInfo says about a loaded model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cenote.config.engine import EngineConfig
from cenote.config.pooler import PoolerConfig
from cenote.engine.model_info import get_pooling_name
from cenote.loading.describe import describe_model
from tests.tiny import tiny_bert, tiny_bert_token_classifier, tiny_splade


@pytest.mark.parametrize(
    ("build", "pooler_config", "pooling"),
    [
        (tiny_bert, {}, "CLS"),
        (tiny_bert, {"pooling_type": "MEAN"}, "MEAN"),
        (tiny_bert_token_classifier, {}, "ALL"),
        (tiny_splade, {}, "SPLADE"),
    ],
)
def test_the_pooling_is_that_of_the_default_task(
    build: Callable[[Path], Any], pooler_config: dict[str, str], pooling: str, tmp_path: Path
) -> None:
    build(tmp_path)
    config = EngineConfig(model=str(tmp_path), device="cpu", pooler_config=PoolerConfig(**pooler_config))

    assert get_pooling_name(describe_model(config)) == pooling
