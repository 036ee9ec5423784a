"""Hidden states of every family equal Transformers, on packed batches of mixed lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close
from transformers.activations import ACT2FN

from cenote.errors import LoadError
from cenote.layers.spec import RelativeBiasSpec
from cenote.packed_batch import pack_sequences
from tests.models.parity import (
    FACTORS,
    LINEAR,
    LLAMA3,
    TOLERANCE,
    YARN,
    Case,
    assert_states,
    loaded,
    rebuilt,
    run,
    save_case,
)
from tests.tiny import SEQUENCES, change_config, compute_hidden_states, save_tiny

# what Transformers compiles its DeBERTa with
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}


OLD_MODERNBERT = {"global_attn_every_n_layers": 2, "global_rope_theta": 3000.0, "local_rope_theta": 40.0}
NEW_ROPES = {"full_attention": {"rope_theta": 3000.0}, "sliding_attention": {"rope_theta": 40.0}}

CASES = {
    "bert": Case("BertModel"),
    "bert, other activation": Case("BertModel", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "bert, one type": Case("BertModel", {"type_vocab_size": 1}),
    "bert, masked words": Case("BertForMaskedLM"),
    "roberta": Case("RobertaModel"),
    "roberta, other padding": Case("RobertaModel", {"pad_token_id": 4}),
    "roberta, masked words": Case("RobertaForMaskedLM"),
    "xlm-roberta": Case("XLMRobertaModel"),
    "modernbert": Case("ModernBertModel"),
    "modernbert, biases": Case("ModernBertModel", {"attention_bias": True, "mlp_bias": True, "norm_bias": True}),
    "modernbert, layer types": Case(
        "ModernBertModel", {"layer_types": ["sliding_attention", "full_attention"] * 2, "rope_parameters": NEW_ROPES}
    ),
    "modernbert, older config": Case("ModernBertModel", {}, ("layer_types", "rope_parameters"), OLD_MODERNBERT),
    "modernbert, oldest config": Case("ModernBertModel", {}, ("layer_types", "rope_parameters")),
    "modernbert, no local layers": Case("ModernBertModel", {}, ("layer_types",), {"global_attn_every_n_layers": 1}),
    "modernbert, no local layers and no window": Case(
        "ModernBertModel", {}, ("layer_types",), {"global_attn_every_n_layers": 1, "local_attention": -1}
    ),
    "modernbert, a window of one token": Case("ModernBertModel", {}, ("layer_types",), {"local_attention": 1}),
    "modernbert, masked words": Case("ModernBertForMaskedLM"),
    "qwen2": Case("Qwen2Model"),
    "qwen2, language model": Case("Qwen2ForCausalLM"),
    "qwen2, older config": Case("Qwen2Model", {}, ("rope_parameters", "layer_types"), {"rope_theta": 300.0}),
    "qwen2, window": Case("Qwen2Model", WINDOW),
    "qwen2, window, older config": Case("Qwen2Model", {}, ("layer_types",), WINDOW),
    "qwen2, window not in use": Case("Qwen2Model", {}, ("layer_types",), {"sliding_window": 4, "max_window_layers": 1}),
    "qwen2, both ways": Case("Qwen2Model", {"is_causal": False}),
    "qwen2, window, both ways": Case("Qwen2Model", WINDOW | {"is_causal": False}),
    "qwen2, linear": Case(
        "Qwen2Model", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}}
    ),
    "qwen2, yarn": Case("Qwen2Model", {"rope_parameters": YARN, "max_position_embeddings": 64}),
    "qwen2, yarn, older config": Case(
        "Qwen2Model",
        {},
        ("rope_parameters",),
        {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    ),
    "qwen2, yarn, nothing but a factor": Case(
        "Qwen2Model", {}, ("rope_parameters",), {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    ),
    "qwen3": Case("Qwen3Model"),
    "qwen3, language model": Case("Qwen3ForCausalLM"),
    "qwen3, tied words": Case("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3, biases": Case("Qwen3Model", {"attention_bias": True}),
    "qwen3, every head its own keys": Case("Qwen3Model", {"num_key_value_heads": 4}),
    "qwen3, one head of keys": Case("Qwen3Model", {"num_key_value_heads": 1, "head_dim": 20}),
    "qwen3, both ways": Case("Qwen3Model", {"is_causal": False}),
    "qwen3, llama3": Case("Qwen3Model", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 32}}),
    "qwen3, yarn": Case("Qwen3Model", {"rope_parameters": YARN | {"beta_fast": 8, "beta_slow": 2, "truncate": False}}),
    "qwen3, yarn, own stretch": Case("Qwen3Model", {"rope_parameters": YARN | {"attention_factor": 1.7}}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_family_matches_transformers(name: str, tmp_path: Path) -> None:
    assert_states(tmp_path, save_case(tmp_path, CASES[name]))


@pytest.mark.parametrize("name", sorted(ACT2FN.keys() - {"prelu", "xielu"}))  # which have parameters
@pytest.mark.parametrize("model", ["BertModel", "LlamaModel"])
def test_every_activation_without_parameters_matches_transformers(model: str, name: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, model, hidden_act=name)

    assert_states(tmp_path, reference)


@pytest.mark.parametrize("name", ["prelu", "xielu", "softmoid"])
def test_an_activation_with_parameters_is_refused(name: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, "BertModel")
    change_config(tmp_path, hidden_act=name)

    with pytest.raises(LoadError, match=f"unknown activation '{name}'; expected one of: gelu, gelu_10"):
        loaded(tmp_path)


def test_a_modernbert_without_a_window_is_refused_with_the_way_out(tmp_path: Path) -> None:
    save_tiny(tmp_path, "ModernBertModel")
    change_config(tmp_path, local_attention=-1)
    full = {"global_attn_every_n_layers": 1, "layer_types": None}

    with pytest.raises(LoadError, match=r'config.json: local_attention -1 is no window; set hf_overrides=\{"global'):
        loaded(tmp_path)
    assert not any(loaded(tmp_path, hf_overrides=full).description.architecture.backbone.local_layers)


def test_token_types_reach_the_model(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "BertModel")
    types = [[0] * (len(ids) // 2) + [1] * (len(ids) - len(ids) // 2) for ids in SEQUENCES]

    assert_close(
        run(loaded(tmp_path).backbone, types),
        torch.cat(compute_hidden_states(reference, types=types)),
        atol=TOLERANCE,
        rtol=0,
    )


def test_a_sequence_may_fill_every_position(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "RobertaModel")
    model = loaded(tmp_path)
    longest = [list(range(20, 20 + 64))]  # 66 learned positions, of which 2 precede the first one used

    assert model.description.max_length.value == 64
    with torch.inference_mode():
        assert_close(
            model.backbone(pack_sequences(longest)),
            compute_hidden_states(reference, longest)[0],
            atol=TOLERANCE,
            rtol=0,
        )


def test_a_lower_length_limit_leaves_the_angles_as_they_were(tmp_path: Path) -> None:
    reference = save_tiny(
        tmp_path, "Qwen3Model", rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0}
    )

    assert_states(tmp_path, reference, max_model_len=40)


# model, changes of its config, one wrong field of the spec
MISTAKES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "positions from 0": ("RobertaModel", {}, {"position_offset": 0}),
    "positions off by one": ("RobertaModel", {}, {"position_offset": 1}),
    "no window": ("ModernBertModel", {}, {"local_layers": ()}),
    "window too wide": ("ModernBertModel", {}, {"window": 4}),
    "window too narrow": ("ModernBertModel", {}, {"window": 2}),
    "window in the wrong layers": ("ModernBertModel", {}, {"local_layers": (True, False, True, False)}),
    "one speed in all layers": ("ModernBertModel", {}, {"local_rope": None}),
    "wrong activation": ("ModernBertModel", {}, {"activation": "gelu_tanh"}),
    "sees what follows": ("Qwen3Model", {}, {"causal": False}),
    "sees only what came before": ("Qwen3Model", {"is_causal": False}, {"causal": True}),
    "no positions": ("Qwen3Model", {}, {"rope": None}),
    "other norm": ("Qwen3Model", {"rms_norm_eps": 1e-2}, {"norm_eps": 1e-6}),
    "window counts the token itself": ("Qwen2Model", WINDOW, {"window": 4}),
    "window of Mistral too wide": ("MistralModel", {"sliding_window": 4}, {"window": 4}),
    "window both ways too narrow": ("MistralModel", {"sliding_window": 4, "is_causal": False}, {"window": 3}),
    "window of Gemma 2 in the wrong layers": ("Gemma2Model", {}, {"local_layers": (False, True)}),
    "no cap": ("Gemma2Model", {"attn_logit_softcapping": 2.0}, {"softcap": None}),
    "norms as they are stored": ("GemmaModel", {}, {"norm_offset": 0.0}),
    "words as they are stored": ("GemmaModel", {}, {"embed_scale": 1.0}),
    "scale by the size of a head": ("Gemma3TextModel", {}, {"scale": None}),
    "one speed in all layers of Gemma 3": ("Gemma3TextModel", {}, {"local_rope": None}),
    "window of a causal model": ("Gemma3TextModel", {"use_bidirectional_attention": True}, {"window": 5}),
    "no positions of half a head": ("GlmModel", {}, {"rope": None}),
    "residuals in full": ("GraniteModel", FACTORS, {"residual_scale": 1.0}),
    "products in full": ("GraniteModel", FACTORS, {"scale": None}),
    "sees what follows, with learned positions": ("GPT2Model", {}, {"causal": False}),
    "every layer as strong as the first": (
        "GPT2Model",
        {"scale_attn_by_inverse_layer_idx": True},
        {"divides_scale_by_layer": False},
    ),
    "no window of OLMo 3": ("Olmo3Model", {}, {"local_layers": ()}),
    "relative positions with another max_distance": (
        "MPNetModel",
        {},
        {"relative_bias": RelativeBiasSpec(num_buckets=32, max_distance=20)},
    ),
    "positions of MPNet from 0": ("MPNetModel", {}, {"position_offset": 0}),
    "scaled scores": ("T5EncoderModel", {}, {"scale": None}),
    "another max_distance": (
        "T5EncoderModel",
        {},
        {"relative_bias": RelativeBiasSpec(num_buckets=8, max_distance=40)},
    ),
    "exact gelu in the gate": ("T5EncoderModel", {"feed_forward_proj": "gated-gelu"}, {"activation": "gelu"}),
    "exact gelu": ("AlbertModel", {}, {"activation": "gelu"}),
}


@pytest.mark.usefixtures("plain_linears")
@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_the_comparison_detects_a_wrong_spec(name: str, tmp_path: Path) -> None:
    model_name, changes, mistake = MISTAKES[name]
    reference = save_tiny(tmp_path, model_name, **changes)
    model = loaded(tmp_path)

    right, wrong = run(rebuilt(model)), run(rebuilt(model, **mistake))

    assert_close(right, torch.cat(compute_hidden_states(reference)), atol=TOLERANCE, rtol=0)
    assert (wrong - right).abs().max() > 5 * TOLERANCE


@pytest.mark.parametrize("name", ["BertModel", "ModernBertModel", "Qwen3Model"])
def test_bfloat16_is_as_close_to_float32_as_in_transformers(name: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, name)
    model = loaded(tmp_path, dtype="bfloat16")

    exact = torch.cat(compute_hidden_states(reference))
    actual = cosine_similarity(run(model.backbone).float(), exact)
    if model.description.dtype.value == "bfloat16":
        expected = cosine_similarity(torch.cat(compute_hidden_states(reference.bfloat16())).float(), exact)
        assert actual.mean() > max(0.999, expected.mean() - 1e-4)
    else:  # a CPU without bfloat16 units uses float32
        assert actual.mean() > 0.99999
    assert actual.min() > 0.98  # single tokens of tiny models may differ more


CLOSE = ("DistilBertModel", "MPNetModel", "AlbertModel", "DebertaModel", "DebertaV2Model", "T5EncoderModel")
ROTARY = ("NomicBertModel", "GteModel", "JinaEmbeddingsV3Model", "EuroBertModel")
SELECTIVE = ("Lfm2Model", "JambaModel", "OpenAIPrivacyFilterModel")


@pytest.mark.parametrize("name", [*CLOSE, *ROTARY, *SELECTIVE])
def test_bfloat16_stays_close_to_float32(name: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, name)

    actual = run(loaded(tmp_path, dtype="bfloat16").backbone).float()

    similarity = cosine_similarity(actual, torch.cat(compute_hidden_states(reference)))
    # rounding may select another expert for a few tokens
    assert (similarity.median() if name in SELECTIVE else similarity.min()) > 0.99


def test_rope_scaling_in_hf_overrides_takes_precedence(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen2Model")
    plain = run(loaded(tmp_path).backbone)
    change_config(tmp_path, rope_parameters=LINEAR)
    written = run(loaded(tmp_path).backbone)
    change_config(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 500.0})

    overridden = run(loaded(tmp_path, hf_overrides={"rope_scaling": {"rope_type": "linear", "factor": 3.0}}).backbone)

    assert_close(overridden, written, atol=TOLERANCE, rtol=0)
    assert not torch.allclose(overridden, plain, atol=1e-2)
