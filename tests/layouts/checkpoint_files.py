"""Write the folder of a published model from its layout: config.json, tokenizer, module files and tiny weights.

A layout is a table: `class` (of Transformers, for the weights), `config` (config.json as published), `tokenizer` (a
kind of tests/layouts/tokenizers.py), `tokenizer_config` (changes), `modules` (the chain of modules.json, in words:
"Pooling mean", "Dense 512 Tanh", "Normalize"), `max_seq_length`, `settings` (config_sentence_transformers.json),
`files` (other JSON files) and `weights` ("safetensors" or "bin").
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from tests.layouts.tokenizers import write_json, write_tokenizer
from tests.tiny import randomize

HIDDEN = 32
ENCODER_SIZES = {"hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER_SIZES = ENCODER_SIZES | {"num_key_value_heads": 2, "head_dim": 8}
DISTILBERT_SIZES = {"dim": HIDDEN, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
T5_SIZES = {"d_model": HIDDEN, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
BART_SIZES = {"d_model": HIDDEN} | {
    f"{side}_{key}": size
    for side in ("encoder", "decoder")
    for key, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}
# sizes that replace the published ones, by model_type
TINY_SIZES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("t5", "mt5"), T5_SIZES),
    **dict.fromkeys(("qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text"), DECODER_SIZES),
    "distilbert": DISTILBERT_SIZES,
    "bart": BART_SIZES,
    "albert": ENCODER_SIZES | {"embedding_size": 16},
    "electra": ENCODER_SIZES | {"embedding_size": 16},
    "lfm2": DECODER_SIZES,
}
TOKEN_ID_KEYS = ("bos", "eos", "pad", "cls", "sep", "mask", "unk", "decoder_start")
POOLING_FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
POOLING_OF_WORD = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken", "max": "max_tokens"}
SPARSE_MODULES = ("MLMTransformer", "SpladePooling")


def write_checkpoint(folder: Path, layout: Mapping[str, Any], *, tiny: bool) -> None:
    """Write the folder; `tiny`: with weights, and with sizes to match, else configuration and tokenizer only."""
    changes = {"model_max_length": layout.get("model_max_length", 512), **layout.get("tokenizer_config", {})}
    vocabulary = write_tokenizer(folder, layout["tokenizer"], changes)
    config = dict(layout["config"])
    if "layer_types" in config:  # given as a pattern that is repeated
        config["layer_types"] = (config["layer_types"] * config["num_hidden_layers"])[: config["num_hidden_layers"]]
    scale = 1.0
    if tiny:
        scale = HIDDEN / hidden_size(config)
        config = _shrink(config, vocabulary)
        _write_weights(folder, layout, config)
    write_json(folder / "config.json", config)
    if "settings" in layout:
        write_json(folder / "config_sentence_transformers.json", layout["settings"])
    if "max_seq_length" in layout:
        encoder = {"max_seq_length": layout["max_seq_length"], "do_lower_case": layout.get("do_lower_case", False)}
        write_json(folder / "sentence_bert_config.json", encoder)
    if "modules" in layout:
        _write_modules(folder, layout["modules"], int(hidden_size(config)), scale)
    for name, values in layout.get("files", {}).items():
        write_json(folder / name, values)


def hidden_size(config: Mapping[str, Any]) -> int:
    keys = ("hidden_size", "d_model", "dim", "n_embd")
    return int(next(config[key] for key in keys if key in config))


def _shrink(config: dict[str, Any], vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """Return the config with tiny sizes and with special token ids that the tiny vocabulary has."""
    sizes = TINY_SIZES.get(config["model_type"], ENCODER_SIZES)
    tiny = {**config, **{key: size for key, size in sizes.items() if key in config}, "vocab_size": len(vocabulary)}
    for key in (f"{name}_token_id" for name in TOKEN_ID_KEYS):
        if isinstance(config.get(key), int) and config[key] >= len(vocabulary):
            tiny[key] = len(vocabulary) - 1
    if "pooler_hidden_size" in config:
        tiny["pooler_hidden_size"] = sizes["hidden_size"]
    if "layer_types" in config:
        tiny["layer_types"] = _short_layer_types(config["layer_types"], sizes["num_hidden_layers"])
    return tiny


def _short_layer_types(types: list[str], count: int) -> list[str]:
    """Return fewer layers that still have every type."""
    kinds = list(dict.fromkeys(types))
    return (kinds + kinds * count)[: max(count, len(kinds))]


def _write_weights(folder: Path, layout: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    model_class = getattr(transformers, layout["class"])
    model = model_class(model_class.config_class(**config)).eval().requires_grad_(False)
    randomize(model, std=layout.get("std", 0.2))
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    model.save_pretrained(folder)
    if layout.get("weights") == "bin":
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()


def _write_modules(folder: Path, words: list[str], size: int, scale: float) -> None:
    modules = []
    for index, word in enumerate(words):
        kind, *arguments = word.split()
        path = "" if kind in ("Transformer", "MLMTransformer") else f"{index}_{kind}"
        package = "sparse_encoder.models" if kind in SPARSE_MODULES else "models"
        modules.append(
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{package}.{kind}"}
        )
        if kind == "Pooling":
            flag = POOLING_OF_WORD[arguments[0]]
            flags = {f"pooling_mode_{name}": name == flag for name in POOLING_FLAGS[: 4 if flag != "lasttoken" else 6]}
            write_json(folder / path / "config.json", {"word_embedding_dimension": size, **flags})
        elif kind == "Dense":
            size = _write_dense(folder / path, size, arguments, scale)
        elif kind == "SpladePooling":
            values = {"pooling_strategy": arguments[0], "activation_function": "relu", "word_embedding_dimension": size}
            write_json(folder / path / "config.json", values)
        elif kind == "Normalize":
            (folder / path).mkdir()
    write_json(folder / "modules.json", modules)


def _write_dense(folder: Path, size: int, arguments: list[str], scale: float) -> int:
    """Write a Dense module given as out features, activation and optionally "nobias"; return its size."""
    out, activation, *rest = arguments
    rows, bias = round(int(out) * scale), "nobias" not in rest
    values = {"in_features": size, "out_features": rows, "bias": bias}
    name = f"torch.nn.modules.{'linear' if activation == 'Identity' else 'activation'}.{activation}"
    write_json(folder / "config.json", {**values, "activation_function": name})
    generator = torch.Generator().manual_seed(rows)
    tensors = {"linear.weight": torch.randn(rows, size, generator=generator) * 0.3}
    if bias:
        tensors["linear.bias"] = torch.randn(rows, generator=generator) * 0.3
    save_file(tensors, folder / "model.safetensors")
    return rows
