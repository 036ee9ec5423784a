"""`cenote bench offline`: Cenote beside Sentence Transformers on the same texts, in interleaved rounds."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import torch

from cenote.bench.figures import agreement
from cenote.bench.report import Row
from cenote.bench.workloads import Workload, log_normal
from cenote.errors import LoadError
from cenote.llm import LLM

Run = Callable[[list[str]], "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]


@dataclass(slots=True)
class Contender:
    """An engine, ready to embed, and the seconds its rounds took."""

    name: str
    embed: Run
    seconds: list[float] = field(default_factory=list)


def cenote(model: str | None, dtype: str) -> tuple[Contender, LLM]:
    llm = LLM(model, dtype=dtype)

    def embed(texts: list[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        outputs = llm.embed(texts, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": -1})
        return torch.stack([output.outputs.data for output in outputs]).numpy()

    shown = str(llm.engine.model.description.dtype.value).removeprefix("torch.")
    return Contender(f"cenote {shown}", embed), llm


def sentence_transformers(folder: str, dtype: str, batch_size: int, device: str) -> Contender:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise LoadError("the comparison needs sentence-transformers: pip install sentence-transformers") from None
    model = SentenceTransformer(folder, device=device, model_kwargs={"dtype": getattr(torch, dtype)})

    def embed(texts: list[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        vectors: torch.Tensor = model.encode(
            texts, batch_size=batch_size, show_progress_bar=False, convert_to_tensor=True
        )
        return vectors.float().cpu().numpy()

    return Contender(f"sentence-transformers {dtype}", embed)


def compare(
    model: str | None, *, dtype: str, count: int, mean: float, rounds: int, batch_size: int, seed: int = 0
) -> tuple[Workload, list[Row]]:
    """Every engine once per round, in turns: whatever the machine does meanwhile, it does to all of them."""
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
    ours, llm = cenote(model, dtype)
    description = llm.engine.model.description
    workload = log_normal(
        llm.get_tokenizer(), count, mean=mean, longest=min(256, description.max_length.value), seed=seed
    )
    folder, device = str(description.checkpoint.folder), str(description.device.value)
    contenders = [ours, *(sentence_transformers(folder, kind, batch_size, device) for kind in ("float32", "bfloat16"))]
    reference = contenders[1].embed(workload.texts[:64])
    agreements = [agreement(contender.embed(workload.texts[:64]), reference) for contender in contenders]  # and warm up
    for _ in range(rounds):
        for contender in contenders:
            gc.collect()
            began = time.perf_counter()
            contender.embed(workload.texts)
            contender.seconds.append(time.perf_counter() - began)
    llm.close()
    return workload, [row(each, ours, workload, cosine) for each, cosine in zip(contenders, agreements, strict=True)]


def row(contender: Contender, ours: Contender, workload: Workload, cosine: float) -> Row:
    factors = [theirs / mine for theirs, mine in zip(contender.seconds, ours.seconds, strict=True)]
    speed = workload.num_tokens / median(contender.seconds)
    return Row(contender.name, speed, median(factors), min(factors), max(factors), cosine)
