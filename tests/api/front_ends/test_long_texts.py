"""A front-end splits long texts into chunks, and takes the weighted mean of their vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cenote.config.pooler import PoolerConfig
from cenote.engine.execution.executor import BatchOutput, EchoExecutor
from cenote.engine.result_rows import RaggedRows
from cenote.engine.sequence_group import ScheduledBatch
from cenote.errors import InputTooLong, PoolingError
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import PoolRequest
from tests.api.front_ends.machines import Machine
from tests.api.front_ends.remote_link import connect_remote
from tests.engine.conftest import MakeEngine, raise_on_tokens
from tests.engine.metric_values import get_value

LONG = [number % 7 + 1000 for number in range(600)]
SHORT = [1001, 1002, 1003]
CHUNKED = PoolerConfig(enable_chunked_processing=True)


class SumExecutor(EchoExecutor):
    """Returns for every sequence its number of tokens and their sum."""

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        finish = super().start(batch)
        texts = np.split(batch.inputs.token_ids, batch.inputs.cu_seqlens[1:-1])
        rows = np.array([[len(text), text.sum()] for text in texts], np.float32)

        def finish_with_sums() -> BatchOutput:
            finish()
            return BatchOutput({spec: RaggedRows(rows) for spec in batch.specs[0]})

        return finish_with_sums


def pool(make: MakeEngine, inputs: Any, executor: Any = None, **options: Any) -> tuple[list[Any], list[Any]]:
    """Return the results of an engine itself, and of a front-end of it."""
    engine = make(executor or SumExecutor(), pooler_config=options.pop("pooler_config", CHUNKED))

    async def both() -> tuple[list[Any], list[Any]]:
        request = PoolRequest(task="embed", inputs=inputs, **options)
        async with connect_remote(engine) as (remote, _):
            local = await engine.pool(request)
            return local, await asyncio.wait_for(remote.pool(request), 20)

    return asyncio.run(both())


@pytest.mark.parametrize("inputs", [[LONG], [SHORT, LONG, SHORT, LONG[:256], LONG[:257]], [LONG] * 70])
def test_long_and_short_texts_have_the_vectors_and_counts_of_the_engine(make_engine: MakeEngine, inputs: Any) -> None:
    local, remote = pool(make_engine, inputs)

    for one, other in zip(local, remote, strict=True):
        assert np.array_equal(np.asarray(one.data), np.asarray(other.data))
        assert (one.num_tokens, one.num_input_tokens) == (other.num_tokens, other.num_input_tokens)
    assert [result.num_tokens for result in remote] == list(map(len, inputs))


async def test_a_text_in_chunks_counts_as_one_input(make_engine: MakeEngine) -> None:
    engine = make_engine(SumExecutor(), pooler_config=CHUNKED)

    async with connect_remote(engine) as (remote, _):
        await asyncio.wait_for(remote.pool(PoolRequest(task="embed", inputs=[LONG, SHORT, LONG])), 20)

    assert get_value(engine, "cenote_inputs_total") == 3


def test_a_text_that_is_cut_to_more_than_one_chunk_is_counted_before_and_after(make_engine: MakeEngine) -> None:
    cut = TokenizationParams(truncate_prompt_tokens=300)
    local, remote = pool(make_engine, [LONG], tokenization=cut)

    assert (remote[0].num_tokens, remote[0].num_input_tokens) == (300, 600)
    assert (local[0].num_tokens, local[0].num_input_tokens) == (300, 600)


def test_a_text_above_max_embed_len_is_refused_alone(make_engine: MakeEngine) -> None:
    limited = PoolerConfig(enable_chunked_processing=True, max_embed_len=400)
    _, remote = pool(make_engine, [LONG, LONG[:300], SHORT], pooler_config=limited, return_exceptions=True)

    assert isinstance(remote[0], InputTooLong) and "max_embed_len 400" in str(remote[0])
    assert [result.num_tokens for result in remote[1:]] == [300, 3]


def test_a_chunk_that_fails_fails_its_text_once(make_engine: MakeEngine) -> None:
    poisoned = [*LONG[:100], 666, *LONG[100:400], 666, *LONG]
    executor = SumExecutor(raise_on_tokens(666))
    local, remote = pool(make_engine, [LONG, poisoned, SHORT], executor, return_exceptions=True)

    assert "poisoned" in str(local[1])
    for results in (local, remote):
        assert isinstance(results[1], PoolingError) and results[1].index == 1
        assert [result.num_tokens for result in (results[0], results[2])] == [600, 3]


async def test_only_chunks_without_a_result_are_sent_again_after_a_crash(make_engine: MakeEngine) -> None:
    text = [*LONG[:256], *LONG[:255], 666, *LONG[1:257]]

    machine = Machine(make_engine)
    hang = await machine.start(666, pooler_config=CHUNKED, max_num_seqs=1)
    pooled = asyncio.ensure_future(machine.remote.pool(PoolRequest(task="embed", inputs=[text])))
    await asyncio.to_thread(hang.gate.reached.wait, 20)
    await machine.crash(cause="external")
    hang.gate.opened.set()
    again = await machine.start(pooler_config=CHUNKED, max_num_seqs=1)
    (result,) = await asyncio.wait_for(pooled, 20)
    machine.remote.close()

    assert result.num_tokens == len(text)
    assert sorted(again.batches) == sorted([text[256:512], text[512:]])
