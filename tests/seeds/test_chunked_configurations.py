"""The commands of the guide that embed long texts in chunks, on tiny checkpoints.

The layouts are those of the published checkpoints. What a long text must give is computed with Transformers, chunk by
chunk.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, processors
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close
from transformers import Qwen2_5_VLForConditionalGeneration

from cenote import LLM
from cenote.cli.serve import parse_config
from tests.models.adapters import merge_jina_v3_task
from tests.models.qwen_vl import TOWER, save_qwen_vl
from tests.models.rotary_encoders import save_adapted
from tests.tiny import WORDS, change_config, save_tiny

ComputeStates = Callable[[Sequence[int]], Tensor]  # token ids -> Transformers' hidden states, [tokens, hidden]


def write_modules(folder: Path, pooling: str, **transformer: Any) -> None:
    models = "sentence_transformers.models"
    rows = [
        {"idx": 0, "name": "0", "path": "", "type": f"{models}.Transformer"} | transformer,
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{models}.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{models}.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, f"pooling_mode_{pooling}": True})
    )


def compute_with(model: Any) -> ComputeStates:
    def compute(ids: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            return model(input_ids=torch.tensor([list(ids)])).last_hidden_state[0]  # type: ignore[no-any-return]

    return compute


def save_multilingual_e5(folder: Path) -> ComputeStates:
    reference = save_tiny(folder, "XLMRobertaModel")
    write_modules(folder, "mean_tokens")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
    return compute_with(reference)


def save_jina_v3(folder: Path) -> ComputeStates:
    """Rotary XLM-RoBERTa in the names of FlashAttention, with adapters for five tasks; text-matching is the default."""
    reference = save_adapted(folder)
    write_modules(folder, "mean_tokens", type="custom_st.Transformer", kwargs=["task"])
    assert "roberta.encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_A" in stored_names(folder)
    return compute_with(merge_jina_v3_task(reference, folder, "text-matching"))


def save_jina_v4(folder: Path) -> ComputeStates:
    """Qwen2.5-VL with the retrieval adapter merged."""
    reference = save_qwen_vl(folder, Qwen2_5_VLForConditionalGeneration, TOWER)
    return compute_with(reference.model)


def save_qwen3_embedding(folder: Path) -> ComputeStates:
    """The causal architecture's name, weights without its prefix, LAST pooling in the files, and an EOS after texts."""
    reference = save_tiny(folder, "Qwen3Model")
    change_config(folder, architectures=["Qwen3ForCausalLM"])
    assert "layers.0.self_attn.q_proj.weight" in stored_names(folder)
    write_modules(folder, "lasttoken")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = ("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end[0]}", pair=f"$A $B {end[0]}", special_tokens=[end]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return compute_with(reference)


def stored_names(folder: Path) -> set[str]:
    return set(load_file(folder / "model.safetensors"))


@dataclass(frozen=True)
class Configuration:
    save: Callable[[Path], ComputeStates]
    max_embed_len: int  # of the command
    max_positions: int  # of the tiny checkpoint
    num_special_tokens: int


CONFIGURATIONS = {
    "intfloat/multilingual-e5-large": Configuration(save_multilingual_e5, 3072000, 64, 2),
    "jinaai/jina-embeddings-v3": Configuration(save_jina_v3, 1048576, 66, 2),
    "jinaai/jina-embeddings-v4-vllm-retrieval": Configuration(save_jina_v4, 2097152, 512, 0),
    "Qwen/Qwen3-Embedding-4B": Configuration(save_qwen3_embedding, 1572864, 66, 1),
}


@dataclass(frozen=True)
class Served:
    configuration: Configuration
    llm: LLM
    compute_states: ComputeStates


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The model of a command of the guide, with its flags."""
    configuration = CONFIGURATIONS[request.param]
    folder = tmp_path_factory.mktemp("hub") / request.param.rpartition("/")[2]
    folder.mkdir()
    compute_states = configuration.save(folder)
    pooler_config = json.dumps(
        {
            "pooling_type": "MEAN",
            "normalize": True,
            "enable_chunked_processing": True,
            "max_embed_len": configuration.max_embed_len,
        }
    )
    command = [str(folder), "--task", "embed", "--override-pooler-config", pooler_config, "--trust-remote-code"]
    _, options = parse_config([*command, "--dtype", "float32", "--device", "cpu"], {})
    with LLM(**options) as llm:
        yield Served(configuration, llm, compute_states)


def make_long_text(num_words: int) -> str:
    generator = torch.Generator().manual_seed(0)
    return " ".join(WORDS[index] for index in torch.randint(len(WORDS), (num_words,), generator=generator).tolist())


def merge_chunks(served: Served, ids: Sequence[int]) -> Tensor:
    """The mean of the chunks' embeddings, weighted by their number of tokens, and normalised again."""
    size = served.configuration.max_positions
    chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
    embeddings = [normalize(served.compute_states(chunk).mean(dim=0), dim=0) for chunk in chunks]
    total = sum(len(chunk) * embedding for chunk, embedding in zip(chunks, embeddings, strict=True))
    assert isinstance(total, Tensor)
    return normalize(total / len(ids), dim=0)


def test_a_long_text_is_the_weighted_mean_of_its_chunks(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    size = served.configuration.max_positions
    num_tokens = 2 * size + size // 3
    text = make_long_text(num_tokens - served.configuration.num_special_tokens)

    with caplog.at_level(logging.INFO, "cenote"):
        (output,) = served.llm.embed(text, use_tqdm=False)

    assert len(output.prompt_token_ids) == num_tokens
    assert_close(output.outputs.data, merge_chunks(served, output.prompt_token_ids), atol=1e-4, rtol=0)
    assert output.outputs.data.norm().item() == pytest.approx(1, abs=1e-5)
    lines = [record.getMessage() for record in caplog.records]
    assert f"Input length {num_tokens} exceeds max_position_embeddings {size}, will use chunked processing" in lines
    assert f"Split input of {num_tokens} tokens into 3 chunks (max_chunk_size: {size})" in lines
