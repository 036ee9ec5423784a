"""ArmoRM scores as Transformers' Llama below the published head: objectives weighted by a gating network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from cenote import LLM
from cenote.errors import BadRequest
from cenote.protocol.input_types import Conversation
from cenote.protocol.requests import PoolRequest
from tests.factories import LLMFactory
from tests.layouts.builders import text_families
from tests.models.conversations import CONVERSATIONS, to_messages, to_text
from tests.models.published_reference import reference
from tests.tiny import compute_hidden_states


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("armorm")
    text_families.armorm_llama3_8b(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path, open_llm: LLMFactory) -> LLM:
    return open_llm(folder)


def expected_score(folder: Path, turns: list[tuple[str, str]]) -> float:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(to_text(turns), add_special_tokens=False).ids
    # the end of the message before the last answer
    prompt_end = len(tokenizer.encode(to_text(turns[:-1]), add_special_tokens=False).ids) - 1
    (states,) = compute_hidden_states(reference(folder, "LlamaModel"), [ids])
    tensors = load_file(folder / "model.safetensors")
    gate: Tensor = states[prompt_end]
    for layer in range(3):
        gate = F.linear(gate, tensors[f"gating.layers.{layer}.weight"], tensors[f"gating.layers.{layer}.bias"])
        gate = gate.relu() if layer < 2 else gate
    weights = (gate / 3).softmax(-1) * tensors["gating.logit_scale"]
    rewards = (tensors["regression_layer.weight"] @ states[-1]) @ tensors["reward_transform_matrix"]
    return float(weights @ rewards)


def test_a_conversation_is_scored_as_by_the_published_head(llm: LLM, folder: Path) -> None:
    inputs = [Conversation(to_messages(turns)) for turns in CONVERSATIONS]

    results = llm.engine.pool_sync(PoolRequest(task="classify", inputs=inputs))

    expected = [expected_score(folder, turns) for turns in CONVERSATIONS]
    assert np.concatenate([result.data for result in results]).tolist() == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected)) > 0.1


def test_the_text_of_the_chat_template_has_the_same_score(llm: LLM, folder: Path) -> None:
    outputs = llm.classify([to_text(turns) for turns in CONVERSATIONS], use_tqdm=False)

    expected = [expected_score(folder, turns) for turns in CONVERSATIONS]
    assert [output.outputs.probs[0] for output in outputs] == pytest.approx(expected, abs=1e-4)
    assert llm.supported_tasks == ("classify", "score")


def test_an_input_without_an_answer_is_refused_with_what_to_send(llm: LLM) -> None:
    with pytest.raises(BadRequest, match="reads the end of the prompt: send a conversation"):
        llm.classify("the old river", use_tqdm=False)


def test_a_pair_is_refused_too(llm: LLM) -> None:
    with pytest.raises(BadRequest, match="reads the end of the prompt"):
        llm.score("how big is the river?", "the old river is big.", use_tqdm=False)
