"""Scaling benchmark: lazily generated texts, linear time and constant memory."""

from __future__ import annotations

import argparse

import pytest
import torch

from cenote import LLM
from cenote.bench.workloads import single_token_words
from lab.memory import PeakMemory
from lab.scaling import RandomTexts, ScalingStep, format_table, parse_steps, run_step, summarize_steps


def step(tokens: int, per_s: float, peak: float, device: float | None = None) -> ScalingStep:
    return ScalingStep(tokens, tokens / per_s, per_s, peak, device)


def test_texts_are_generated_in_slices_and_all_differ() -> None:
    slices = list(RandomTexts([f"w{number}" for number in range(40)], length=8).iter_slices(100, 10))

    texts = [text for batch in slices for text in batch]
    assert len(texts) == len(set(texts)) == 100
    assert max(map(len, slices)) == 10
    assert {len(text.split()) for text in texts} == {8}


def test_words_are_repeated_if_there_are_fewer_than_the_text_length() -> None:
    texts = [text for batch in RandomTexts(["a", "b", "c"], length=8).iter_slices(20, 10) for text in batch]

    assert len(texts) == 20 and {len(text.split()) for text in texts} == {8}


def test_a_step_computes_the_requested_number_of_tokens(llm: LLM) -> None:
    texts = RandomTexts(single_token_words(llm.get_tokenizer().backend_tokenizer), length=14)

    tokens, seconds = run_step(llm, texts, 800)

    assert tokens == 800 and seconds > 0


def test_time_that_is_not_linear_is_reported() -> None:
    linear, flat = summarize_steps([step(10_000, 100.0, 5), step(200_000, 99.0, 9), step(10**7, 95.0, 12)], 100_000)
    slower, grown = summarize_steps([step(10_000, 100.0, 5), step(200_000, 60.0, 9), step(10**7, 30.0, 900)], 100_000)

    assert linear.startswith("1,000 times the tokens took 1.05 times") and linear.endswith(": linear")
    assert flat == "from 200,000 to 10,000,000 tokens the peak of memory grew by 3 MiB: flat"
    assert slower.endswith("more than linear") and grown.endswith("891 MiB: not flat")


def test_growing_device_memory_is_reported() -> None:
    assert summarize_steps([step(200_000, 1.0, 5, 100), step(10**6, 1.0, 5, 900)], 1)[1].endswith("800 MiB: not flat")


def test_one_full_step_gives_no_verdict_on_memory() -> None:
    assert "nothing can be said" in summarize_steps([step(10_000, 1.0, 5), step(200_000, 1.0, 9)], 100_000)[1]


def test_the_table_has_a_line_per_step() -> None:
    assert len(format_table([step(10, 1.0, 2), step(20, 1.0, 2, 3)]).splitlines()) == 3


def test_the_peak_of_memory_is_measured_after_it_was_freed() -> None:
    def measure() -> float:
        peak = PeakMemory(torch.device("cpu"))
        buffer = bytearray(96 * 2**20)
        buffer[:: 2**12] = b"x" * len(buffer[:: 2**12])
        del buffer
        host, device = peak.measure_mib()
        assert device is None
        return host

    # the kernel may take other pages of this process meanwhile
    assert any(80 < measure() < 400 for _ in range(10))


def test_steps_accept_k_and_m_suffixes() -> None:
    assert parse_steps("1M,10k, 500") == [500, 10_000, 1_000_000]
    with pytest.raises(argparse.ArgumentTypeError, match="10k,100k"):
        parse_steps("many")
