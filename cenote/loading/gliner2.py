"""GLiNER2 checkpoints: config.json describes the heads, encoder_config/config.json the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from cenote.errors import LoadError
from cenote.layers.counted_span_head import COUNTING_LAYERS
from cenote.loading.adapter_base import WEIGHT_FILES
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.weights import open_weights
from cenote.models.architecture import HFConfig
from cenote.models.gliner2 import ENCODER_PREFIX, PROMPT_TOKENS

ARCHITECTURE = "GLiNER2"
MODEL_TYPE = "extractor"
ENCODER_CONFIG = "encoder_config/config.json"
EMBEDDINGS = f"{ENCODER_PREFIX}embeddings.word_embeddings.weight"
ALTERNATIVE = "use a model such as fastino/gliner2-base-v1 or urchade/gliner_medium-v2.1, or the gliner2 package"
# keys that change the model, and the values that are supported; the first one is the default
SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "architecture": ("span", None),
    "token_pooling": ("first",),
    "counting_layer": tuple(COUNTING_LAYERS),
}


def read_gliner2_config(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return the config of the encoder with config.json as `gliner`; None for other models."""
    settings = checkpoint.read_json_object("config.json")
    if settings.get("model_type") != MODEL_TYPE:
        return None
    source = checkpoint.folder / "config.json"
    for key, supported in SUPPORTED.items():
        if (value := settings.get(key, supported[0])) not in supported:
            known = " or ".join(repr(choice) for choice in supported if choice is not None)
            what = "GLiNER2.5 (architecture 'boundary')" if value == "boundary" else f"{key} {value!r}"
            raise LoadError(f"{source}: {what} is not supported, only {known}; {ALTERNATIVE}")
    checkpoint.require_file(ENCODER_CONFIG)
    encoder = checkpoint.read_json_object(ENCODER_CONFIG)
    if (kind := encoder.get("model_type")) != "deberta-v2":
        raise LoadError(f"{source}: the encoder {kind} is not supported, only deberta-v2; {ALTERNATIVE}")
    # newer versions of the gliner2 package write the settings of the span head in a table of their own
    heads = {**settings, **settings.get("span_head", {})}
    values = {**encoder, "architectures": [ARCHITECTURE], "gliner": heads}
    if any(checkpoint.find_file(file) is not None for file in WEIGHT_FILES):
        weights = open_weights(checkpoint)
        if EMBEDDINGS in weights:  # with rows for the tokens of the prompt
            values["vocab_size"] = weights.get(EMBEDDINGS).shape[0]
    return values


def add_schema_tokens(tokenizer: Tokenizer, config: HFConfig) -> None:
    """Add the tokens of the prompt that the files leave to the gliner2 package; check that they have embeddings."""
    missing = [token for token in PROMPT_TOKENS if tokenizer.token_to_id(token) is None]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in missing])
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    last = max(PROMPT_TOKENS, key=vocabulary.__getitem__)
    if vocabulary[last] >= config.vocab_size:
        raise LoadError(
            f"{config.source}: the tokenizer gives {last!r} the id {vocabulary[last]}, the checkpoint has "
            f"{config.vocab_size} embeddings; set the tokenizer option to that of the model"
        )
