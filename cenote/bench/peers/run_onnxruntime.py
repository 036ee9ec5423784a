"""Engine for the worker: onnxruntime with an exported model, batches sorted by length, mean or CLS pooling."""

from __future__ import annotations

import os
from typing import Any


class Engine:
    def __init__(self, model: str, task: str, settings: dict[str, Any]) -> None:
        import numpy as np
        import onnxruntime
        import tokenizers

        self.np = np
        self.batch_size = settings["batch_size"]
        self.pooling = settings["pooling"]
        self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
        self.tokenizer.enable_truncation(settings["max_tokens"])
        self.tokenizer.enable_padding()
        self.session = onnxruntime.InferenceSession(
            os.path.join(model, settings["file_name"]), providers=["CPUExecutionProvider"]
        )
        self.input_names = {value.name for value in self.session.get_inputs()}
        self.settings = {**settings, "threads": os.cpu_count(), "order": "sorted by length"}

    def run(self, task: str, texts: list[str]) -> Any:
        np = self.np
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        outputs: list[Any] = [None] * len(texts)
        for start in range(0, len(order), self.batch_size):
            indices = order[start : start + self.batch_size]
            encoded = self.tokenizer.encode_batch([texts[at] for at in indices])
            ids = np.array([encoding.ids for encoding in encoded], dtype=np.int64)
            mask = np.array([encoding.attention_mask for encoding in encoded], dtype=np.int64)
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            states = self.session.run(None, {name: inputs[name] for name in self.input_names})[0]
            for at, vector in zip(indices, self.pool(states, mask), strict=True):
                outputs[at] = vector
        return outputs

    def pool(self, states: Any, mask: Any) -> Any:
        if states.ndim == 2:  # the exported model includes pooling
            vectors = states
        elif self.pooling == "CLS":
            vectors = states[:, 0]
        else:
            weights = mask[:, :, None].astype(states.dtype)
            vectors = (states * weights).sum(1) / weights.sum(1)
        return vectors / self.np.linalg.norm(vectors, axis=1, keepdims=True)

    def to_rows(self, task: str, outputs: Any) -> list[Any]:
        return list(outputs)
