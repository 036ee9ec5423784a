"""Checkpoints without tokenizer.json give the outputs of their Transformers model for the ids of their tokenizer.

That the ids are those of the tokenizer class is tested in tests/loading/test_legacy_tokenizers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from cenote import LLM
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.tokenizer_files import load_tokenizer_files
from cenote.protocol.input_types import TextPair
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from tests.layouts.builders import old_tokenizers as builders

TEXTS = ["L'été dernier, nous avons mangé à Paris.", "the quick brown fox", "MKTAYIAKQRQISFVKSHFSRQ 東京", "a"]
PREMISE, HYPOTHESIS = "The quick brown fox jumps over the lazy dog.", "An animal jumps."


def load(folder: Path, build: Callable[[Path], None], model_class: str) -> tuple[LLM, Any, Any]:
    """Return the engine, the tokenizer, and a function that runs the Transformers model."""
    build(folder)
    model = getattr(transformers, model_class).from_pretrained(folder).eval()
    tokenizer = load_tokenizer_files(Checkpoint("test", folder)).tokenizer

    def run(*texts: str, token_types: bool = False) -> Any:
        encoding = tokenizer.encode(*texts)
        types = {"token_type_ids": torch.tensor([encoding.type_ids])} if token_types else {}
        with torch.no_grad():
            return model(input_ids=torch.tensor([encoding.ids]), **types)

    return LLM(str(folder), dtype="float32"), tokenizer, run


def assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), atol=1e-5)


def test_camembert_ner(tmp_path: Path) -> None:
    llm, _, run = load(tmp_path, builders.camembert_ner, "CamembertForTokenClassification")

    for text, output in zip(TEXTS, llm.encode(TEXTS, pooling_task="token_classify"), strict=True):
        assert output.prompt_token_ids[0] == 5 and output.prompt_token_ids[-1] == 6
        assert_close(output.outputs.data, run(text).logits[0].softmax(-1))


@pytest.mark.parametrize(
    ("build", "model_class", "token_types"),
    [
        (builders.deberta_base_mnli, "DebertaForSequenceClassification", False),
        (builders.albert_base_v2_sst2, "AlbertForSequenceClassification", True),
        (builders.distilbart_mnli, "BartForSequenceClassification", False),
        # Transformers 5 leaves out the token types of XLNet's tokenizer, which the models were trained with
        (builders.xlnet_base_cased_mnli, "XLNetForSequenceClassification", True),
    ],
)
def test_classifiers(tmp_path: Path, build: Callable[[Path], None], model_class: str, token_types: bool) -> None:
    llm, tokenizer, run = load(tmp_path, build, model_class)

    for text, output in zip(TEXTS, llm.classify(TEXTS), strict=True):
        assert output.prompt_token_ids == tokenizer.encode(text).ids
        assert_close(output.outputs.probs, run(text, token_types=token_types).logits[0].softmax(-1))
    (result,) = llm.engine.pool_sync(PoolRequest(task="classify", inputs=[TextPair(PREMISE, HYPOTHESIS)]))
    assert isinstance(result, PoolResult)
    assert_close(torch.from_numpy(result.data), run(PREMISE, HYPOTHESIS, token_types=token_types).logits[0].softmax(-1))


def test_phobert_embeddings(tmp_path: Path) -> None:
    llm, _, run = load(tmp_path, builders.phobert_base, "RobertaModel")

    for text, output in zip(TEXTS, llm.encode(TEXTS, pooling_task="token_embed"), strict=True):
        expected = torch.nn.functional.normalize(run(text).last_hidden_state[0], dim=-1)
        assert_close(output.outputs.data, expected)


@pytest.mark.parametrize(
    ("build", "model_class"),
    [(builders.albert_chinese, "AlbertModel"), (builders.roformer_chinese_char, "RoFormerModel")],
)
def test_chinese_models_with_a_vocabulary_of_bert(
    tmp_path: Path, build: Callable[[Path], None], model_class: str
) -> None:
    llm, tokenizer, run = load(tmp_path, build, model_class)

    assert tokenizer.encode("東京 the fox").ids == [2, 7, 6, 8, 11, 3]
    for text, output in zip(TEXTS, llm.encode(TEXTS, pooling_task="token_embed"), strict=True):
        expected = torch.nn.functional.normalize(run(text).last_hidden_state[0], dim=-1)
        assert_close(output.outputs.data, expected)


def test_esm2_embeddings(tmp_path: Path) -> None:
    llm, _, run = load(tmp_path, builders.esm2, "EsmModel")

    for text, output in zip(TEXTS, llm.encode(TEXTS, pooling_task="token_embed"), strict=True):
        expected = torch.nn.functional.normalize(run(text).last_hidden_state[0], dim=-1)
        assert_close(output.outputs.data, expected)
