"""Keys of config.json that the Transformers class of a model type ignores do not change outputs here either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoModel

from cenote.errors import LoadError
from cenote.models.ignored_keys import IGNORED_KEYS, PARTIAL_ROTARY
from tests.models.parity import TOLERANCE, assert_states, loaded, run
from tests.tiny import change_config, save_tiny

MODELS = {
    "llama": "LlamaModel",
    "granite": "GraniteModel",
    "olmo": "OlmoModel",
    "olmo2": "Olmo2Model",
    "olmo3": "Olmo3Model",
    "eurobert": "EuroBertModel",
    "gemma": "GemmaModel",
    "gemma2": "Gemma2Model",
    "gemma3_text": "Gemma3TextModel",
    "mistral": "MistralModel",
    "ministral": "MinistralModel",
    "ministral3": "Ministral3Model",
    "mixtral": "MixtralModel",
    "cwm": "CwmModel",
    "lfm2": "Lfm2Model",
    "qwen2": "Qwen2Model",
    "qwen3": "Qwen3Model",
    "qwen2_moe": "Qwen2MoeModel",
    "qwen3_moe": "Qwen3MoeModel",
    "phi3": "Phi3Model",
    "glm": "GlmModel",
}
OWN_SIZES = {"ministral": {"head_dim": 8}}
# values with which each key changes outputs, where it is read
VALUES: dict[str, Any] = {
    PARTIAL_ROTARY: 0.5,
    "rotary_emb_dim": 4,
    "rotary_emb_fraction": 0.5,
    "rotary_emb_base": 50.0,
    "rotary_emb_interleaved": True,
    "sliding_window": 4,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "hidden_activation": "relu",
}
# Transformers fails on the factor, since the frequencies of yarn and llama3 do read it
FAILS_ON_PARTIAL = ("ministral3", "cwm")


def matches_transformers(folder: Path) -> None:
    assert_states(folder, AutoModel.from_pretrained(folder).eval())


def values_of(kind: str, folder: Path) -> dict[str, Any]:
    num_layers = transformers.AutoConfig.from_pretrained(folder).num_hidden_layers
    values = VALUES | {"layer_types": ["full_attention"] + ["sliding_attention"] * (num_layers - 1)}
    ignored = {key: values[key] for key in IGNORED_KEYS[kind]}
    if "layer_types" in ignored:  # without a window, the cache of Transformers fails
        ignored["sliding_window"] = values["sliding_window"]
    return {key: value for key, value in ignored.items() if kind not in FAILS_ON_PARTIAL or key != PARTIAL_ROTARY}


@pytest.mark.parametrize("kind", IGNORED_KEYS)
def test_keys_that_transformers_ignores_do_nothing(kind: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, MODELS[kind], **OWN_SIZES.get(kind, {}))
    change_config(tmp_path, **values_of(kind, tmp_path))

    matches_transformers(tmp_path)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "eurobert"])
def test_a_factor_among_the_rope_parameters_does_nothing(kind: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, MODELS[kind])
    rope = {"rope_type": "default", "rope_theta": 500.0, PARTIAL_ROTARY: 0.5}
    change_config(tmp_path, rope_parameters=rope)

    matches_transformers(tmp_path)


@pytest.mark.parametrize("kind", ["mistral", "phi3", "mixtral", "gemma2", "olmo3", "cwm"])
def test_a_window_is_applied_where_transformers_reads_it(kind: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, MODELS[kind])
    full = run(loaded(tmp_path, hf_overrides={"sliding_window": 60}).backbone)
    change_config(tmp_path, sliding_window=3)

    matches_transformers(tmp_path)
    if kind != "cwm":  # whose first two layers have no window in layer_types as saved
        assert (run(loaded(tmp_path).backbone) - full).abs().max() > 5 * TOLERANCE


def test_layer_types_of_mistral_make_it_a_ministral(tmp_path: Path) -> None:
    save_tiny(tmp_path, "MistralModel")
    change_config(tmp_path, sliding_window=3, layer_types=["sliding_attention", "full_attention"])

    matches_transformers(tmp_path)


@pytest.mark.parametrize("model", ["Lfm2Model", "JambaModel", "LlamaModel"])
def test_is_causal_is_of_the_attention_only(model: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, model)
    change_config(tmp_path, is_causal=False)

    matches_transformers(tmp_path)


def test_gemma2_stays_causal_and_says_so(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Gemma2Model")
    change_config(tmp_path, use_bidirectional_attention=True)

    matches_transformers(tmp_path)
    (doubt,) = loaded(tmp_path).description.doubts
    assert "use_bidirectional_attention is not applied, as in Transformers" in doubt
    overridden = loaded(tmp_path, hf_overrides={"is_causal": False}).description
    assert overridden.doubts == () and not overridden.architecture.backbone.causal


def test_gemma_is_bidirectional_and_says_what_transformers_does_with_padding(tmp_path: Path) -> None:
    save_tiny(tmp_path, "GemmaModel")
    change_config(tmp_path, use_bidirectional_attention=True)

    matches_transformers(tmp_path)  # one sequence at a time: no padding
    (doubt,) = loaded(tmp_path).description.doubts
    assert "Transformers ignores it for padded batches" in doubt


def test_jamba_with_another_activation_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "JambaModel")
    change_config(tmp_path, hidden_act="relu")

    with pytest.raises(LoadError, match="config.json: hidden_act 'relu' is not supported in Jamba"):
        loaded(tmp_path)
