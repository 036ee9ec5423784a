"""Settings of KaLM-Reranker-V1 in the file of its Sentence Transformers module, whose code is never run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.models.architecture import HFConfig

KALM_FILE = "kalm_cross_encoder_config.json"
LENGTH_KEYS = ("query_max_length", "document_max_length", "encoder_chunk_size")
INSTRUCTION_KEY = "system_instruction"


def with_kalm_settings(checkpoint: Checkpoint, config: HFConfig) -> HFConfig:
    """Return the config with the settings of the module's file; hf_overrides sets the same keys in config.json."""
    if config.get("model_type") != "t5gemma2":
        return config
    stored = checkpoint.read_json_object(KALM_FILE)
    settings = {key: stored[key] for key in (*LENGTH_KEYS, INSTRUCTION_KEY) if key in stored}
    values = {**settings, **config.values}
    for key in LENGTH_KEYS:
        value = values.get(key, 1)
        is_length = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not is_length and not (key == "encoder_chunk_size" and value is None):
            file = config.source if key in config.values else checkpoint.folder / KALM_FILE
            raise LoadError(f"{file}: {key} is {value!r}; expected a number of tokens")
    return HFConfig(values, config.source)


def read_template_variables(config: HFConfig, default_instruction: str | None) -> Mapping[str, Any]:
    """Return the variables of the score template; a default prompt of Sentence Transformers is the instruction."""
    written = {INSTRUCTION_KEY: config.get(INSTRUCTION_KEY), "default_instruction": default_instruction}
    return {name: text for name, text in written.items() if text is not None}
