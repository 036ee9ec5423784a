"""GLiNER: gliner_config.json and weights alone, config and tokenizer of the base model; or all files in one folder."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.layouts.registry import builder
from tests.layouts.tokenizers import write_tokenizer
from tests.tiny import SIZES, randomize

PROMPT_TOKENS = ("[FLERT]", "<<ENT>>", "<<SEP>>")
SIZE = 24  # of the span head; that of the encoder is another one
SETTINGS: dict[str, Any] = {
    "size_sup": -1,
    "max_types": 25,
    "shuffle_types": True,
    "random_drop": True,
    "max_neg_type_ratio": 1,
    "max_len": 384,
    "lr_encoder": "1e-5",
    "lr_others": "5e-5",
    "num_steps": 30000,
    "warmup_ratio": 3000,
    "train_batch_size": 8,
    "eval_every": 5000,
    "max_width": 12,
    "model_name": "microsoft/deberta-v3-base",
    "fine_tune": True,
    "subtoken_pooling": "first",
    "hidden_size": SIZE,
    "span_mode": "markerV0",
    "dropout": 0.4,
    "name": "correct",
}


def make_mlp(input_size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(input_size, 4 * SIZE), nn.ReLU(), nn.Dropout(), nn.Linear(4 * SIZE, SIZE))


def make_head(input_size: int) -> nn.ModuleDict:
    """Return the layers above the encoder, with the names that they have in the checkpoint."""
    span = {"project_start": make_mlp(SIZE), "project_end": make_mlp(SIZE), "out_project": make_mlp(2 * SIZE)}
    lstm = nn.LSTM(SIZE, SIZE // 2, bidirectional=True, batch_first=True)
    return nn.ModuleDict(
        {
            "token_rep_layer": nn.ModuleDict({"projection": nn.Linear(input_size, SIZE)}),
            "rnn": nn.ModuleDict({"lstm": lstm}),
            "span_rep_layer": nn.ModuleDict({"span_rep_layer": nn.ModuleDict(span)}),
            "prompt_rep_layer": make_mlp(SIZE),
        }
    )


def make_word_head(input_size: int) -> nn.ModuleDict:
    """Return the layers of span mode token_level; those of the words are the same."""
    out = nn.Sequential(nn.Linear(3 * SIZE, 4 * SIZE), nn.Dropout(), nn.ReLU(), nn.Linear(4 * SIZE, 3))
    linear = {"proj_token": nn.Linear(SIZE, 2 * SIZE), "proj_label": nn.Linear(SIZE, 2 * SIZE), "out_mlp": out}
    words = make_head(input_size)
    return nn.ModuleDict(
        {"token_rep_layer": words["token_rep_layer"], "rnn": words["rnn"], "scorer": nn.ModuleDict(linear)}
    )


def save_gliner(folder: Path, **settings: Any) -> tuple[PreTrainedModel, nn.ModuleDict]:
    """Save the model, and the files of its base model beside it; return encoder and head."""
    base = folder.parent / "deberta-v3-base"
    base.mkdir()
    vocab_size = len(write_tokenizer(base, "deberta-v3", {}))
    sizes = SIZES["deberta-v2"] | {"type_vocab_size": 0, "position_biased_input": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Transformers' DeBERTa is scripted when it is imported
        model_class = transformers.DebertaV2Model
    config = transformers.DebertaV2Config(**sizes | {"vocab_size": vocab_size + len(PROMPT_TOKENS)})
    make = make_word_head if settings.get("span_mode") == "token_level" else make_head
    encoder, head = model_class(config).eval(), make(config.hidden_size).eval()
    randomize(encoder)
    # values with which there are entities of several words
    randomize(head, seed=1, std=0.3 if make is make_word_head else 0.2)
    # the base model has more embeddings than tokens, and none for the prompt
    stored = config.to_dict() | {"vocab_size": vocab_size + 90}
    (base / "config.json").write_text(json.dumps(stored))
    (folder / "gliner_config.json").write_text(json.dumps(SETTINGS | settings))
    weights: dict[str, Tensor] = dict(head.state_dict())
    weights |= {f"token_rep_layer.bert_layer.model.{name}": tensor for name, tensor in encoder.state_dict().items()}
    torch.save(weights, folder / "pytorch_model.bin")
    return encoder, head


@builder
def gliner_v2_1(folder: Path) -> None:
    save_gliner(folder)


@builder
def gliner_v2_5(folder: Path) -> None:
    """Save the layout of newer versions of the gliner package: tokenizer and encoder config in the folder."""
    encoder, _ = save_gliner(folder)
    add_own_files(folder, encoder)


def add_own_files(folder: Path, encoder: PreTrainedModel) -> None:
    """Move the files of the base model into the folder, as the gliner package saves them."""
    base = folder.parent / "deberta-v3-base"
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(base / file, folder / file)
    size = encoder.config.vocab_size
    tokens = {token: size - len(PROMPT_TOKENS) + row for row, token in enumerate(PROMPT_TOKENS)}
    (folder / "added_tokens.json").write_text(json.dumps(tokens))
    own = {"class_token_index": tokens["<<ENT>>"], "vocab_size": size, "encoder_config": encoder.config.to_dict()}
    path = folder / "gliner_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | own | {"words_splitter_type": "whitespace"}))
    shutil.rmtree(base)


@builder
def gliner_token_level(folder: Path) -> None:
    encoder, _ = save_gliner(folder, span_mode="token_level")
    add_own_files(folder, encoder)


@builder
def gliner_bi(folder: Path) -> None:
    encoder = "sentence-transformers/all-MiniLM-L6-v2"
    (folder / "gliner_config.json").write_text(json.dumps(SETTINGS | {"labels_encoder": encoder}))
