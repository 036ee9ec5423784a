"""Removal of marker tokens from the texts of listwise rerankers."""

from __future__ import annotations

import random
import time

from cenote.inputs.listwise_prompt import DOCUMENT_TOKEN, QUERY_TOKEN, strip_special_tokens

PIECES = [DOCUMENT_TOKEN, QUERY_TOKEN, "<|embed_", "token|>", "<|rerank_", "<|", "|>", "<", ">", "é", "\ud800", "a"]


def strip_repeatedly(text: str) -> str:
    while DOCUMENT_TOKEN in text or QUERY_TOKEN in text:
        text = text.replace(DOCUMENT_TOKEN, "").replace(QUERY_TOKEN, "")
    return text


def test_the_result_is_that_of_repeated_replacement() -> None:
    rng = random.Random(7)
    texts = ["".join(rng.choices(PIECES, k=rng.randrange(40))) for _ in range(20_000)]

    assert sum(strip_repeatedly(text) != text for text in texts) > 5_000
    assert [strip_special_tokens(text) for text in texts] == [strip_repeatedly(text) for text in texts]


def test_the_time_is_linear_in_the_length_of_nested_markers() -> None:
    nested = "<|embed_" * 100_000 + DOCUMENT_TOKEN + "token|>" * 100_000
    start = time.process_time()

    assert strip_special_tokens(nested) == ""
    assert time.process_time() - start < 2  # repeated replacement takes minutes
