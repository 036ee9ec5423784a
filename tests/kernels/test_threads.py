"""Small pieces of work use few threads."""

from __future__ import annotations

import pytest
import torch

from cenote.kernels.cpu import threads
from cenote.kernels.cpu.threads import MIN_WORK_OF_AMX_ENCODER, MIN_WORK_OF_ENCODER, MIN_WORK_OF_LINEAR, count_threads

MINILM = 10_616_832  # multiply-adds for a token


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch, use_all_threads: None) -> None:
    monkeypatch.setattr(threads, "ROWS_AT_ONCE", 16)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)


@pytest.mark.parametrize(("min_work", "expected"), [(MIN_WORK_OF_ENCODER, 16), (MIN_WORK_OF_AMX_ENCODER, 8)])
def test_a_short_query_does_not_wait_for_all_threads_of_a_large_machine(min_work: int, expected: int) -> None:
    assert count_threads(12, MINILM, min_work) == count_threads(4, MINILM, min_work) == expected


def test_a_batch_uses_all_threads() -> None:
    assert count_threads(1000, MINILM, MIN_WORK_OF_AMX_ENCODER) == 64


def test_a_head_with_one_output_and_an_empty_batch_use_one_thread() -> None:
    assert count_threads(100, 384, MIN_WORK_OF_LINEAR) == count_threads(0, MINILM, MIN_WORK_OF_ENCODER) == 1
