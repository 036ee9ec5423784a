"""Write a BERT checkpoint as a GGUF file for llama.cpp: the same weights, in float16 or in blocks of int8 (Q8_0)."""

from __future__ import annotations

import json
import os
from typing import Any

# names of a checkpoint, without the prefix `bert.` -> names in GGUF
TENSORS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
LAYER_TENSORS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
FLOAT32_TENSORS = ("position_embd.weight", "token_types.weight")  # llama.cpp adds them to the token embeddings
SPECIAL_TOKENS = {"bos": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]", "mask": "[MASK]"}


def write_gguf(folder: str, path: str, *, weights: str, pooling: str) -> None:
    """`weights`: f16 or q8_0; `pooling`: MEAN or CLS."""
    import gguf
    from safetensors.numpy import load_file

    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    if config.get("model_type") != "bert":
        raise ValueError(
            f"only BERT models are written as GGUF files; this one has model_type {config.get('model_type')}"
        )
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType[pooling])
    writer.add_token_type_count(config["type_vocab_size"])
    _add_vocabulary(writer, folder)
    format = gguf.GGMLQuantizationType[weights.upper()]
    for name, tensor in load_file(os.path.join(folder, "model.safetensors")).items():
        target = gguf_name(name)
        if target is None:
            continue
        is_matrix = tensor.ndim == 2 and target not in FLOAT32_TENSORS
        own = format if is_matrix else gguf.GGMLQuantizationType.F32
        writer.add_tensor(target, gguf.quants.quantize(tensor, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str | None:
    """Return the name in GGUF; None for tensors that embeddings do not need."""
    module, _, parameter = name.removeprefix("bert.").rpartition(".")
    if module in TENSORS:
        return f"{TENSORS[module]}.{parameter}"
    if module.startswith("encoder.layer."):
        index, _, inner = module.removeprefix("encoder.layer.").partition(".")
        return f"blk.{index}.{LAYER_TENSORS[inner]}.{parameter}"
    return None


def _add_vocabulary(writer: Any, folder: str) -> None:
    import gguf

    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    ids: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    texts = sorted(ids, key=lambda text: ids[text])
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    # llama.cpp marks the beginning of a word, WordPiece its continuation
    writer.add_token_list(
        [text if text in special else text[2:] if text.startswith("##") else f"\u2581{text}" for text in texts]
    )
    types = gguf.TokenType
    writer.add_token_types([types.CONTROL if text in special else types.NORMAL for text in texts])
    for name, text in SPECIAL_TOKENS.items():
        if text in ids:
            getattr(writer, f"add_{name}_token_id")(ids[text])
