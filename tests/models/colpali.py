"""Tiny ColPali checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    ColPaliConfig,
    ColPaliForRetrieval,
    ColPaliProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
)

from tests.tiny import LETTERS, WORDS, randomize

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<image>"]

VOCABULARY = [*SPECIAL, "\n", *WORDS, *LETTERS, "describe", "image", "question", *"DQ.:?"]

TEXT = {"vocab_size": 160, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 12, "max_position_embeddings": 96}

VISION_CONFIG = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION_CONFIG |= {"image_size": 56, "patch_size": 14}

NUM_PATCHES = (56 // 14) ** 2


def tiny_tokenizer() -> Tokenizer:
    """Tokenizer as of Gemma: no leading space, a token for a new line."""
    ids = {token: row for row, token in enumerate(dict.fromkeys(VOCABULARY))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split(Regex("[.:?\n]"), "isolated")]
    )
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", ids["<bos>"])]
    )
    return tokenizer


def config(**text: Any) -> ColPaliConfig:
    whole = {
        "model_type": "paligemma",
        "text_config": {"model_type": "gemma", **TEXT, **text},
        "vision_config": {"model_type": "siglip_vision_model", **VISION_CONFIG, "vision_use_head": False},
        "projection_dim": TEXT["hidden_size"],
        "image_token_index": SPECIAL.index("<image>"),
    }
    return ColPaliConfig(vlm_config=whole, embedding_dim=16)


def processor() -> ColPaliProcessor:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(), bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
    fast.add_special_tokens({"additional_special_tokens": ["<image>"]})
    eyes = SiglipImageProcessorPil(size={"height": 56, "width": 56}, image_seq_length=NUM_PATCHES)
    eyes.image_seq_length = NUM_PATCHES
    return ColPaliProcessor(image_processor=eyes, tokenizer=fast)


def save_files(folder: Path) -> None:
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    # model_max_length applies to queries; images are longer
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 50, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    half = [0.5, 0.5, 0.5]
    image = {"size": {"height": 56, "width": 56}, "resample": 3, "image_mean": half, "image_std": half}
    (folder / "preprocessor_config.json").write_text(json.dumps(image))


def save_colpali_hf(folder: Path) -> ColPaliForRetrieval:
    """Save a model in the layout of Transformers (vidore/colpali-v1.3-hf)."""
    model = ColPaliForRetrieval(config()).eval().requires_grad_(False)
    randomize(model, std=0.2)
    model.save_pretrained(folder)
    save_files(folder)
    return model
