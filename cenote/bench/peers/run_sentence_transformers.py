"""Sentence Transformers with torch, ONNX or OpenVINO below it; for classes and images a loop around Transformers."""

from __future__ import annotations

import os
from typing import Any


class Engine:
    def __init__(self, model: str, task: str, settings: dict[str, Any]) -> None:
        import torch

        self.model: Any = None
        self.torch = torch
        self.batch_size = settings["batch_size"]
        self.backend = settings.get("backend", "torch")
        options = {"file_name": settings["file_name"]} if "file_name" in settings else {}
        if self.backend == "torch":
            options["dtype"] = getattr(torch, settings["dtype"])
        if self.backend == "onnx":
            options["provider"] = "CPUExecutionProvider"
        self.device = "cuda" if self.backend == "torch" and torch.cuda.is_available() else "cpu"
        self.max_tokens = settings["max_tokens"]
        getattr(self, f"load_{task}")(model, options)
        self.settings = {
            **settings,
            "device": self.device,
            "threads": torch.get_num_threads() if self.backend == "torch" else os.cpu_count(),
            "order": "sorted by length",
        }

    def load_embed(self, model: str, options: dict[str, Any]) -> None:
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(model, device=self.device, backend=self.backend, model_kwargs=options)
        self.model.max_seq_length = self.max_tokens

    load_token_embed = load_embed

    def load_score(self, model: str, options: dict[str, Any]) -> None:
        from sentence_transformers import CrossEncoder

        self.model = CrossEncoder(
            model, device=self.device, backend=self.backend, model_kwargs=options, max_length=self.max_tokens
        )

    def load_token_classify(self, model: str, options: dict[str, Any]) -> None:
        from transformers import AutoModelForTokenClassification, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self.model = AutoModelForTokenClassification.from_pretrained(model, **options).eval().to(self.device)

    def load_embed_images(self, model: str, options: dict[str, Any]) -> None:
        from transformers import AutoImageProcessor, AutoModel

        self.processor: Any = AutoImageProcessor.from_pretrained(model)  # type: ignore[no-untyped-call]
        self.model = AutoModel.from_pretrained(model, **options).eval().to(self.device)

    def run(self, task: str, inputs: Any) -> Any:
        return getattr(self, task)(inputs)

    def embed(self, texts: list[str]) -> Any:
        return self.model.encode(
            texts, batch_size=self.batch_size, show_progress_bar=False, convert_to_tensor=self.backend == "torch"
        )

    def token_embed(self, texts: list[str]) -> Any:
        return self.model.encode(
            texts, batch_size=self.batch_size, show_progress_bar=False, output_value="token_embeddings"
        )

    def score(self, asked: dict[str, Any]) -> Any:
        pairs = [(asked["query"], text) for text in asked["documents"]]
        # not every release puts the longest texts first by itself
        order = sorted(range(len(pairs)), key=lambda at: -len(pairs[at][1]))
        sorted_pairs = [pairs[at] for at in order]
        scores = self.model.predict(
            sorted_pairs, batch_size=self.batch_size, show_progress_bar=False, convert_to_tensor=True
        )
        scores = scores.float().cpu()
        found = self.torch.empty_like(scores)
        found[order] = scores
        return found

    def token_classify(self, texts: list[str]) -> Any:
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        found: list[Any] = [None] * len(texts)
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            batch = self.tokenizer(
                [texts[at] for at in places],
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
            ).to(self.device)
            with self.torch.inference_mode():
                classes = self.model(**batch).logits.float().softmax(-1).cpu()
            lengths = batch["attention_mask"].sum(-1).tolist()
            for at, rows, length in zip(places, classes, lengths, strict=True):
                found[at] = rows[:length]
        return found

    def embed_images(self, images: list[Any]) -> Any:
        found = []
        for start in range(0, len(images), self.batch_size):
            batch = self.processor(images[start : start + self.batch_size], return_tensors="pt")
            with self.torch.inference_mode():
                seen = self.model.get_image_features(batch["pixel_values"].to(self.device, self.model.dtype))
                seen = getattr(seen, "pooler_output", seen)  # older releases give the vectors themselves
                found.append(self.torch.nn.functional.normalize(seen.float(), dim=-1).cpu())
        return self.torch.cat(found)

    def to_rows(self, task: str, found: Any) -> list[Any]:
        if task == "score":
            return [found.numpy()]
        return [each.float().cpu().numpy() if hasattr(each, "cpu") else each for each in found]
