"""GLiNER checkpoints: gliner_config.json describes the model; some take config and tokenizer of their base model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from cenote.config.engine import HubAccess
from cenote.errors import LoadError
from cenote.loading.adapter_base import WEIGHT_FILES, find_model_folder
from cenote.loading.checkpoint import DEFAULT_HUB, GLINER_CONFIG, Checkpoint, find_checkpoint
from cenote.loading.weights import open_weights
from cenote.models.architecture import HFConfig
from cenote.models.gliner import ENCODER_PREFIX
from cenote.protocol.spans import SpanHeadSpec

ARCHITECTURE = "GLiNER"
BASE_KEY = "model_name"
EMBEDDINGS = f"{ENCODER_PREFIX}embeddings.word_embeddings.weight"
TOKENIZER_FILES = ("tokenizer.json", "spm.model")
UNUSED_TOKEN = "[FLERT]"  # added before the two tokens of the prompt
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


def is_gliner(checkpoint: Checkpoint) -> bool:
    return checkpoint.find_file(GLINER_CONFIG) is not None


def read_gliner_config(checkpoint: Checkpoint, overrides: Any, hub: HubAccess) -> dict[str, Any] | None:
    """Return the config of the encoder with gliner_config.json as `gliner`; None for other models."""
    if not is_gliner(checkpoint):
        return None
    source = checkpoint.folder / GLINER_CONFIG
    settings = checkpoint.read_json_object(GLINER_CONFIG)
    for key, supported in SUPPORTED.items():
        if (value := settings.get(key, supported[0])) not in supported:
            known = " or ".join(repr(choice) for choice in supported if choice is not None or len(supported) == 1)
            raise LoadError(
                f"{source}: {key} {value!r} is not supported, only {known}; use a model such as "
                "urchade/gliner_medium-v2.1, or the gliner package"
            )
    if isinstance(overrides, Mapping) and BASE_KEY in overrides:
        settings = {**settings, BASE_KEY: overrides[BASE_KEY]}
    encoder = settings.get("encoder_config")
    if encoder is None:
        encoder = find_base_model(checkpoint, settings, hub).read_json_object("config.json")
    kind = encoder.get("model_type", "deberta-v2")
    if kind != "deberta-v2":
        raise LoadError(
            f"{source}: the encoder {kind} is not supported, only deberta-v2; use a model such as "
            "urchade/gliner_medium-v2.1, or the gliner package"
        )
    values = {**encoder, "architectures": [ARCHITECTURE], "model_type": kind, "gliner": settings}
    rows = _read_vocab_size(checkpoint)
    return values if rows is None else {**values, "vocab_size": rows}


def find_base_model(checkpoint: Checkpoint, settings: Mapping[str, Any], hub: HubAccess) -> Checkpoint:
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


def find_tokenizer_checkpoint(checkpoint: Checkpoint, config: HFConfig, hub: HubAccess = DEFAULT_HUB) -> Checkpoint:
    """Return the checkpoint with the tokenizer files: of GLiNER without its own, the base model."""
    if not is_gliner(checkpoint) or any(checkpoint.find_file(file) is not None for file in TOKENIZER_FILES):
        return checkpoint
    return find_base_model(checkpoint, config.gliner, hub)


def add_prompt_tokens(tokenizer: Tokenizer, config: HFConfig, spec: SpanHeadSpec) -> None:
    """Add the tokens of the prompt if the files leave this to the gliner package; check that they have embeddings."""
    settings, tokens = HFConfig(config.gliner, config.source), (spec.prompt.label_token, spec.prompt.after_labels[-1])
    expected = settings.get("class_token_index", -1)
    if expected == -1 or settings.get("vocab_size", -1) == -1:
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (UNUSED_TOKEN, *tokens)])
        if (size := tokenizer.get_vocab_size(with_added_tokens=True)) != config.vocab_size:
            raise LoadError(
                f"{config.source}: the tokenizer has {size} tokens with those of the prompt, the checkpoint has "
                f"{config.vocab_size} embeddings; set the tokenizer option to that of the model's encoder"
            )
    for text, row in ((tokens[0], expected), (tokens[1], -1)):
        found = tokenizer.token_to_id(text)
        if found is None or found >= config.vocab_size or row not in (-1, found):
            raise LoadError(
                f"{config.source}: the tokenizer gives {text!r} the id {found}, expected "
                f"{row if row != -1 else f'one below {config.vocab_size}'}; set the tokenizer option"
            )


def _read_vocab_size(checkpoint: Checkpoint) -> int | None:
    """Return the rows of the embedding table, which has more tokens than the base model; None without weights."""
    if all(checkpoint.find_file(file) is None for file in WEIGHT_FILES):
        return None
    weights = open_weights(checkpoint)
    return weights.get(EMBEDDINGS).shape[0] if EMBEDDINGS in weights else None
