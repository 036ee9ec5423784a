"""Write a tiny, untrained ColQwen3 checkpoint whose weights are set so that it recognises colours.

    python examples/tiny_colqwen3.py FOLDER

It has every part of a real one, with layers that add nothing. A patch of an image becomes its mean colour, its
brightness and how busy it is; the words below lie where such patches do, and all other words apart from everything.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor

# meaning of the embedding dimensions: red, green, blue relative to the others; brightness; texture; unknown word;
# special token
RED, GREEN, BLUE, BRIGHT, BUSY, OTHER, NO_WORD = range(7)
WORD_COLOURS = {
    "red": {RED: 1.0, GREEN: -0.5, BLUE: -0.5},
    "green": {GREEN: 1.0, RED: -0.5, BLUE: -0.5},
    "blue": {BLUE: 1.0, RED: -0.5, GREEN: -0.5},
    "yellow": {RED: 0.5, GREEN: 0.5, BLUE: -1.0},
    "white": {BRIGHT: 1.0},
    "dark": {BRIGHT: -1.0},
    "text": {BUSY: 1.0, BRIGHT: 0.3},
}
SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
UNKNOWN_TOKEN = "<unk>"
VOCABULARY = [*SPECIAL_TOKENS, UNKNOWN_TOKEN, *WORD_COLOURS]

HIDDEN, HEAD, LAYERS = 32, 16, 1
PATCH, MERGE, FRAMES, SEEN = 16, 2, 2, 16
PER_TOKEN = MERGE**2  # patches
LEVEL = 8.0  # two large entries, next to which a norm leaves the others nearly unchanged
LIFT = 10.0  # offset above zero, where the activation is nearly the identity
LOUDNESS = 0.4  # weight of brightness relative to colours
DETECTORS = (3, 4)  # dimensions of vertical and horizontal change in a patch

CONFIG = {
    "architectures": ["ColQwen3"],
    "model_type": "colqwen3",
    "embed_dim": 8,
    "image_token_id": VOCABULARY.index("<|image_pad|>"),
    "video_token_id": VOCABULARY.index("<|video_pad|>"),
    "vision_start_token_id": VOCABULARY.index("<|vision_start|>"),
    "vision_end_token_id": VOCABULARY.index("<|vision_end|>"),
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text",
        "vocab_size": len(VOCABULARY),
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
    },
    "vision_config": {
        "model_type": "qwen3_vl",
        "depth": 1,
        "hidden_size": SEEN,
        "intermediate_size": SEEN,
        "num_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    },
}
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"shortest_edge": 32 * 32, "longest_edge": 1024 * 1024},
    "patch_size": PATCH,
    "merge_size": MERGE,
    "temporal_patch_size": FRAMES,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
CHAT_TEMPLATE = """{%- for message in messages -%}<|im_start|>
{%- if message.content is string -%}{{ message.content }}{%- else -%}{%- for part in message.content -%}
{%- if part.type == "text" -%}{{ part.text }}{%- else -%}<|vision_start|><|image_pad|><|vision_end|>{%- endif -%}
{%- endfor -%}{%- endif -%}<|im_end|>{%- endfor -%}"""


def write_checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write_tokenizer(folder)
    tensors = {
        **{f"vlm.model.language_model.{name}": tensor for name, tensor in _language_weights().items()},
        **{f"vlm.model.visual.{name}": tensor for name, tensor in _vision_weights().items()},
        "embedding_proj_layer.weight": torch.eye(8, HIDDEN),
        "embedding_proj_layer.bias": torch.zeros(8),
    }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def _write_tokenizer(folder: Path) -> None:
    """Return a case-insensitive word-level tokenizer."""
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN_TOKEN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "unk_token": UNKNOWN_TOKEN}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def _language_weights() -> dict[str, Tensor]:
    """Return text weights: embeddings as in the table above; the layers add nothing."""
    words = torch.zeros(len(VOCABULARY), HIDDEN)
    for number, word in enumerate(VOCABULARY):
        for place, value in WORD_COLOURS.get(word, {NO_WORD if word in SPECIAL_TOKENS else OTHER: 1.0}).items():
            words[number, place] = value
    tensors = {"embed_tokens.weight": words, "norm.weight": torch.ones(HIDDEN)}
    for layer in range(LAYERS):
        tensors |= {
            f"layers.{layer}.{name}": tensor
            for name, tensor in {
                "input_layernorm.weight": torch.ones(HIDDEN),
                "post_attention_layernorm.weight": torch.ones(HIDDEN),
                "self_attn.q_proj.weight": torch.zeros(2 * HEAD, HIDDEN),
                "self_attn.k_proj.weight": torch.zeros(HEAD, HIDDEN),
                "self_attn.v_proj.weight": torch.zeros(HEAD, HIDDEN),
                "self_attn.o_proj.weight": torch.zeros(HIDDEN, 2 * HEAD),
                "self_attn.q_norm.weight": torch.ones(HEAD),
                "self_attn.k_norm.weight": torch.ones(HEAD),
                "mlp.gate_proj.weight": torch.zeros(HIDDEN, HIDDEN),
                "mlp.up_proj.weight": torch.zeros(HIDDEN, HIDDEN),
                "mlp.down_proj.weight": torch.zeros(HIDDEN, HIDDEN),
            }.items()
        }
    return tensors


def _vision_weights() -> dict[str, Tensor]:
    """Return tower weights: mean colour and change per patch, merged by four; the layers add nothing."""
    width = SEEN * PER_TOKEN
    tensors = {
        "patch_embed.proj.weight": _patch_kernel(),
        "patch_embed.proj.bias": LEVEL * (torch.eye(SEEN)[SEEN // 2 - 1] - torch.eye(SEEN)[SEEN - 1]),
        "pos_embed.weight": torch.zeros(16, SEEN),
        "blocks.0.norm1.weight": torch.ones(SEEN),
        "blocks.0.norm1.bias": torch.zeros(SEEN),
        "blocks.0.norm2.weight": torch.ones(SEEN),
        "blocks.0.norm2.bias": torch.zeros(SEEN),
        "blocks.0.attn.qkv.weight": torch.zeros(3 * SEEN, SEEN),
        "blocks.0.attn.qkv.bias": torch.zeros(3 * SEEN),
        "blocks.0.attn.proj.weight": torch.zeros(SEEN, SEEN),
        "blocks.0.attn.proj.bias": torch.zeros(SEEN),
        "blocks.0.mlp.linear_fc1.weight": torch.zeros(SEEN, SEEN),
        "blocks.0.mlp.linear_fc1.bias": torch.zeros(SEEN),
        "blocks.0.mlp.linear_fc2.weight": torch.zeros(SEEN, SEEN),
        "blocks.0.mlp.linear_fc2.bias": torch.zeros(SEEN),
    }
    # deepstack features are zero
    for name, size in (("merger", SEEN), ("deepstack_merger_list.0", width)):
        tensors |= {
            f"{name}.norm.weight": torch.full((size,), LEVEL * (2 / SEEN) ** 0.5),
            f"{name}.norm.bias": torch.zeros(size),
            f"{name}.linear_fc1.weight": torch.zeros(width, width),
            f"{name}.linear_fc1.bias": torch.zeros(width),
            f"{name}.linear_fc2.weight": torch.zeros(HIDDEN, width),
            f"{name}.linear_fc2.bias": torch.zeros(HIDDEN),
        }
    _set_merger_weights(
        *(tensors[f"merger.linear_{name}"] for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"))
    )
    return tensors


def _patch_kernel() -> Tensor:
    """Return the patch kernel [features, channels, frames, rows, columns]: three means and two stripe detectors."""
    kernel = torch.zeros(SEEN, 3, FRAMES, PATCH, PATCH)
    share = 1 / (FRAMES * PATCH**2)
    for colour in range(3):
        kernel[colour, colour] = share
    stripes = torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(PATCH // 4)
    kernel[DETECTORS[0]] = stripes[:, None] * share * 2
    kernel[DETECTORS[1]] = stripes[None, :] * share * 2
    kernel[SEEN // 2 :] = -kernel[: SEEN // 2]  # so that the mean is zero before the norm
    return kernel


def _set_merger_weights(up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> None:
    """Return merger weights: mean colours over patches; changes of both signs, so each is used twice."""
    mean = 1 / PER_TOKEN
    for colour in range(3):
        up[colour, colour::SEEN] = mean
        up_bias[colour] = LIFT
        down[:3, colour] -= 1 / 3
        down[colour, colour] += 1
        down[BRIGHT, colour] = LOUDNESS / 3
    down_bias[BRIGHT] = -LIFT * LOUDNESS
    row = 3
    for patch in range(PER_TOKEN):
        for detector in DETECTORS:
            for sign in (1.0, -1.0):
                up[row, patch * SEEN + detector] = 8 * sign
                down[BUSY, row] = mean
                row += 1
    down_bias[BUSY] = -0.3  # ignore small changes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write the checkpoint")
    print(write_checkpoint(parser.parse_args(arguments).folder))


if __name__ == "__main__":
    main()
