"""Families give the same states with their layers split over ranks as in one process; others say why they cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.load import load_model
from cenote.packed_batch import pack_sequences
from tests.distributed.rank_threads import compute_states
from tests.layouts.builders import encoder_decoders, text_families
from tests.models.jina_bert import CODE, save_jina
from tests.models.qwen3_5 import save_text
from tests.tiny import SEQUENCES, save_tiny

TOLERANCE = 1e-4

# model, changes of its config
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {})
    for name in (
        "BertModel",
        "RobertaModel",
        "DistilBertModel",
        "MPNetModel",
        "AlbertModel",
        "ElectraModel",
        "DebertaModel",
        "DebertaV2Model",
        "ModernBertModel",
        "EuroBertModel",
        "NomicBertModel",
        "T5EncoderModel",
    )
}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {})
    for name in (
        "LlamaModel",
        "MistralModel",
        "Ministral3Model",
        "GraniteModel",
        "Phi3Model",
        "GlmModel",
        "GPT2Model",
        "GemmaModel",
        "Gemma2Model",
        "Gemma3TextModel",
        "Qwen2Model",
        "Qwen3Model",
        "OlmoModel",
        "Olmo2Model",
        "Olmo3Model",
    )
} | {
    "attention biases": ("LlamaModel", {"attention_bias": True, "mlp_bias": True}),
    "clipped attention": ("OlmoModel", {"clip_qkv": 0.5}),
}
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {})
    for name in (
        "Qwen2MoeModel",
        "Qwen3MoeModel",
        "MixtralModel",
        "Lfm2Model",
        "JambaModel",
        "DeepseekV3Model",
        "OpenAIPrivacyFilterModel",
    )
} | {
    "whole queries of latent attention": ("DeepseekV3Model", {"q_lora_rank": None, "rope_interleave": False}),
    "shared experts": ("DeepseekV3Model", {"n_shared_experts": 2}),
    "biases of convolutions": ("Lfm2Model", {"conv_bias": True}),
}
CASES = ENCODERS | DECODERS | MIXTURES


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # Transformers' DeBERTa uses it
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_give_the_states_of_one_process(name: str, tmp_path: Path) -> None:
    model, changes = CASES[name]
    save_tiny(tmp_path, model, **changes)

    assert_same_states(tmp_path, 2)


# checkpoints with other names, fused or reordered matrices, and layers of their own
PUBLISHED: dict[str, Callable[[Path], object]] = {
    "jina-bert, norms over all heads": lambda folder: save_jina(folder, num_attention_heads=4, **CODE),
    "jina-bert, distances": lambda folder: save_jina(folder, num_attention_heads=4),
    "qwen3.5, linear attention": lambda folder: save_text(folder, Qwen3_5TextModel),
    "nv-embed, latents": text_families.nv_embed_v2,
    "monoT5, a decoder step": text_families.monot5_base_msmarco,
    "t5gemma2, an encoder and a decoder": encoder_decoders.kalm_reranker_v1,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_two_ranks_give_the_states_of_one_process_for_published_formats(name: str, tmp_path: Path) -> None:
    PUBLISHED[name](tmp_path)

    assert_same_states(tmp_path, 2)


@pytest.mark.parametrize("model", ["Qwen3Model", "Olmo2Model", "Qwen3MoeModel"])
def test_ranks_that_outnumber_the_kv_heads_share_them(model: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, model, **{"moe_intermediate_size": 32} if "Moe" in model else {})  # four heads, two KV heads

    assert_same_states(tmp_path, 4)


@pytest.mark.parametrize("model", ["Qwen3MoeModel", "DeepseekV3Model"])
def test_experts_stored_in_one_tensor_are_split(model: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, model)
    reference.save_pretrained(tmp_path, save_original_format=False)

    assert_same_states(tmp_path, 2)


def assert_same_states(folder: Path, num_ranks: int) -> None:
    # the second half of every sequence is of another type, which is the decoder's input of encoder-decoders
    batch = pack_sequences(SEQUENCES, [[int(2 * n >= len(ids)) for n in range(len(ids))] for ids in SEQUENCES])
    config = EngineConfig.from_kwargs(str(folder), dtype="float32", device="cpu", runtime="torch")
    with torch.inference_mode():
        expected = load_model(config).backbone(batch)

    assert_close(compute_states(folder, num_ranks, batch), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("model", "changes", "num_ranks", "reason"),
    [
        ("BertModel", {}, 3, "the number of attention heads 4 is not divisible by 3; .*: 1, 2, 4"),
        ("BertModel", {"intermediate_size": 49}, 2, "intermediate_size 49 is not divisible by 2; .*: 1, 7, 49"),
        (
            "LlamaModel",
            {"hidden_size": 48, "num_attention_heads": 12, "num_key_value_heads": 4},
            6,
            "4 KV heads can neither be divided among 6 ranks nor be repeated evenly; use one of: 1, 2, 4, 12",
        ),
        (
            "Qwen3MoeModel",
            {"moe_intermediate_size": 25},
            2,
            "the intermediate size of experts 25 is not divisible by 2",
        ),
        (
            "Qwen3MoeModel",
            {},
            4,
            "experts 24 is not divisible by 4 into parts of a multiple of 16 bytes; .*: 1, 2, 3, 6",
        ),
    ],
)
def test_sizes_that_cannot_be_split_are_named(
    model: str, changes: dict[str, Any], num_ranks: int, reason: str, tmp_path: Path
) -> None:
    save_tiny(tmp_path, model, **changes)

    with pytest.raises(LoadError, match=f"tensor_parallel_size={num_ranks}: .*{reason}"):
        compute_states(tmp_path, num_ranks, pack_sequences(SEQUENCES))
