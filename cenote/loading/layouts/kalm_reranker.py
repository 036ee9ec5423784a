"""Settings of KaLM-Reranker-V1 in the file of its Sentence Transformers module, whose code is never run."""

from __future__ import annotations

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.hf_config import read_config
from cenote.loading.layouts.layout import Layout, read_files
from cenote.loading.module_list import locate_encoder
from cenote.models.architecture import HFConfig
from cenote.models.reranker_recipes import KALM_FILE

MODEL_TYPE = "t5gemma2"
LENGTH_KEYS = ("query_max_length", "document_max_length", "encoder_chunk_size")


def read_kalm_reranker(checkpoint: Checkpoint, options: EngineConfig, needs_weights: bool) -> Layout | None:
    """Read config.json with the settings of the module's file; hf_overrides sets the same keys in config.json."""
    checkpoint = locate_encoder(checkpoint)
    if checkpoint.read_json_object("config.json").get("model_type") != MODEL_TYPE:
        return None
    config, stored = read_config(checkpoint, options.hf_overrides), checkpoint.read_json_object(KALM_FILE)
    settings = {key: stored[key] for key in (*LENGTH_KEYS, "system_instruction") if key in stored}
    values = {**settings, **config.values}
    for key in LENGTH_KEYS:
        value = values.get(key, 1)
        is_length = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not is_length and not (key == "encoder_chunk_size" and value is None):
            file = config.source if key in config.values else checkpoint.folder / KALM_FILE
            raise LoadError(f"{file}: {key} is {value!r}; expected a number of tokens")
    config = HFConfig(values, config.source)
    return Layout(checkpoint=checkpoint, config=config, files=read_files(checkpoint, config))
