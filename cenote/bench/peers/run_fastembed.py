"""Engine for the worker: fastembed with an exported model."""

from __future__ import annotations

import os
from typing import Any


class Engine:
    def __init__(self, model: str, task: str, settings: dict[str, Any]) -> None:
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

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
        # fastembed batches texts in the given order; sorted by length they need the least padding
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        outputs: list[Any] = [None] * len(texts)
        vectors = self.model.embed([texts[at] for at in order], batch_size=self.batch_size)
        for at, vector in zip(order, vectors, strict=True):
            outputs[at] = vector
        return outputs

    def to_rows(self, task: str, outputs: Any) -> list[Any]:
        return list(outputs)
