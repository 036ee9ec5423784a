"""Plain onnxruntime around an exported model: tokenise, run, pool the mean, normalise; batches sorted by length."""

from __future__ import annotations

import os
from typing import Any


class Engine:
    def __init__(self, model: str, task: str, settings: dict[str, Any]) -> None:
        import numpy as np
        import onnxruntime
        import tokenizers

        if task != "embed":
            raise ValueError(f"this loop embeds; it does not {task}")
        self.np = np
        self.batch_size = settings["batch_size"]
        self.pooling = settings["pooling"]
        self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
        self.tokenizer.enable_truncation(settings["max_tokens"])
        self.tokenizer.enable_padding()
        self.session = onnxruntime.InferenceSession(
            os.path.join(model, settings["file_name"]), providers=["CPUExecutionProvider"]
        )
        self.input_names = {each.name for each in self.session.get_inputs()}
        self.settings = {**settings, "threads": os.cpu_count(), "order": "sorted by length"}

    def run(self, task: str, texts: list[str]) -> Any:
        np = self.np
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        found: list[Any] = [None] * len(texts)
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            encoded = self.tokenizer.encode_batch([texts[at] for at in places])
            ids = np.array([each.ids for each in encoded], dtype=np.int64)
            mask = np.array([each.attention_mask for each in encoded], dtype=np.int64)
            fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            states = self.session.run(None, {name: fed[name] for name in self.input_names})[0]
            for at, vector in zip(places, self.pool(states, mask), strict=True):
                found[at] = vector
        return found

    def pool(self, states: Any, mask: Any) -> Any:
        if states.ndim == 2:  # the export pools by itself
            vectors = states
        elif self.pooling == "CLS":
            vectors = states[:, 0]
        else:
            weights = mask[:, :, None].astype(states.dtype)
            vectors = (states * weights).sum(1) / weights.sum(1)
        return vectors / self.np.linalg.norm(vectors, axis=1, keepdims=True)

    def to_rows(self, task: str, found: Any) -> list[Any]:
        return list(found)
