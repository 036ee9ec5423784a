"""`LLM.embed` in the benchmark process, as the baseline for the overhead of HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from cenote.bench.backends import Vectors
from cenote.llm import LLM


class InProcessEngine:
    """LLM without a server, and the seconds of its rounds."""

    def __init__(self, model: str | None, dtype: str) -> None:
        self.llm = LLM(model, dtype=dtype)
        self.model = self.llm.model_config.model
        self.dtype = str(self.llm.model_config.dtype).removeprefix("torch.")
        self.num_tokens = 0
        self.seconds: list[float] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        outputs = self.llm.embed(list(texts), use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": -1})
        self.num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        return np.stack([output.outputs.data.numpy() for output in outputs])

    def run_round(self, texts: Sequence[str]) -> None:
        began = time.perf_counter()
        self.embed(texts)
        self.seconds.append(time.perf_counter() - began)

    def close(self) -> None:
        self.llm.close()
