"""Qwen3.5 as a CrossEncoder with LogitScore (LightOn-rerank PW): texts and images against Transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cenote import LLM
from cenote.errors import LoadError
from tests.api.image_helpers import image_part
from tests.layouts.builders import models_2026
from tests.models import qwen3_5
from tests.models.tiny_qwen3_vl import IMAGE, make_image, states_of

YES, NO = 20, 21
PAIRS = [("how big is berlin?", "the city of berlin is big"), ("a cat", "a red fish"), ("a cat", "the dog " * 9)]


def expected_score(model: Any, folder: Path, query: str, document: str, images: list[Image.Image]) -> float:
    """Return what LogitScore computes: the logit of one token less that of another."""
    text = f"<|im_start|>query {query}<|im_end|> <|im_start|>document {document}<|im_end|> <|im_start|>assistant"
    last = states_of(model, folder, text, images)[-1]
    return float(last @ model.lm_head.weight[YES] - last @ model.lm_head.weight[NO])


def test_a_pair_is_scored_by_the_difference_of_two_logits(tmp_path: Path) -> None:
    model = models_2026.save_logit_score(tmp_path, YES, NO)
    image = make_image(40, 40)

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        queries, documents = zip(*PAIRS, strict=True)
        scores = [*llm.score(list(queries), list(documents), use_tqdm=False)]
        scores += llm.score("a cat", {"content": [image_part(image)]}, use_tqdm=False)

    expected = [expected_score(model, tmp_path, query, document, []) for query, document in PAIRS]
    expected.append(expected_score(model, tmp_path, "a cat", IMAGE, [image]))
    assert [output.outputs.score for output in scores] == pytest.approx(expected, abs=1e-4)
    assert min(expected) < 0 < max(expected)


def test_a_pointwise_model_without_its_files_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "LightOn-rerank-PW-2B"
    folder.mkdir()
    qwen3_5.save(folder)

    with pytest.raises(LoadError, match="LightOn-rerank-PW is not supported: without 1_LogitScore .*use a revision"):
        LLM(str(folder), device="cpu")
