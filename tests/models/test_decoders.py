"""Decoders equal Transformers: hidden states and classes; other checkpoint layouts are derived from its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import PreTrainedModel

from cenote import PoolerConfig
from cenote.errors import LoadError
from tests.models.parity import (
    FACTORS,
    LINEAR,
    LLAMA3,
    RAW,
    TOLERANCE,
    YARN,
    Case,
    assert_same,
    assert_states,
    classified,
    embedded,
    encoded,
    loaded,
    opened,
    run,
    save_case,
)
from tests.models.reward_models import Head, Tensors, as_internlm2, renamed, rewrite
from tests.tiny import change_config, compute_hidden_states, compute_logits, save_tiny

BIASES = {"attention_bias": True, "mlp_bias": True}
ORIGINAL_LENGTH = {"original_max_position_embeddings": 32}
HALF = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
LONG = {"rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0] * 4}
OLD_GEMMA3 = {
    "rope_theta": 3000.0,
    "rope_local_base_freq": 40.0,
    "rope_scaling": {"rope_type": "linear", "factor": 3.0},
}
OLD_OLMO3 = {"rope_theta": 5e5, "rope_scaling": YARN | {"max_position_embeddings": 64}}
ONE_LOCAL = ["full_attention", "sliding_attention"]

CASES = {
    "llama": Case("LlamaModel"),
    "llama, language model": Case("LlamaForCausalLM"),
    "llama, tied words": Case("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama, biases": Case("LlamaModel", BIASES),
    "llama, wide heads": Case("LlamaModel", {"head_dim": 12}),
    "llama, every head its own keys": Case("LlamaModel", {"num_key_value_heads": 4}),
    "llama, both ways": Case("LlamaModel", {"is_causal": False}),
    "llama, llama3": Case("LlamaModel", {"rope_parameters": LLAMA3 | ORIGINAL_LENGTH}),
    "llama, llama3, older config": Case(
        "LlamaModel", {}, ("rope_parameters",), {"rope_theta": 500.0, "rope_scaling": LLAMA3 | ORIGINAL_LENGTH}
    ),
    "llama, linear": Case("LlamaModel", {"rope_parameters": LINEAR}),
    "mistral": Case("MistralModel", {"sliding_window": None}),
    "mistral, window": Case("MistralModel", {"sliding_window": 4}),
    "mistral, window, both ways": Case("MistralModel", {"sliding_window": 4, "is_causal": False}),
    "mistral, language model": Case("MistralForCausalLM", {"sliding_window": 4}),
    "ministral": Case("MinistralModel", {"sliding_window": 4, "head_dim": 8, "layer_types": ONE_LOCAL}),
    "ministral3": Case("Ministral3Model"),
    "ministral3, window": Case("Ministral3Model", {"sliding_window": 4}),
    "ministral3, both ways": Case("Ministral3Model", {"is_causal": False}),
    "ministral3, window, both ways": Case("Ministral3Model", {"sliding_window": 4, "is_causal": False}),
    "ministral3, language model": Case("Ministral3ForCausalLM"),
    "cwm": Case(
        "CwmModel", {"sliding_window": 4, "layer_types": ONE_LOCAL, "rope_parameters": LLAMA3 | ORIGINAL_LENGTH}
    ),
    "granite": Case("GraniteModel", FACTORS),
    "granite, language model": Case("GraniteForCausalLM", FACTORS | BIASES),
    "phi3": Case("Phi3Model"),
    "phi3, window": Case("Phi3Model", {"sliding_window": 4}),
    "phi3, half of a head turns": Case("Phi3ForCausalLM", {"rope_parameters": HALF}),
    "phi3, longrope": Case(
        "Phi3Model", {"rope_parameters": LONG, "max_position_embeddings": 132, "original_max_position_embeddings": 66}
    ),
    "phi3, longrope by its first name": Case(
        "Phi3Model",
        {},
        ("rope_parameters",),
        {"rope_scaling": {"type": "yarn", "short_factor": LONG["short_factor"], "long_factor": LONG["long_factor"]}}
        | {"max_position_embeddings": 132, "original_max_position_embeddings": 66},
    ),
    "glm": Case("GlmModel"),
    "glm, older config": Case("GlmModel", {}, ("rope_parameters",), {"rope_theta": 300.0}),
    "glm, all of a head turns": Case("GlmModel", {"rope_parameters": HALF | {"partial_rotary_factor": 1.0}}),
    "glm, language model, no biases": Case("GlmForCausalLM", {"attention_bias": False}),
    "gpt2": Case("GPT2Model"),
    "gpt2, language model": Case("GPT2LMHeadModel", {"activation_function": "relu", "n_inner": None}),
    "gpt2, weaker the deeper": Case("GPT2Model", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2, products as they are": Case("GPT2Model", {"scale_attn_weights": False}),
    "gemma": Case("GemmaModel"),
    "gemma, first config": Case("GemmaForCausalLM", {}, (), {"hidden_act": "gelu"}),
    "gemma, both ways": Case("GemmaModel", {"use_bidirectional_attention": True}),
    "gemma2": Case("Gemma2Model"),
    "gemma2, low cap": Case("Gemma2ForCausalLM", {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 7}),
    "gemma2, no cap": Case("Gemma2Model", {"attn_logit_softcapping": None}),
    "gemma2, both ways": Case("Gemma2Model", {"is_causal": False}),
    "gemma2, older config": Case("Gemma2Model", {}, ("layer_types",)),
    "gemma3": Case("Gemma3TextModel"),
    "gemma3, language model": Case("Gemma3ForCausalLM", {"query_pre_attn_scalar": 7}),
    "gemma3, both ways": Case("Gemma3TextModel", {"use_bidirectional_attention": True}),
    "gemma3, both ways, odd window": Case(
        "Gemma3TextModel", {}, (), {"use_bidirectional_attention": True, "sliding_window": 5}
    ),
    "gemma3, older config": Case("Gemma3TextModel", {}, ("rope_parameters", "layer_types"), OLD_GEMMA3),
    "olmo": Case("OlmoModel"),
    "olmo, clipped": Case("OlmoForCausalLM", {"clip_qkv": 0.5}),
    "olmo2": Case("Olmo2Model"),
    "olmo2, biases": Case("Olmo2ForCausalLM", {"attention_bias": True}),
    "olmo3": Case("Olmo3Model"),
    "olmo3, older config": Case("Olmo3ForCausalLM", {}, ("rope_parameters", "layer_types"), OLD_OLMO3),
}


@pytest.mark.parametrize("name", CASES)
def test_a_decoder_matches_transformers(name: str, tmp_path: Path) -> None:
    assert_states(tmp_path, save_case(tmp_path, CASES[name]))


@pytest.mark.parametrize("stem", ["Aquila", "LLaMA", "Xverse", "InternLM", "InternLM3"])
def test_llama_by_another_name_is_llama(stem: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "LlamaForCausalLM")
    change_config(tmp_path, architectures=[f"{stem}ForCausalLM"], model_type=stem.lower())

    assert_states(tmp_path, reference)


@pytest.mark.parametrize("keys", [{"bias": True}, {"bias": True, "qkv_bias": True}])
def test_biases_go_by_other_names_too(keys: dict[str, bool], tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "LlamaForCausalLM", attention_bias=True)
    change_config(tmp_path, architectures=["InternLM3ForCausalLM"], drop=("attention_bias",), **keys)

    assert_states(tmp_path, reference)


def test_the_mask_that_old_gpt2_checkpoints_hold_is_passed_over(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "GPT2LMHeadModel")
    mask = {"attn.bias": torch.ones(1, 1, 66, 66, dtype=torch.uint8), "attn.masked_bias": torch.tensor(-1e4)}
    buffers = {f"transformer.h.{layer}.{name}": tensor for layer in range(2) for name, tensor in mask.items()}
    rewrite(tmp_path, lambda tensors: tensors | buffers)

    assert_states(tmp_path, reference)


POOLED: dict[str, Callable[[Tensor], Tensor]] = {
    "avg": lambda rows: rows.mean(0),
    "cls": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
}


@pytest.mark.parametrize("pooling", POOLED)
def test_a_bidirectional_llama_pools_as_its_config_says(pooling: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "LlamaModel", is_causal=False)
    names = {"architectures": ["LlamaBidirectionalModel"], "model_type": "llama_bidirec"}
    change_config(tmp_path, drop=("is_causal",), pooling=pooling, **names)

    with opened(tmp_path) as llm:
        assert_same(
            embedded(llm), [F.normalize(POOLED[pooling](rows), dim=-1) for rows in compute_hidden_states(reference)]
        )


@pytest.mark.parametrize("pooling", POOLED)
def test_so_does_its_reranker(pooling: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "LlamaForSequenceClassification", is_causal=False, num_labels=1)
    names = {"architectures": ["LlamaBidirectionalForSequenceClassification"], "model_type": "llama_bidirec"}
    change_config(tmp_path, drop=("is_causal",), pooling=pooling, **names)
    with torch.inference_mode():
        expected = [reference.score(POOLED[pooling](rows)) for rows in compute_hidden_states(reference)]

    with opened(tmp_path) as llm:
        assert_same(classified(llm, RAW), expected)


def test_an_unknown_pooling_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "LlamaModel")
    change_config(tmp_path, architectures=["LlamaBidirectionalModel"], pooling="weighted_avg")

    with pytest.raises(LoadError, match="'weighted_avg'; expected one of: avg, cls, last"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("changes", "pooling"),
    [
        ({"is_causal": False, "pooling": "avg"}, "avg"),
        ({"is_causal": False}, "avg"),
        ({"is_causal": False, "pooling": "last"}, "last"),
        ({}, "last"),
    ],
)
def test_a_nemotron_3_embedder_pools_as_its_config_says(changes: dict[str, Any], pooling: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Ministral3Model", **changes)

    with opened(tmp_path) as llm:
        assert_same(
            embedded(llm), [F.normalize(POOLED[pooling](rows), dim=-1) for rows in compute_hidden_states(reference)]
        )


def test_an_earlier_nemotron_3_embedder_is_bidirectional_by_its_name(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Ministral3Model", is_causal=False)
    names = {"architectures": ["Ministral3BidirectionalModel"], "model_type": "ministral3_bidirec"}
    change_config(tmp_path, drop=("is_causal",), **names)

    with opened(tmp_path) as llm:
        assert_same(embedded(llm), [F.normalize(rows.mean(0), dim=-1) for rows in compute_hidden_states(reference)])


def test_gritlm_sees_everything_and_takes_the_mean(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "MistralForCausalLM", sliding_window=None, is_causal=False)
    change_config(tmp_path, drop=("is_causal",), architectures=["GritLM"], sliding_window=4)

    model = loaded(tmp_path)

    assert model.description.plan.seq_pooling_types.value == ("MEAN",)
    assert_close(run(model.backbone), torch.cat(compute_hidden_states(reference)), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("bias", [False, True])
def test_internlm2_is_llama_with_its_rows_in_another_order(bias: bool, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "LlamaForCausalLM", attention_bias=bias)
    rewrite(tmp_path, as_internlm2, drop=("attention_bias",), architectures=["InternLM2ForCausalLM"], bias=bias)

    assert_states(tmp_path, reference)


def test_internlm2_classifies(tmp_path: Path) -> None:
    expected = compute_logits(save_tiny(tmp_path, "LlamaForSequenceClassification", num_labels=3))
    rewrite(tmp_path, as_internlm2, architectures=["InternLM2ForSequenceClassification"])

    with opened(tmp_path) as llm:
        assert_same(classified(llm, RAW), expected)


TELECHAT2 = {
    "embed_tokens": "word_embeddings",
    "model.layers.": "model.h.",
    "self_attn.q_proj": "self_attention.query",
    "self_attn.o_proj": "self_attention.dense",
    "model.norm": "model.ln_f",
    "model.": "transformer.",
}


def as_telechat2(tensors: Tensors) -> Tensors:
    """Interleave keys and values by head (8 rows each); biases only on output projections."""
    made = {}
    for name, tensor in tensors.items():
        if name.endswith("bias") and "o_proj" not in name and "down_proj" not in name:
            continue
        if "k_proj" in name:
            pairs = zip(tensor.split(8), tensors[name.replace("k_proj", "v_proj")].split(8), strict=True)
            made[name.replace("self_attn.k_proj", "self_attention.key_value")] = torch.cat(
                [torch.cat(p) for p in pairs]
            )
        elif "v_proj" not in name:
            made[name] = tensor
    return renamed(made, TELECHAT2)


def without_biases(reference: PreTrainedModel, *names: str) -> PreTrainedModel:
    for name, parameter in reference.named_parameters():
        if name.endswith("bias") and any(part in name for part in names):
            nn.init.zeros_(parameter)
    return reference


# trained further on longer texts: the last of 4 rotary pairs is 2 ** n - 1 times slower
@pytest.mark.parametrize(("trained", "slower"), [(8192, 1.0), (16384, 3.0), (32768, 7.0), (4096, 1.0)])
def test_telechat2_is_llama_with_interleaved_keys_and_values(trained: int, slower: float, tmp_path: Path) -> None:
    turns = {"rope_type": "default", "rope_theta": 1e4 * slower ** (8 / 6)}
    reference = save_tiny(tmp_path, "LlamaForCausalLM", rope_parameters=turns, **BIASES)
    without_biases(reference, "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    rewrite(
        tmp_path,
        as_telechat2,
        drop=("num_hidden_layers", "num_attention_heads", "intermediate_size", "rms_norm_eps", "rope_parameters")
        + ("attention_bias", "mlp_bias"),
        architectures=["TeleChat2ForCausalLM"],
        **{"n_layer": 2, "n_head": 4, "ffn_hidden_size": 48, "layer_norm_epsilon": reference.config.rms_norm_eps},
        **{"base_seqlen": 8192, "training_seqlen": trained},
    )

    assert_states(tmp_path, reference)


def decilm(folder: Path, layers: list[tuple[int, int]]) -> PreTrainedModel:
    """Write layers with given KV heads and MLP widths, and an equivalent Llama with 4 KV heads and width 512."""
    reference = save_tiny(folder, "LlamaForCausalLM", num_key_value_heads=4, intermediate_size=512)
    parameters = reference.state_dict()
    made = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if ".layers." not in name}
    for number, (kv_heads, width) in enumerate(layers):
        block = f"model.layers.{number}."
        for name in ("k_proj", "v_proj"):
            stored = parameters[f"{block}self_attn.{name}.weight"].unflatten(0, (4, 8))[:kv_heads]
            made[f"{block}self_attn.{name}.weight"] = stored.flatten(0, 1).clone()
            repeated = stored.repeat_interleave(4 // max(kv_heads, 1), dim=0).flatten(0, 1)
            parameters[f"{block}self_attn.{name}.weight"][: len(repeated)] = repeated
        for name in ("gate_proj", "up_proj"):
            made[f"{block}mlp.{name}.weight"] = parameters[f"{block}mlp.{name}.weight"][:width].clone()
            parameters[f"{block}mlp.{name}.weight"][width:] = 0
        made[f"{block}mlp.down_proj.weight"] = parameters[f"{block}mlp.down_proj.weight"][:, :width].clone()
        for name in ("self_attn.q_proj", "self_attn.o_proj", "input_layernorm", "post_attention_layernorm"):
            made[f"{block}{name}.weight"] = parameters[f"{block}{name}.weight"].clone()
        if not kv_heads:
            parameters[f"{block}self_attn.o_proj.weight"].zero_()
    for number, halves in enumerate(layers):
        parts = (("self_attn", "input_layernorm"), ("mlp", "post_attention_layernorm"))
        pruned = [name for half, names in zip(halves, parts, strict=True) if not half for name in names]
        gone = tuple(f"model.layers.{number}.{name}." for name in pruned)
        made = {name: tensor for name, tensor in made.items() if not name.startswith(gone)}
    rewrite(folder, lambda _: made, architectures=["DeciLMForCausalLM"])
    return reference


def test_every_layer_of_decilm_has_its_own_number_of_keys(tmp_path: Path) -> None:
    reference = decilm(tmp_path, [(4, 512), (1, 512)])
    change_config(tmp_path, drop=("num_key_value_heads",), num_key_value_heads_per_layer=[4, 1])

    assert_states(tmp_path, reference)


def keys(heads_in_group: int | None) -> dict[str, Any]:
    return {"n_heads_in_group": heads_in_group, "no_op": heads_in_group is None, "replace_with_linear": False}


def wide(factor: float | None) -> dict[str, Any]:
    return {"ffn_mult": factor, "no_op": factor is None, "replace_with_linear": False}


@pytest.mark.parametrize(
    ("layers", "blocks"),
    [
        # 2 / 3 * 12 * 32 is 256; 2 / 3 * 12.1 * 32 is 258, and the next multiple of 256 is 512
        ([(2, 256), (1, 512)], [(keys(2), wide(12)), (keys(4), wide(12.1))]),
        ([(0, 100), (4, 512)], [(keys(None), {"intermediate_size": 100}), (keys(1), wide(12.1))]),
        ([(2, 512), (4, 0)], [(keys(2), wide(12.1)), (keys(1), wide(None))]),
        ([(0, 0), (4, 256)], [(keys(None), wide(None)), (keys(1), wide(12))]),
    ],
    ids=["narrower", "no attention", "no mlp", "nothing"],
)
def test_a_layer_may_lack_what_was_pruned(
    layers: list[tuple[int, int]], blocks: list[tuple[dict[str, Any], dict[str, Any]]], tmp_path: Path
) -> None:
    reference = decilm(tmp_path, layers)
    written = [{"attention": attention, "ffn": ffn} for attention, ffn in blocks]
    change_config(tmp_path, drop=("num_key_value_heads",), intermediate_size=None, block_configs=written)

    assert_states(tmp_path, reference)


def test_voyage_projects_every_token(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Qwen3ForCausalLM", is_causal=False)
    linear = nn.Linear(32, 20, bias=False)
    rewrite(
        tmp_path,
        lambda tensors: tensors | {"linear.weight": linear.weight.detach()},
        drop=("is_causal",),
        architectures=["VoyageQwen3BidirectionalEmbedModel"],
        num_labels=20,
    )
    expected = [F.linear(rows, linear.weight.detach()) for rows in compute_hidden_states(reference)]

    with opened(tmp_path, pooler_config=PoolerConfig(pooling_type="MEAN")) as llm:
        assert_same(embedded(llm), [F.normalize(rows.mean(0), dim=-1) for rows in expected])
        assert_same(encoded(llm, "token_embed", RAW), expected)
        assert llm.model_config.embedding_size == 20
    with opened(tmp_path) as llm:
        assert_same(embedded(llm), [F.normalize(rows[-1], dim=-1) for rows in expected])


def test_the_listwise_reranker_of_jina_gives_every_token_a_short_vector(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Qwen3ForCausalLM")
    projector = Head(nn.Linear(32, 16, bias=False), nn.ReLU(), nn.Linear(16, 12, bias=False))
    rewrite(tmp_path, lambda tensors: tensors | projector.tensors("projector"), architectures=["JinaForRanking"])

    model = loaded(tmp_path)
    with torch.inference_mode():
        actual = model.pooler.heads.token_projector(run(model.backbone))

    assert_close(actual, torch.cat(projector.over(reference)), atol=TOLERANCE, rtol=0)
