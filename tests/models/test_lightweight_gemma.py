"""bge-reranker-v2.5-gemma2-lightweight scores as Transformers' Gemma 2 of as many layers below the published head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, LoadError
from tests.layouts.builders import text_families
from tests.models.published_reference import reference
from tests.tiny import SEQUENCES, change_config, compute_hidden_states


@pytest.mark.parametrize("cutoff", [None, 4, 3, [2]])
def test_a_pair_is_scored_after_the_layer_of_the_cutoff(cutoff: Any, tmp_path: Path) -> None:
    text_families.bge_reranker_v2_5_gemma2_lightweight(tmp_path)
    layers = cutoff[0] if isinstance(cutoff, list) else cutoff or 4
    model = reference(tmp_path, "Gemma2Model", num_hidden_layers=layers)
    # the published code takes the first head, whichever single layer is asked for
    head = load_file(tmp_path / "model.safetensors")["lm_head.0.linear_head.weight"]
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "A: the cat\nB: a dog\nPredict whether passage B contains an answer to query A."
    sequences = [*SEQUENCES, tokenizer.encode(text).ids]

    options = {} if cutoff is None else {"hf_overrides": {"cutoff_layers": cutoff}}
    with LLM(str(tmp_path), dtype="float32", device="cpu", **options) as llm:
        outputs = llm.classify(SEQUENCES, use_tqdm=False)
        (pair,) = llm.score("the cat", "a dog", use_tqdm=False)

    found = torch.tensor([*(output.outputs.probs[0] for output in outputs), pair.outputs.score])
    logits = torch.stack([F.linear(rows[-1], head)[0] for rows in compute_hidden_states(model, sequences)])
    assert_close(found, (2.0 * (logits / 2.0).tanh()).sigmoid(), atol=1e-4, rtol=0)
    assert pair.prompt_token_ids == sequences[-1]


@pytest.mark.parametrize("cutoff", [1, 5, [2, 3], "all"])
def test_an_impossible_cutoff_is_refused(cutoff: Any, tmp_path: Path) -> None:
    text_families.bge_reranker_v2_5_gemma2_lightweight(tmp_path)

    with pytest.raises(LoadError, match="cutoff_layers is .*; expected one of: 2, 3, 4"):
        LLM(str(tmp_path), hf_overrides={"cutoff_layers": cutoff})


@pytest.mark.parametrize("option", [{"compress_ratio": 2}, {"compress_layers": [24, 40]}, {"compress_layer": [8]}])
def test_compression_of_tokens_is_refused(option: dict[str, Any], tmp_path: Path) -> None:
    text_families.bge_reranker_v2_5_gemma2_lightweight(tmp_path)

    with pytest.raises(LoadError, match="tokens are not compressed between layers; remove compress_ratio"):
        LLM(str(tmp_path), hf_overrides=option)


def test_a_model_with_one_head_for_the_vocabulary_is_refused(tmp_path: Path) -> None:
    text_families.bge_reranker_v2_5_gemma2_lightweight(tmp_path)
    change_config(tmp_path, layer_wise=False)

    with pytest.raises(LoadError, match=r"config\.json: layer_wise is false"):
        LLM(str(tmp_path))
