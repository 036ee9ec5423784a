"""IO processor: take a list of texts, return which to keep and which are near duplicates of those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cenote import PoolingParams, PoolingRequestOutput
from cenote.plugins import IOProcessor

MAX_TEXTS = 2000  # every text is compared with every other one


@dataclass(frozen=True)
class DeduplicationInput:
    texts: list[str]
    threshold: float


class NearDuplicates(IOProcessor[DeduplicationInput, dict[str, Any]]):
    def parse_data(self, data: object) -> DeduplicationInput:
        if not isinstance(data, dict):
            raise TypeError(f"data must be an object with texts and a threshold, got {type(data).__name__}")
        texts, threshold = data.get("texts"), data.get("threshold", 0.9)
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError("texts must be a non-empty list of strings")
        if len(texts) > MAX_TEXTS:
            raise ValueError(f"got {len(texts)} texts; the maximum is {MAX_TEXTS}")
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not -1 <= threshold <= 1:
            raise ValueError(f"threshold must be a cosine between -1 and 1, got {threshold!r}")
        return DeduplicationInput(texts, threshold)

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        # normalised embeddings, whose dot product is the cosine; long texts are truncated
        return PoolingParams(task="embed", use_activation=True, truncate_prompt_tokens=-1)

    def pre_process(self, prompt: DeduplicationInput, request_id: str | None = None, **kwargs: Any) -> list[str]:
        return prompt.texts

    def post_process(
        self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        threshold = kwargs["prompt"].threshold  # the prompt is what parse_data returned
        vectors = np.stack([np.asarray(output.outputs.data) for output in model_output])
        similarities = vectors @ vectors.T
        kept = np.zeros(len(vectors), dtype=np.bool_)
        duplicates = []
        for index, row in enumerate(similarities):
            to_kept = np.where(kept, row, -np.inf)
            match = int(to_kept.argmax())
            if to_kept[match] >= threshold:
                duplicates.append({"index": index, "of": match, "similarity": round(float(row[match]), 4)})
            else:
                kept[index] = True
        return {"kept": kept.nonzero()[0].tolist(), "duplicates": duplicates}
