"""The time of one text by part: tokenizer, model, engine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cenote.engine.engine import PoolingEngine
from cenote.engine.execution.executor import EchoExecutor
from cenote.explain.single_text import measure_single_texts
from cenote.llm import LLM
from tests.tiny import tiny_bert


@pytest.mark.parametrize("sleeps_in", ["executor", "tokenizer", "request checks"])
def test_time_counts_where_it_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeps_in: str) -> None:
    tiny_bert(tmp_path)

    def sleep(*_: object) -> None:
        time.sleep(0.05)

    with LLM(str(tmp_path)) as llm:
        executor = EchoExecutor(sleep if sleeps_in == "executor" else lambda batch: None)
        engine = PoolingEngine(llm.engine.model, llm.engine.config, executor)
        if sleeps_in != "executor":
            owner: object = engine.tokenizer if sleeps_in == "tokenizer" else engine.request_checks
            name = "encode_flat" if sleeps_in == "tokenizer" else "prepare"
            call = getattr(owner, name)
            monkeypatch.setattr(owner, name, lambda *args, **kwargs: sleep() or call(*args, **kwargs))
        try:
            times = measure_single_texts(engine, "embed", ["a cat", "a dog", "a bird"])
        finally:
            engine.stop()

    part = {"executor": times.model, "tokenizer": times.tokenizer, "request checks": times.engine}[sleeps_in]
    assert part >= 0.05
    assert abs(times.total - part) < 0.05  # They are measured in different calls.
    assert engine.core.loop.executor is executor
