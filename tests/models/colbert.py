"""Tiny ColBERT checkpoints in the files of PyLate and of Stanford, and their arithmetic in plain torch."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from tests.tiny import change_config, save_tiny


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a ColBERT formats texts."""

    query_marker: str = "[Q] "
    document_marker: str = "[D] "
    query_length: int = 32
    document_length: int = 40
    expands: bool = True
    attends: bool = False
    skiplist: Sequence[str] = field(default_factory=lambda: list(string.punctuation))


@dataclass(frozen=True)
class Colbert:
    """A saved checkpoint with an unbatched reference implementation."""

    folder: Path
    encoder: PreTrainedModel
    project: nn.Module
    rules: Rules
    tokenizer: Tokenizer

    def query(self, text: str) -> Tensor:
        rules = self.rules
        ids, _ = self.ids(text, rules.query_marker, rules.query_length)
        mask = [1] * len(ids)
        if rules.expands:
            missing = rules.query_length - len(ids)
            filler = self.tokenizer.token_to_id("[MASK]") or self.tokenizer.token_to_id("<mask>")
            ids += [filler or self.tokenizer.token_to_id("<|im_end|>")] * missing
            mask += [int(rules.attends)] * missing
        return self.vectors(ids, mask)

    def document(self, text: str) -> Tensor:
        ids, unknown = self.ids(text, self.rules.document_marker, self.rules.document_length)
        skipped = {self.tokenizer.token_to_id(word) for word in self.rules.skiplist}
        skipped = {unknown if token is None else token for token in skipped}
        kept = [token not in skipped for token in ids]
        return self.vectors(ids, [1] * len(ids))[torch.tensor(kept)]

    def score(self, query: str, document: str) -> float:
        return float((self.query(query) @ self.document(document).T).amax(dim=1).sum())

    def ids(self, text: str, marker: str, length: int) -> tuple[list[int], int | None]:
        self.tokenizer.enable_truncation(length - bool(marker))
        ids = self.tokenizer.encode(text.strip()).ids
        if marker:
            ids = [*ids[:1], self.tokenizer.token_to_id(marker), *ids[1:]]
        return ids, self.tokenizer.token_to_id("[UNK]") or self.tokenizer.token_to_id("<unk>")

    def vectors(self, ids: list[int], mask: list[int]) -> Tensor:
        with torch.inference_mode():
            states = self.encoder(input_ids=torch.tensor([ids]), attention_mask=torch.tensor([mask])).last_hidden_state
            return F.normalize(self.project(states[0]), dim=-1)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7)) * 0.3


def add_tokens(folder: Path, *tokens: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(token) for token in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def write(folder: Path, file: str, values: object) -> None:
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(values))


def write_dense(folder: Path, path: str, weights: Mapping[str, Tensor], **config: Any) -> None:
    rows, columns = weights["linear.weight"].shape
    sizes = {"in_features": columns, "out_features": rows, "bias": "linear.bias" in weights}
    write(folder, f"{path}/config.json", {"activation_function": "torch.nn.modules.linear.Identity"} | sizes | config)
    save_file(dict(weights), folder / path / "model.safetensors")


def write_modules(folder: Path, *kinds: tuple[str, str]) -> None:
    modules = [("", "sentence_transformers.models.Transformer"), *kinds]
    rows = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(modules)]
    write(folder, "modules.json", rows)


def save_pylate(folder: Path, encoder: str, rules: Rules = Rules(), **settings: Any) -> Colbert:
    """Save a model with one projection as PyLate 1.6 does."""
    reference = save_tiny(folder, encoder)
    tokenizer = add_tokens(folder, "[Q] ", "[D] ")
    matrix = noise(12, 32)
    write_dense(folder, "1_Dense", {"linear.weight": matrix}, use_residual=False)
    write_modules(folder, ("1_Dense", "pylate.models.Dense.Dense"))
    # the document length of the last call, minus one for the marker
    write(folder, "sentence_bert_config.json", {"max_seq_length": rules.document_length - 1, "do_lower_case": False})
    known = {
        "model_type": "ColBERT",
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": rules.query_marker,
        "document_prefix": rules.document_marker,
        "query_length": rules.query_length,
        "document_length": rules.document_length,
        "attend_to_expansion_tokens": rules.attends,
        "skiplist_words": rules.skiplist,
        "do_query_expansion": rules.expands,
    }
    write(folder, "config_sentence_transformers.json", known | settings)
    return Colbert(folder, reference, lambda x: x @ matrix.T, rules, tokenizer)  # type: ignore[arg-type]


def save_stanford(folder: Path, encoder: str, rules: Rules, metadata: Mapping[str, Any] | None) -> Colbert:
    """Save a model as Stanford ColBERT does: with the projection in the encoder weights."""
    reference = save_tiny(folder, encoder)
    tokenizer = add_tokens(folder, rules.query_marker, rules.document_marker)
    matrix = noise(12, 32)
    prefix = f"{reference.base_model_prefix}."
    stored = {name.removeprefix(prefix): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors = {f"{prefix}{name}": tensor for name, tensor in stored.items()} | {"linear.weight": matrix}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, architectures=["HF_ColBERT"])
    if metadata is not None:
        write(folder, "artifact.metadata", metadata)
    return Colbert(folder, reference, lambda x: x @ matrix.T, rules, tokenizer)  # type: ignore[arg-type]
