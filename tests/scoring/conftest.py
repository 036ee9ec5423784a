"""A tiny jina-reranker-v3."""

from __future__ import annotations

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.factories import LLMFactory
from tests.scoring.listwise import SPECIAL_TOKENS, JinaReranker
from tests.tiny import change_config, save_tiny


@pytest.fixture(scope="module")
def jina(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> JinaReranker:
    folder = tmp_path_factory.mktemp("jina")
    reference = save_tiny(folder, "Qwen3ForCausalLM", max_position_embeddings=900, tie_word_embeddings=True)
    torch.manual_seed(0)
    projector = nn.Sequential(nn.Linear(32, 16, bias=False), nn.ReLU(), nn.Linear(16, 12, bias=False))
    weights, names = folder / "model.safetensors", ("projector.0.weight", "projector.2.weight")
    projector_weights = dict(zip(names, (parameter.data for parameter in projector.parameters()), strict=True))
    save_file(load_file(weights) | projector_weights, weights, metadata={"format": "pt"})
    change_config(folder, architectures=["JinaForRanking"])
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(folder / "tokenizer.json"))
    return JinaReranker(folder, reference, projector, open_llm(folder))
