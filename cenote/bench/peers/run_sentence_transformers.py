"""Engine for the worker: Sentence Transformers (torch, ONNX, OpenVINO); Transformers for token classes and images."""

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

        self.processor: Any = AutoImageProcessor.from_pretrained(model)
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

    def score(self, inputs: dict[str, Any]) -> Any:
        pairs = [(inputs["query"], text) for text in inputs["documents"]]
        # not every release sorts by length
        order = sorted(range(len(pairs)), key=lambda at: -len(pairs[at][1]))
        sorted_pairs = [pairs[at] for at in order]
        scores = self.model.predict(
            sorted_pairs, batch_size=self.batch_size, show_progress_bar=False, convert_to_tensor=True
        )
        scores = scores.float().cpu()
        outputs = self.torch.empty_like(scores)
        outputs[order] = scores
        return outputs

    def token_classify(self, texts: list[str]) -> Any:
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        outputs: list[Any] = [None] * len(texts)
        for start in range(0, len(order), self.batch_size):
            indices = order[start : start + self.batch_size]
            batch = self.tokenizer(
                [texts[at] for at in indices],
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
            ).to(self.device)
            with self.torch.inference_mode():
                classes = self.model(**batch).logits.float().softmax(-1).cpu()
            lengths = batch["attention_mask"].sum(-1).tolist()
            for at, rows, length in zip(indices, classes, lengths, strict=True):
                outputs[at] = rows[:length]
        return outputs

    def embed_images(self, images: list[Any]) -> Any:
        outputs = []
        for start in range(0, len(images), self.batch_size):
            batch = self.processor(images[start : start + self.batch_size], return_tensors="pt")
            with self.torch.inference_mode():
                features = self.model.get_image_features(batch["pixel_values"].to(self.device, self.model.dtype))
                features = getattr(features, "pooler_output", features)  # older releases return the tensor directly
                outputs.append(self.torch.nn.functional.normalize(features.float(), dim=-1).cpu())
        return self.torch.cat(outputs)

    def to_rows(self, task: str, outputs: Any) -> list[Any]:
        if task == "score":
            return [outputs.numpy()]
        return [row.float().cpu().numpy() if hasattr(row, "cpu") else row for row in outputs]
