"""A key missing in config.json has the default of Transformers, or is required."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from cenote.errors import LoadError
from cenote.models.architecture import HFConfig, MissingKey
from cenote.models.registry import find_architecture
from tests.models.parity import assert_states, loaded
from tests.tiny import SIZES, change_config, save_tiny

# Transformers class, keys that are left out, and settings that differ from the tiny model
LEFT_OUT: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("BertModel", ("type_vocab_size", "layer_norm_eps", "hidden_act"), {}),
    ("RobertaModel", ("type_vocab_size", "pad_token_id"), {}),
    ("XLMRobertaModel", ("type_vocab_size",), {}),
    ("CamembertModel", ("type_vocab_size",), {}),
    ("AlbertModel", ("type_vocab_size", "embedding_size", "hidden_act"), {"embedding_size": 128}),
    ("ElectraModel", ("type_vocab_size", "num_attention_heads"), {}),
    ("NomicBertModel", ("type_vocab_size", "rope_parameters"), {}),
    ("JinaEmbeddingsV3Model", ("type_vocab_size", "num_attention_heads", "rope_parameters", "layer_norm_eps"), {}),
    ("GteModel", ("type_vocab_size", "rope_parameters"), {"type_vocab_size": 1}),
    ("EuroBertModel", ("rms_norm_eps", "rope_parameters"), {}),
    ("ModernBertModel", ("layer_types", "local_attention", "norm_eps"), {}),
    ("MT5EncoderModel", ("feed_forward_proj", "d_kv"), {"d_kv": 64}),
    ("Phi3Model", ("rms_norm_eps", "rope_parameters", "sliding_window"), {}),
    ("CwmModel", ("rope_parameters", "rms_norm_eps"), {}),
    ("CwmModel", ("sliding_window", "layer_types"), {"num_hidden_layers": 5}),
    ("MinistralModel", ("sliding_window",), {"head_dim": 8}),
    ("Ministral3Model", ("rope_parameters", "rms_norm_eps", "sliding_window"), {}),
    ("MistralModel", ("num_key_value_heads", "sliding_window"), {"num_attention_heads": 8, "num_key_value_heads": 8}),
    ("GlmModel", ("num_key_value_heads", "rms_norm_eps", "rope_parameters", "attention_bias"), {}),
    ("Qwen3Model", ("head_dim",), {"head_dim": 128}),
    ("GemmaModel", ("rope_parameters", "hidden_act"), {}),
    ("Gemma2Model", ("sliding_window", "layer_types"), {}),
    ("Gemma2Model", ("attn_logit_softcapping", "query_pre_attn_scalar"), {}),
    ("Gemma3TextModel", ("sliding_window", "layer_types", "sliding_window_pattern"), {}),
    ("Olmo2Model", ("rms_norm_eps",), {}),
    ("Olmo3Model", ("sliding_window", "layer_types", "rms_norm_eps", "rope_parameters"), {}),
    ("MixtralModel", ("num_experts_per_tok", "rms_norm_eps", "rope_parameters"), {}),
    ("Qwen2MoeModel", ("num_experts_per_tok", "intermediate_size"), {}),
    ("Qwen3MoeModel", ("intermediate_size", "norm_topk_prob"), {}),
    ("DeepseekV3Model", ("routed_scaling_factor", "n_shared_experts"), {}),
    ("DeepseekV3Model", ("topk_group", "num_experts_per_tok"), {}),
    ("OpenAIPrivacyFilterModel", ("rope_parameters", "num_key_value_heads"), {}),
    ("OpenAIPrivacyFilterModel", ("sliding_window", "num_experts_per_tok"), {}),
]


@pytest.mark.parametrize(
    ("model", "keys", "changes"), LEFT_OUT, ids=lambda x: "+".join(x) if type(x) is tuple else None
)
def test_a_missing_key_means_what_transformers_takes_it_for(
    model: str, keys: tuple[str, ...], changes: dict[str, Any], tmp_path: Path
) -> None:
    save_tiny(tmp_path, model, **changes)
    change_config(tmp_path, drop=keys)

    assert_states(tmp_path, getattr(transformers, model).from_pretrained(tmp_path).eval())


# windows longer than any test input
@pytest.mark.parametrize(
    ("model", "values", "window"),
    [
        ("MistralModel", {}, 4095),
        ("MistralModel", {"sliding_window": None}, None),
        ("MinistralModel", {}, 4095),
        ("MixtralModel", {}, None),
        ("Phi3Model", {}, None),
        ("Qwen2Model", {"use_sliding_window": True, "max_window_layers": 1}, 4095),
        ("Qwen2Model", {}, None),
        ("Qwen2MoeModel", {"use_sliding_window": True}, 4095),
        ("Qwen3MoeModel", {"use_sliding_window": True}, 4095),
        ("Gemma2Model", {}, 4095),
        ("Gemma3TextModel", {"use_bidirectional_attention": True}, 2048),
        ("Olmo3Model", {}, 4095),
        ("CwmModel", {}, 8191),
    ],
)
def test_a_missing_window_size_has_the_default_of_transformers(
    model: str, values: dict[str, Any], window: int | None
) -> None:
    kind = getattr(transformers, model).config_class.model_type
    written = {key: value for key, value in SIZES[kind].items() if key != "sliding_window"} | values

    spec = find_architecture([model]).family(HFConfig(written)).backbone

    assert (spec.window if any(spec.local_layers) else None) == window


@pytest.mark.parametrize("key", ["num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size"])
def test_a_missing_size_is_an_error(key: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, "LlamaModel")
    change_config(tmp_path, drop=(key,))

    with pytest.raises(MissingKey, match=key):
        loaded(tmp_path)


def test_layers_with_a_window_of_no_known_length_are_refused() -> None:
    listed = {"layer_types": ["full_attention", "sliding_attention"]}

    with pytest.raises(LoadError, match="sliding_window"):
        find_architecture(["LlamaModel"]).family(HFConfig(SIZES["llama"] | listed))
