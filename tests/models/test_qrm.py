"""QRM scores as Transformers' Llama below the published head: quantiles of objectives and a gating network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from cenote import LLM
from cenote.errors import LoadError
from cenote.protocol.input_types import Conversation
from cenote.protocol.requests import PoolRequest
from tests.layouts.builders import text_families
from tests.models.conversations import CONVERSATIONS, to_messages, to_text
from tests.models.published_reference import reference
from tests.tiny import change_config, compute_hidden_states


def make_gate(tensors: dict[str, Tensor]) -> nn.Module:
    """Return the gating network as it is published."""
    hidden = [[nn.Linear(size, 16, bias=False), nn.ReLU(), nn.BatchNorm1d(16)] for size in (32, 16)]
    gate = nn.Sequential(*hidden[0], *hidden[1], nn.Linear(16, 5)).eval()
    prefix = "gating.layers."
    gate.load_state_dict({name[len(prefix) :]: tensors[name] for name in tensors if name.startswith(prefix)})
    return gate


@torch.no_grad()
def expected_score(folder: Path, turns: list[tuple[str, str]]) -> float:
    """Mix the quantiles of all objectives by the gate; the score is their mean."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(to_text(turns), add_special_tokens=False).ids
    prompt_end = len(tokenizer.encode(to_text(turns[:-1]), add_special_tokens=False).ids) - 1
    (states,) = compute_hidden_states(reference(folder, "LlamaModel"), [ids])
    tensors = load_file(folder / "model.safetensors")
    logits = make_gate(tensors)(states[prompt_end][None])[0]
    weights = (logits / 3).softmax(-1) * tensors["gating.logit_scale"]
    quantiles = (tensors["regression_layer.weight"] @ states[-1]).reshape(5, 7)
    mixed = quantiles.T @ tensors["reward_transform_matrix"] @ weights
    return float(mixed.mean())


def test_a_conversation_has_the_expected_value_of_the_published_head(tmp_path: Path) -> None:
    text_families.qrm_llama3_1_8b(tmp_path)
    inputs = [Conversation(to_messages(turns)) for turns in CONVERSATIONS]

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        results = llm.engine.pool_sync(PoolRequest(task="classify", inputs=inputs))

    expected = [expected_score(tmp_path, turns) for turns in CONVERSATIONS]
    assert np.concatenate([result.data for result in results]).tolist() == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected)) > 0.1


def test_another_number_of_quantiles_does_not_fit_the_weights(tmp_path: Path) -> None:
    text_families.qrm_llama3_1_8b(tmp_path)
    for number in (5, 6):
        change_config(tmp_path, num_quantiles=number)

        with pytest.raises(LoadError, match=r"regression_layer.weight has shape .*, config.json requires \[5, 32\]"):
            LLM(str(tmp_path), dtype="float32", device="cpu")
