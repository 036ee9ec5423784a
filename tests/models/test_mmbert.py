"""mmBERT, a ModernBERT with the tokenizer of Gemma, equals Transformers: masked language model and encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import normalize

from cenote import LLM, PoolingParams
from tests.factories import LLMFactory
from tests.layouts.checkpoint_files import write_checkpoint
from tests.layouts.table import read_table
from tests.layouts.tokenizers import TEXTS

INPUTS = [*TEXTS, "the <mask> of berlin", "  two  spaces and\na line"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mmbert")
    (model,) = [row for row in read_table() if row.name == "jhu-clsp/mmBERT-base"]
    write_checkpoint(folder, model.layout, tiny=True)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path, open_llm: LLMFactory) -> LLM:
    return open_llm(folder)


def run(folder: Path, text: str) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.ModernBertForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        return inputs["input_ids"][0].tolist(), model(**inputs, output_hidden_states=True)


def test_the_masked_language_model_gives_the_logits_of_transformers(llm: LLM, folder: Path) -> None:
    raw = PoolingParams(use_activation=False)
    outputs = llm.encode(INPUTS, raw, pooling_task="token_classify", use_tqdm=False)

    for text, output in zip(INPUTS, outputs, strict=True):
        ids, expected = run(folder, text)
        assert output.prompt_token_ids == ids
        torch.testing.assert_close(output.outputs.data, expected.logits[0], atol=1e-4, rtol=0)


def test_its_first_token_is_the_embedding(llm: LLM, folder: Path) -> None:
    for text, output in zip(INPUTS, llm.embed(INPUTS, use_tqdm=False), strict=True):
        _, expected = run(folder, text)
        first = normalize(expected.hidden_states[-1][0, 0], dim=-1)
        torch.testing.assert_close(output.outputs.data, first, atol=1e-4, rtol=0)
