"""zembed-1 and zerank-1 equal Transformers' Qwen3 with the texts that their published code writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import normalize

from cenote import LLM, PoolingParams
from cenote.errors import LoadError
from tests.layouts.builders import models_2026
from tests.layouts.tokenizers import PAIRS, TEXTS
from tests.models.published_reference import reference
from tests.tiny import change_config

SUFFIX = "<|im_end|>\n"


def load_tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


def start(role: str) -> str:
    return f"<|im_start|>system\n{role}<|im_end|>\n<|im_start|>user\n"


@torch.inference_mode()
def embed(folder: Path, text: str) -> Tensor:
    ids = load_tokenizer(folder)(text, return_tensors="pt")["input_ids"]
    states = reference(folder, "Qwen3ForCausalLM").base_model(input_ids=ids).last_hidden_state
    return normalize(states[0, -1], dim=-1)


def test_zembed_pools_the_suffix_after_the_text(tmp_path: Path) -> None:
    models_2026.zembed_1(tmp_path)
    texts = [*TEXTS, "a line\n", "a space "]

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        choices: list[tuple[str, dict[str, Any]]] = [("document", {}), ("query", {"prompt_name": "query"})]
        for role, options in choices:
            outputs = llm.embed(texts, use_tqdm=False, **options)
            for text, output in zip(texts, outputs, strict=True):
                expected = embed(tmp_path, start(role) + text + SUFFIX)
                torch.testing.assert_close(output.outputs.data, expected, atol=1e-4, rtol=0)

        (one,) = llm.embed("a line\n", use_tqdm=False)
        (short,) = llm.embed("the old river " * 50, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 20})

    tokenizer = load_tokenizer(tmp_path)
    assert one.prompt_token_ids == tokenizer(start("document") + "a line\n" + SUFFIX)["input_ids"]
    # the token that is pooled is kept
    assert len(short.prompt_token_ids) == 20
    assert short.prompt_token_ids[-2:] == tokenizer(SUFFIX)["input_ids"]


def test_zembed_without_its_suffix_is_refused(tmp_path: Path) -> None:
    models_2026.zembed_1(tmp_path)
    path = tmp_path / "config_sentence_transformers.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "suffix"}))

    with pytest.raises(LoadError, match="config_sentence_transformers.json: modeling_zembed.* no suffix here"):
        LLM(str(tmp_path), device="cpu")


@torch.inference_mode()
def yes_logit(folder: Path, query: str, document: str) -> float:
    """Return what the published code passes to the sigmoid."""
    system, user = query[:2000].strip(), document[:10000].strip()
    text = f"{start(system)}{user}<|im_end|>\n<|im_start|>assistant\n"
    tokenizer = load_tokenizer(folder)
    logits = reference(folder, "Qwen3ForCausalLM")(**tokenizer(text, return_tensors="pt")).logits
    return float(logits[0, -1, tokenizer.convert_tokens_to_ids("Yes")]) / 5


@pytest.mark.parametrize("folder_name", ["zerank-1-small", "a copy"])
def test_zerank_scores_by_its_yes(folder_name: str, tmp_path: Path) -> None:
    folder = tmp_path / folder_name
    folder.mkdir()
    models_2026.zerank_1_small(folder)
    pairs = [*PAIRS, (" a question\n", "a longer text\n\n"), ("q" * 2100, "one two " * 1300)]
    expected = [yes_logit(folder, query, document) for query, document in pairs]

    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        queries, documents = zip(*pairs, strict=True)
        scores = llm.score(list(queries), list(documents), use_tqdm=False)
        raw = llm.score(
            list(queries), list(documents), use_tqdm=False, pooling_params=PoolingParams(use_activation=False)
        )

    found = [item.outputs.score for item in scores]
    assert found == pytest.approx(torch.tensor(expected).sigmoid().tolist(), abs=1e-4)
    assert [item.outputs.score for item in raw] == pytest.approx(expected, abs=1e-4)
    assert max(found) - min(found) > 1e-3


def test_zerank_is_known_by_its_name_too(tmp_path: Path) -> None:
    folder = tmp_path / "zerank-1"
    folder.mkdir()
    models_2026.zerank_1_small(folder)
    change_config(folder, drop=("auto_map",))

    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        (output,) = llm.score("a question", "a text", use_tqdm=False)

    assert output.outputs.score == pytest.approx(
        torch.tensor(yes_logit(folder, "a question", "a text")).sigmoid().item(), abs=1e-4
    )
