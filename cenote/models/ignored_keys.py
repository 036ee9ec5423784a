"""Keys of config.json that the Transformers class of a model type ignores, although related families apply them."""

from __future__ import annotations

from cenote.models.architecture import HFConfig

PARTIAL_ROTARY = "partial_rotary_factor"
# of families that rotate a part of each head, or write their rope by other names
ROTARY_KEYS = (
    PARTIAL_ROTARY,
    "rotary_emb_dim",
    "rotary_emb_fraction",
    "rotary_emb_base",
    "rotary_emb_interleaved",
)
WINDOW_KEYS = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
IGNORED_KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "granite", "olmo", "olmo2", "eurobert"), ROTARY_KEYS + WINDOW_KEYS),
    "gemma": (*ROTARY_KEYS, *WINDOW_KEYS, "hidden_activation"),
    # their window, if any, is read by their own rules
    **dict.fromkeys(("mistral", "ministral", "cwm", "olmo3", "lfm2"), ROTARY_KEYS),
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma2", "gemma3_text"), ROTARY_KEYS),
    # the window is in all layers
    **dict.fromkeys(("mixtral", "ministral3"), (*ROTARY_KEYS, "layer_types")),
    "phi3": (*ROTARY_KEYS[1:], "layer_types"),
    "glm": (*ROTARY_KEYS[1:], *WINDOW_KEYS),
}


def without_ignored_keys(config: HFConfig) -> HFConfig:
    """Return the config without keys that Transformers ignores in its model type; unknown types are unchanged."""
    ignored = IGNORED_KEYS.get(str(config.get("model_type")))
    if ignored is None:
        return config
    values = {key: value for key, value in config.values.items() if key not in ignored}
    if PARTIAL_ROTARY in ignored:
        for key in ("rope_parameters", "rope_scaling"):
            if isinstance(values.get(key), dict):
                values[key] = _without_partial_rotary(values[key])
    return HFConfig(values, config.source)


def _without_partial_rotary(rope: dict[str, object]) -> dict[str, object]:
    """Return rope parameters, flat or by layer type, without the key."""
    return {
        key: _without_partial_rotary(value) if isinstance(value, dict) else value
        for key, value in rope.items()
        if key != PARTIAL_ROTARY
    }
