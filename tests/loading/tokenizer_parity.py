"""The ids of a tokenizer by Cenote and by Transformers, and the model types of tests.layouts.tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from cenote.loading.checkpoint import Checkpoint
from cenote.loading.tokenizer_files import load_tokenizer_files
from tests.layouts.tokenizers import write_json

TEXTS = (
    "the cat sat on the mat",
    "How Deep is the Water?",
    "Café crème 水深 中",
    "  two  spaces\tand\nlines ",
    "the<mask>cat [MASK] sat",
    "``quotes'' don't.stop!",
    "<s>the</s> cat<s>cat",
)
MODEL_TYPES = {
    "bert-uncased": "bert",
    "bert-cased": "bert",
    "distilbert-uncased": "distilbert",
    "distilbert-cased": "distilbert",
    "electra": "electra",
    "mpnet": "mpnet",
    "roberta": "roberta",
    "bart": "bart",
    "xlm-roberta": "xlm-roberta",
    "deberta-v3": "deberta-v2",
    "albert": "albert",
    "camembert": "camembert",
    "t5": "t5",
    "modernbert": "modernbert",
    "qwen3-embedding": "qwen3",
    "qwen2": "qwen2",
    "llama": "llama",
    "gemma": "gemma",
}


def change(path: Path, **values: Any) -> None:
    """Change values of a JSON file, which may be new."""
    write_json(path, {**(json.loads(path.read_text()) if path.exists() else {}), **values})


def read_ids(folder: Path, texts: tuple[str, ...] = TEXTS) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of texts and of a pair, by Cenote and by Transformers."""
    ours = load_tokenizer_files(Checkpoint("test", folder)).tokenizer
    theirs = AutoTokenizer.from_pretrained(folder)
    pair = (texts[0], texts[1])
    return (
        [*(ours.encode(text).ids for text in texts), ours.encode(*pair).ids],
        [*(theirs(text)["input_ids"] for text in texts), theirs(*pair)["input_ids"]],
    )
