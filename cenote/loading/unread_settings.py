"""Settings of published files that change results and are not applied: each is a doubt with its way out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cenote.loading.checkpoint import Checkpoint
from cenote.loading.embedding_output import EMBEDDING_NAME
from cenote.loading.encoder_args import (
    APPLIED_TEXT_ARGS,
    APPLIED_TOKENIZER_ARGS,
    MODEL_ARGS,
    TOKENIZER_ARGS,
    read_encoder_args,
    read_text_args,
)

APPLIED_OUTPUTS = (None, "last_hidden_state", "logits")
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
    # an encoder of texts and images returns an embedding by itself, without a pooling of hidden states
    is_embedding = values.get("module_output_name") == EMBEDDING_NAME and "image" in (modality or ())
    if output not in APPLIED_OUTPUTS and not is_embedding:
        doubts.append(f"{file}: method_output_name {output!r} is not applied: the last hidden states are used")
    for name, value in read_text_args(checkpoint, encoder_file).items():
        if name not in APPLIED_TEXT_ARGS:
            doubts.append(f"{file}: processing_kwargs.text {name}={value!r} is not applied; set it in each request")
    tokenizer_args = read_encoder_args(checkpoint, encoder_file, TOKENIZER_ARGS)
    if names := [name for name in tokenizer_args if name not in APPLIED_TOKENIZER_ARGS]:
        doubts.append(
            f"{file}: {', '.join(names)} of {TOKENIZER_ARGS[0]} are not applied; set them in tokenizer_config.json"
        )
    if names := list(read_encoder_args(checkpoint, encoder_file, MODEL_ARGS)):
        doubts.append(f"{file}: {', '.join(names)} of {MODEL_ARGS[0]} are not applied; set them with hf_overrides")
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


def _get(mapping: Any, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, Mapping) else None
