"""Qwen2.5-VL equals Transformers on tiny random checkpoints: windowed and full attention in the tower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLModel

from cenote import LLM
from cenote.layers.qwen_vision import window_order
from tests.factories import LLMFactory
from tests.models.qwen_vl import (
    TOWER,
    assert_last_token_is_embedding,
    assert_token_states_match,
    opened,
    save_qwen_vl,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("qwen2_5_vl")
    return folder, save_qwen_vl(folder, Qwen2_5_VLForConditionalGeneration, TOWER)


@pytest.fixture(scope="module")
def llm(saved: tuple[Path, Any], open_llm: LLMFactory) -> LLM:
    return open_llm(saved[0])


def test_every_token_of_texts_and_images_equals_transformers(llm: LLM, saved: tuple[Path, Any]) -> None:
    assert_token_states_match(llm, saved[0], saved[1].model)


def test_the_last_token_is_the_embedding(llm: LLM, saved: tuple[Path, Any]) -> None:
    assert_last_token_is_embedding(llm, saved[0], saved[1].model)


def test_a_bare_model_of_windows_alone_embeds_as_well(tmp_path: Path) -> None:
    reference = save_qwen_vl(tmp_path, Qwen2_5_VLModel, TOWER | {"fullatt_block_indexes": []})

    with opened(tmp_path) as llm:
        assert_last_token_is_embedding(llm, tmp_path, reference)


def test_windows_lie_together_and_those_of_one_size_side_by_side() -> None:
    order, sizes = window_order([(3, 5), (1, 1)], window_size=2)

    assert sizes == [4, 4, 2, 2, 2, 1, 1]
    assert order.tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14, 15]
