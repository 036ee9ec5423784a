"""With `deterministic`, an input has the same bits alone and in every batch."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cenote import LLM, PoolerConfig
from cenote.engine.execution.deterministic import find_plain
from cenote.inputs.tokenized_inputs import TokenizedInputs
from tests.tiny import (
    WORDS,
    save_tiny,
    tiny_bert,
    tiny_bert_classifier,
    tiny_bge_m3,
    tiny_modernbert,
    tiny_qwen3,
    tiny_splade,
)

# comparisons of the test with the default model
NUM_TRIALS = int(os.environ.get("DETERMINISM_TRIALS", "200"))
MAX_MATES = 64

Compute = Callable[[LLM, Sequence[str]], list[bytes]]  # the bits of each result


def embed(llm: LLM, texts: Sequence[str]) -> list[bytes]:
    return [np.float32(o.outputs.embedding).tobytes() for o in llm.embed(texts, use_tqdm=False)]


def classify(llm: LLM, texts: Sequence[str]) -> list[bytes]:
    return [np.float32(o.outputs.probs).tobytes() for o in llm.classify(texts, use_tqdm=False)]


def score(llm: LLM, texts: Sequence[str]) -> list[bytes]:
    return [np.float64(o.outputs.score).tobytes() for o in llm.score("the query", texts, use_tqdm=False)]


def token_embed(llm: LLM, texts: Sequence[str]) -> list[bytes]:
    outputs = llm.encode(texts, pooling_task="token_embed", use_tqdm=False)
    return [np.float32(o.outputs.data).tobytes() for o in outputs]


def sparse_embed(llm: LLM, texts: Sequence[str]) -> list[bytes]:
    outputs = [o.outputs for o in llm.sparse_embed(texts, use_tqdm=False)]
    return [repr((list(o.token_ids), list(o.weights))).encode() for o in outputs]


def make_texts(rng: random.Random, count: int, max_words: int) -> list[str]:
    """Return distinct texts, most of them short."""
    texts: dict[str, None] = {}
    while len(texts) < count:
        num_words = min(max_words, 1 + int(rng.expovariate(4 / max_words)))
        texts[" ".join(rng.choices(WORDS, k=num_words))] = None
    return list(texts)


def count_differences(llm: LLM, compute: Compute, num_trials: int, max_words: int = 40, num_texts: int = 200) -> int:
    """Compare texts computed alone with the same texts among 1 to MAX_MATES others in random order."""
    rng = random.Random(num_trials)
    texts = make_texts(rng, num_texts, max_words)
    alone = {text: compute(llm, [text])[0] for text in texts}
    num_different = 0
    while num_trials > 0:
        batch = rng.sample(texts, rng.randint(2, MAX_MATES + 1))
        num_trials -= len(batch)
        num_different += sum(alone[text] != bits for text, bits in zip(batch, compute(llm, batch), strict=True))
    return num_different


@pytest.mark.timeout(3600 if NUM_TRIALS > 1000 else 180)
def test_embeddings_of_the_default_model_have_the_same_bits_in_every_batch(default_folder: Path) -> None:
    with LLM(str(default_folder), device="cpu", deterministic=True) as llm:
        assert llm.engine.model.is_batch_invariant
        assert count_differences(llm, embed, NUM_TRIALS) == 0


# how to save it, what to compute, whether it runs in batches
MODELS: dict[str, tuple[Callable[[Path], Any], Compute, bool]] = {
    "BERT": (tiny_bert, embed, True),
    "token embeddings": (tiny_bert, token_embed, True),
    "cross-encoder": (lambda folder: tiny_bert_classifier(folder, num_labels=1), score, True),
    "classifier": (tiny_bert_classifier, classify, True),
    "bi-encoder scores": (tiny_bert, score, True),
    "SPLADE": (tiny_splade, sparse_embed, True),
    "bge-m3 sparse": (tiny_bge_m3, sparse_embed, True),
    "ModernBERT": (tiny_modernbert, embed, True),
    "Qwen3, which shares prefixes": (lambda folder: tiny_qwen3(folder, head_dim=16), embed, True),
    "ALBERT": (lambda folder: save_tiny(folder, "AlbertModel"), embed, True),
    "T5": (lambda folder: save_tiny(folder, "T5EncoderModel"), embed, True),
    "DeBERTa": (lambda folder: save_tiny(folder, "DebertaV2Model"), embed, False),
    "mixture of experts": (lambda folder: save_tiny(folder, "Qwen3MoeModel"), embed, False),
    "Jamba": (lambda folder: save_tiny(folder, "JambaModel"), embed, False),
    "heads of unaligned width": (lambda folder: tiny_bert(folder, hidden_size=36, intermediate_size=50), embed, True),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # DeBERTa in Transformers
@pytest.mark.parametrize("name", MODELS)
def test_results_have_the_same_bits_in_every_batch(tmp_path: Path, name: str) -> None:
    save, compute, is_batch_invariant = MODELS[name]
    save(tmp_path)
    with LLM(str(tmp_path), device="cpu", dtype="float32", deterministic=True) as llm:
        assert llm.engine.model.is_batch_invariant == is_batch_invariant
        assert count_differences(llm, compute, 150, max_words=24, num_texts=60) == 0


def test_results_are_close_to_those_without_the_option(default_folder: Path, llm: LLM) -> None:
    texts = make_texts(random.Random(0), 20, 40)
    with LLM(str(default_folder), device="cpu", dtype="float32", deterministic=True) as deterministic:
        results = [torch.tensor([o.outputs.embedding for o in model.embed(texts)]) for model in (llm, deterministic)]

    torch.testing.assert_close(*results, atol=1e-5, rtol=0)


def test_long_texts_have_the_same_bits_in_every_batch(default_folder: Path) -> None:
    rng = random.Random(0)
    long = " ".join(rng.choices(WORDS, k=600))
    pooling = PoolerConfig(enable_chunked_processing=True, max_embed_len=4096)
    with LLM(str(default_folder), device="cpu", deterministic=True, pooler_config=pooling) as llm:
        (alone,) = embed(llm, [long])
        for _ in range(2):
            mates = make_texts(rng, 6, 200)
            assert embed(llm, [*mates, long])[6] == alone


def test_inputs_that_need_another_attention_kernel_run_apart() -> None:
    inputs = TokenizedInputs.from_ids(np.arange(9, dtype=np.int32), np.array([4, 5]), np.array([4, 5]))
    inputs.metadata["attended_len"][1] = 3

    assert find_plain(inputs).tolist() == [True, False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "name", ["BERT", "cross-encoder", "ModernBERT", "Qwen3, which shares prefixes", "T5", "SPLADE"]
)
def test_results_on_a_gpu_have_the_same_bits_in_every_batch(tmp_path: Path, name: str) -> None:
    save, compute, _ = MODELS[name]
    save(tmp_path)
    try:
        with LLM(str(tmp_path), device="cuda", dtype="bfloat16", deterministic=True) as llm:
            assert count_differences(llm, compute, 2000, max_words=24) == 0
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_default_model_on_a_gpu_has_the_same_bits_in_every_batch(default_folder: Path) -> None:
    try:
        with LLM(str(default_folder), device="cuda", dtype="bfloat16", deterministic=True) as llm:
            assert llm.engine.model.is_batch_invariant
            assert count_differences(llm, embed, 10_000) == 0
    finally:
        torch.use_deterministic_algorithms(False)
