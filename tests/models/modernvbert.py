"""Tokenizer and processor of a tiny ColModernVBERT, for Transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import ColModernVBertProcessor, PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

TILE, PATCH, FACTOR = 32, 4, 2
PER_TILE = (TILE // PATCH // FACTOR) ** 2
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<fake_token_around_image>", "<image>", "<end_of_utterance>"]
SPECIAL += ["<global-img>", *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))]
NAMES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
IMAGE_FILE: dict[str, Any] = {
    "size": {"longest_edge": 3 * TILE},
    "max_image_size": {"longest_edge": TILE},
    "resample": 1,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_image_splitting": True,
}


def tiny_tokenizer(*, empty_lines: bool = True) -> Tokenizer:
    """Byte-level tokenizer as of ModernBERT, with a token for two new lines."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL, *alphabet, "th", "the", *(["ĊĊ"] if empty_lines else [])]
    merges = [("t", "h"), ("th", "e"), *([("Ċ", "Ċ")] if empty_lines else [])]
    ids = {word: row for row, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def processor(tokenizer: Tokenizer, **changes: Any) -> ColModernVBertProcessor:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES)
    fast.image_token, fast.image_token_id = "<image>", SPECIAL.index("<image>")
    return ColModernVBertProcessor(Idefics3ImageProcessorPil(**IMAGE_FILE | changes), fast, image_seq_len=PER_TILE)


def make_image(width: int, height: int, seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height))


TEXT = {"model_type": "modernbert", "vocab_size": 288, "hidden_size": 32, "intermediate_size": 48}
TEXT |= {"num_hidden_layers": 4, "num_attention_heads": 4, "local_attention": 12, "max_position_embeddings": 512}
TEXT |= {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}

VISION_CONFIG = {
    "model_type": "siglip_vision_model",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
}
VISION_CONFIG |= {"num_attention_heads": 2, "image_size": TILE, "patch_size": PATCH}

WHOLE = {"text_config": TEXT, "vision_config": VISION_CONFIG, "pixel_shuffle_factor": FACTOR}
WHOLE |= {"image_token_id": SPECIAL.index("<image>")}

PAGES = [make_image(80, 60), make_image(33, 120, 1), make_image(32, 32, 2)]

SHOWN = "<|begin_of_text|>User:<image>Describe the image.<end_of_utterance>\nAssistant:"


def save_files(folder: Path) -> None:
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **NAMES}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGE_FILE))
