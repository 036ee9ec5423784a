"""Settings of published files that change results and are not applied: each is a doubt with its way out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cenote.loading.checkpoint import Checkpoint
from cenote.models.architecture import Architecture, HFConfig

# encoders of Transformers that are causal with is_decoder
DECODER_SWITCH_TYPES = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
APPLIED_OUTPUTS = (None, "last_hidden_state", "logits")
# arguments of Transformers in the encoder's file that do not change results
HARMLESS_ARGS = ("torch_dtype", "dtype", "attn_implementation", "trust_remote_code", "use_fast", "device_map")
ARGS_ADVICE = {
    "config_args": "set them with hf_overrides",
    "model_kwargs": "set them with hf_overrides",
    "tokenizer_args": "set them in tokenizer_config.json",
}
# of a cross-encoder
MODULE_SETTINGS = ("prompts", "default_prompt_name", "activation_fn")


def find_unread_settings(checkpoint: Checkpoint, encoder_file: str | None) -> list[str]:
    """Return the doubts about the file of the encoder of a Sentence Transformers model."""
    doubts: list[str] = []
    if encoder_file is None:
        return doubts
    values, file = checkpoint.read_json_object(encoder_file), checkpoint.folder / encoder_file
    modality = values.get("modality_config")
    output = _get(_get(modality, "text"), "method_output_name")
    if output not in APPLIED_OUTPUTS and not _is_whole_embedding(values):
        doubts.append(f"{file}: method_output_name {output!r} is not applied: the last hidden states are used")
    for name, value in (_get(values.get("processing_kwargs"), "text") or {}).items():
        doubts.append(f"{file}: processing_kwargs.text {name}={value!r} is not applied; set it in each request")
    for key, advice in ARGS_ADVICE.items():
        if names := [name for name in values.get(key) or {} if name not in HARMLESS_ARGS]:
            doubts.append(f"{file}: {', '.join(names)} of {key} are not applied; {advice}")
    return doubts


def skip_cross_encoder_settings(file: Path, settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings without those that need modules.json in Sentence Transformers, and a doubt if it had any."""
    kept = {name: value for name, value in settings.items() if name not in MODULE_SETTINGS}
    names = [name for name in MODULE_SETTINGS if settings.get(name)]
    if not names:
        return kept, []
    return kept, [
        f"{file}: {', '.join(names)} are not applied: Sentence Transformers reads them only with a modules.json, which "
        "is missing; download it, or set default_prompt and pooler_config use_activation"
    ]


def find_decoder_doubt(config: HFConfig, architecture: Architecture) -> str | None:
    """Return a doubt about an encoder whose config.json makes it a decoder."""
    is_switched = config.get("is_decoder", False) is True and config.get("model_type") in DECODER_SWITCH_TYPES
    if not is_switched or architecture.backbone.causal:
        return None
    return (
        f"{config.source}: is_decoder is true, but attention is bidirectional here; it is causal in Transformers; "
        'if that is right, set hf_overrides={"is_decoder": false}'
    )


def _is_whole_embedding(values: Mapping[str, Any]) -> bool:
    """Whether the encoder is one that returns an embedding by itself, such as CLIP."""
    return (
        values.get("module_output_name") == "sentence_embedding"
        and values.get("modality_config") is not None
        and ("image" in values["modality_config"])
    )


def _get(mapping: Any, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, Mapping) else None
