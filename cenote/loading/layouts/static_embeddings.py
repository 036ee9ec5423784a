"""Static embeddings have no config.json, or one without sizes: derive it from the shapes of the weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.hf_config import read_config
from cenote.loading.layouts.layout import Layout, read_files
from cenote.loading.module_list import STATIC_KINDS, locate_encoder, read_module_list
from cenote.loading.tokenizer_files import read_tokenizer_max_length
from cenote.loading.weights import has_weights, open_weights

MODEL2VEC, SPARSE = "StaticModel", "SparseStaticEmbedding"
# keys of the derived config: what its sizes were read from, and which could not be read
SIZE_SOURCE, UNKNOWN_SIZES = "size_source", "unknown_sizes"
# names of the table of embeddings: of StaticEmbedding, of model2vec, of SparseStaticEmbedding
TABLE_NAMES = ("embedding.weight", "embeddings", "weight")
# the embeddings of all tokens of a text are in memory at once; Sentence Transformers has no limit
NO_LIMIT = Sourced(131072, "limit for static embeddings")
TRUNCATION_LENGTH = re.compile(r'"truncation":\s*{[^}]*"max_length":\s*(\d+)')
TOKENIZER_HEAD_CHARS = 4096  # of tokenizer.json, which begins with the truncation


def read_static_embeddings(checkpoint: Checkpoint, options: EngineConfig, needs_weights: bool) -> Layout | None:
    """Read a config.json with the sizes of the table; these are unknown if the weights are missing and not needed."""
    checkpoint = locate_encoder(checkpoint)
    architecture = _find_architecture(checkpoint)
    if architecture is None:
        return None
    stored = checkpoint.read_json_object("config.json")
    if stored.get("path") is not None:
        raise LoadError(
            f"{checkpoint.encoder_path / 'config.json'}: path {stored['path']!r} is not supported; save the model with "
            "Sentence Transformers 5 or newer, which stores the weights in model.safetensors"
        )
    values = {
        **stored,
        "architectures": [architecture],
        "model_type": "static_embedding",
        **(_read_sizes(checkpoint) if needs_weights or has_weights(checkpoint) else _guess_sizes(stored)),
        # model2vec leaves out the unknown token, Sentence Transformers does not: the files decide which one is meant
        "drops_unknown_tokens": architecture == MODEL2VEC,
    }
    config = read_config(checkpoint, options.hf_overrides, values)
    files = read_files(checkpoint, config)
    if files.normalize is None and architecture == MODEL2VEC:
        files = replace(files, normalize=Sourced(bool(config.get("normalize", False)), "config.json normalize"))
    read_length = read_sparse_length if architecture == SPARSE else _read_length
    return Layout(checkpoint=checkpoint, config=config, files=replace(files, max_length=read_length(checkpoint)))


def read_sparse_length(checkpoint: Checkpoint) -> Sourced[int]:
    """Return the maximum length of a table of token weights: that of the tokenizer."""
    length = read_tokenizer_max_length(checkpoint)
    return NO_LIMIT if length is None else Sourced(length, "tokenizer_config.json")


def _read_length(checkpoint: Checkpoint) -> Sourced[int]:
    """Return the maximum length in tokenizer.json, where Sentence Transformers truncates."""
    with checkpoint.require_file("tokenizer.json").open(encoding="utf-8") as stream:
        found = TRUNCATION_LENGTH.search(stream.read(TOKENIZER_HEAD_CHARS))
    return NO_LIMIT if found is None else Sourced(int(found[1]), "tokenizer.json truncation")


def _find_architecture(checkpoint: Checkpoint) -> str | None:
    """Return the kind of the first module, or that of model2vec; None if the model is not static."""
    if steps := read_module_list(checkpoint):
        return steps[0].kind if steps[0].kind in STATIC_KINDS else None
    names = checkpoint.read_json_object("config.json").get("architectures") or ()
    return MODEL2VEC if MODEL2VEC in names else None


def _read_sizes(checkpoint: Checkpoint) -> dict[str, Any]:
    weights = open_weights(checkpoint)
    name = next((name for name in TABLE_NAMES if name in weights), None)
    if name is None:
        found = ", ".join(weights.names()[:5]) or "nothing"
        raise LoadError(f"{weights.source}: no table of embeddings ({', '.join(TABLE_NAMES)}); found {found}")
    table = weights.shape(name)
    rows = weights.shape("mapping") if "mapping" in weights else table
    size = table[1] if len(table) > 1 else 1
    return {"vocab_size": rows[0], "hidden_size": size, SIZE_SOURCE: f"shape of {name} in {weights.source.name}"}


def _guess_sizes(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size that a config.json of model2vec has; others are 1 and named as unknown."""
    size = stored.get("hidden_dim")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        unknown = {UNKNOWN_SIZES: ("vocab_size", "hidden_size"), SIZE_SOURCE: "the weights, which are missing"}
        return {"vocab_size": 1, "hidden_size": 1, **unknown}
    known = {"hidden_size": size, SIZE_SOURCE: "config.json hidden_dim"}
    return {"vocab_size": 1, UNKNOWN_SIZES: ("vocab_size",), **known}
