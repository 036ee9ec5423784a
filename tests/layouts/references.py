"""Outputs of Sentence Transformers and Transformers for a folder, and Cenote's for the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from torch import Tensor

from cenote import LLM
from tests.layouts.tokenizers import PAIRS, TEXTS


def compute_reference(folder: Path, truth: str, kind: str, prompt_names: Sequence[str]) -> dict[str, list[Tensor]]:
    """Return the library's outputs by the name of what was computed."""
    if truth == "transformers":
        return _classifier_reference(folder, kind)
    if kind == "embed":
        model = SentenceTransformer(str(folder), device="cpu")
        return {
            str(name): list(model.encode(list(TEXTS), prompt_name=name, convert_to_tensor=True))
            for name in (None, *prompt_names)
        }
    if kind == "sparse":
        encoder = SparseEncoder(str(folder), device="cpu")
        return {"sparse": list(encoder.encode(list(TEXTS), convert_to_sparse_tensor=False, show_progress_bar=False))}
    scores = CrossEncoder(str(folder), device="cpu").predict(list(PAIRS), convert_to_tensor=True)
    return {"score": list(scores)}


def compute_outputs(llm: LLM, truth: str, kind: str, prompt_names: Sequence[str]) -> dict[str, list[Tensor]]:
    """Return Cenote's outputs by the same names."""
    texts = list(TEXTS)
    if truth == "transformers":
        task = "classify" if kind == "sequence" else "token_classify"
        return {task: [item.outputs.data for item in llm.encode(texts, pooling_task=task, use_tqdm=False)]}
    if kind in ("embed", "sparse"):
        by_name = {} if kind == "sparse" else {name: name for name in prompt_names}
        results: dict[str, list[Tensor]] = {}
        for label, name in {"None" if kind == "embed" else "sparse": None, **by_name}.items():
            # an empty prompt is no prompt, also where the model has a default one
            chosen: dict[str, Any] = {"prompt_name": name} if name is not None else {}
            results[label] = [item.outputs.data for item in llm.embed(texts, use_tqdm=False, **chosen)]
        return results
    first, second = zip(*PAIRS, strict=True)
    scores = llm.score(list(first), list(second), use_tqdm=False)
    return {"score": [torch.tensor(item.outputs.score) for item in scores]}


def _classifier_reference(folder: Path, kind: str) -> dict[str, list[Tensor]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    name = "AutoModelForSequenceClassification" if kind == "sequence" else "AutoModelForTokenClassification"
    model: Any = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
    multiple = model.config.problem_type == "multi_label_classification" or model.config.num_labels == 1

    def run(text: str) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model(**tokenizer(text, return_tensors="pt", truncation=True)).logits[0]
        return logits.sigmoid() if multiple and kind == "sequence" else logits.softmax(-1)

    return {"classify" if kind == "sequence" else "token_classify": [run(text) for text in TEXTS]}
