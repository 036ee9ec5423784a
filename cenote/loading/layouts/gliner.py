"""GLiNER checkpoints: gliner_config.json describes the model; some take config and tokenizer of their base model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cenote.config.engine import EngineConfig, HubAccess
from cenote.errors import LoadError
from cenote.loading.adapter_base import find_model_folder
from cenote.loading.checkpoint import GLINER_CONFIG, Checkpoint, find_checkpoint
from cenote.loading.hf_config import read_config
from cenote.loading.layouts.layout import Layout, read_files
from cenote.loading.weights import has_weights, open_weights
from cenote.models.gliner import ENCODER_PREFIX

ARCHITECTURE = "GLiNER"
ALTERNATIVE = "use a model such as urchade/gliner_medium-v2.1, or the gliner package"
BASE_KEY = "model_name"
EMBEDDINGS = f"{ENCODER_PREFIX}embeddings.word_embeddings.weight"
TOKENIZER_FILES = ("tokenizer.json", "spm.model")
# keys that change the model, and the values that are supported; the first one is the default
SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "span_mode": ("markerV0", "token_level"),
    "subtoken_pooling": ("first",),
    "words_splitter_type": ("whitespace",),
    "labels_encoder": (None,),
    "labels_decoder": (None,),
    "relations_layer": (None,),
    "span_encoder_config": (None,),
    "post_fusion_schema": ("", None),
    "fuse_layers": (False, None),
    "represent_spans": (False, None),
    "precomputed_prompts_mode": (None, False),
}


def read_gliner(checkpoint: Checkpoint, options: EngineConfig, needs_weights: bool) -> Layout | None:
    """Read the config of the encoder with gliner_config.json as `gliner`."""
    if checkpoint.find_file(GLINER_CONFIG) is None:
        return None
    source, overrides = checkpoint.folder / GLINER_CONFIG, options.hf_overrides
    settings = checkpoint.read_json_object(GLINER_CONFIG)
    check_supported(source, settings, SUPPORTED, ALTERNATIVE)
    if isinstance(overrides, Mapping) and BASE_KEY in overrides:
        settings = {**settings, BASE_KEY: overrides[BASE_KEY]}
    encoder = settings.get("encoder_config")
    if encoder is None:
        encoder = _find_base_model(checkpoint, settings, options.hub).read_json_object("config.json")
    values = {"model_type": "deberta-v2", **encoder, "architectures": [ARCHITECTURE], "gliner": settings}
    values |= check_encoder(checkpoint, values, source, EMBEDDINGS, ALTERNATIVE)
    config = read_config(checkpoint, overrides, values, GLINER_CONFIG)
    has_tokenizer = any(checkpoint.find_file(file) is not None for file in TOKENIZER_FILES)
    return Layout(
        checkpoint=checkpoint,
        config=config,
        files=read_files(checkpoint, config),
        find_tokenizer=None if has_tokenizer else partial(_find_base_model, checkpoint, config.gliner, options.hub),
    )


def _find_base_model(checkpoint: Checkpoint, settings: Mapping[str, Any], hub: HubAccess) -> Checkpoint:
    """Return the encoder that the model was trained from, with its configuration and tokenizer files only."""
    source, name = checkpoint.folder / GLINER_CONFIG, settings.get(BASE_KEY)
    if not isinstance(name, str) or not name:
        raise LoadError(f'{source} has no {BASE_KEY}; pass the folder with hf_overrides={{"{BASE_KEY}": "FOLDER"}}')
    try:
        return find_checkpoint(find_model_folder(checkpoint, name), hub=hub, needs_weights=False)
    except LoadError as error:
        raise LoadError(
            f"{source}: config and tokenizer are those of {name!r}, which was not found ({error.message}); "
            f'pass the folder of {name} with hf_overrides={{"{BASE_KEY}": "FOLDER"}}'
        ) from error


def check_supported(
    source: Path, settings: Mapping[str, Any], supported: Mapping[str, tuple[Any, ...]], alternative: str
) -> None:
    """Raise LoadError for a setting with a value that is not listed; the first value is the default."""
    for key, values in supported.items():
        if (value := settings.get(key, values[0])) not in values:
            known = " or ".join(repr(choice) for choice in values if choice is not None or len(values) == 1)
            raise LoadError(f"{source}: {key} {value!r} is not supported, only {known}; {alternative}")


def check_encoder(
    checkpoint: Checkpoint, values: Mapping[str, Any], source: Path, table: str, alternative: str
) -> dict[str, int]:
    """Return the rows of the embedding table, which has more tokens than the base model; {} without weights."""
    if (kind := values["model_type"]) != "deberta-v2":
        raise LoadError(f"{source}: the encoder {kind} is not supported, only deberta-v2; {alternative}")
    if not has_weights(checkpoint):
        return {}
    weights = open_weights(checkpoint)
    return {"vocab_size": weights.shape(table)[0]} if table in weights else {}
