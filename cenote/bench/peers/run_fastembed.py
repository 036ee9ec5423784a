"""fastembed with an exported model of one's own."""

from __future__ import annotations

import os
from typing import Any


class Engine:
    def __init__(self, model: str, task: str, settings: dict[str, Any]) -> None:
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        if task != "embed":
            raise ValueError(f"fastembed's TextEmbedding embeds; it does not {task}")
        TextEmbedding.add_custom_model(
            model="compared/model",
            pooling=getattr(PoolingType, settings["pooling"]),
            normalization=True,
            sources=ModelSource(hf="compared/model"),
            dim=settings["dimensions"],
            model_file=settings["file_name"],
        )
        self.batch_size = settings["batch_size"]
        self.model = TextEmbedding("compared/model", specific_model_path=model)
        self.model.model.tokenizer.enable_truncation(settings["max_tokens"])
        self.settings = {**settings, "threads": os.cpu_count(), "order": "sorted by length before the call"}

    def run(self, task: str, texts: list[str]) -> Any:
        # fastembed keeps the order it is given, so it is given the one that pads least
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        found: list[Any] = [None] * len(texts)
        vectors = self.model.embed([texts[at] for at in order], batch_size=self.batch_size)
        for at, vector in zip(order, vectors, strict=True):
            found[at] = vector
        return found

    def to_rows(self, task: str, found: Any) -> list[Any]:
        return list(found)
