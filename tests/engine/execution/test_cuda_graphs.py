"""CUDA graphs: buckets of small batches, and results equal to those without graphs."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from cenote.config.engine import EngineConfig
from cenote.engine.execution import device_to_host
from cenote.engine.execution.cuda_graphs import (
    MAX_GRAPHS,
    CudaGraphCache,
    GraphBucket,
    select_bucket,
    supports_cuda_graphs,
)
from cenote.engine.execution.cuda_graphs import NUM_SEQS_BUCKETS as GRAPH_SEQUENCES
from cenote.engine.execution.cuda_graphs import NUM_TOKENS_BUCKETS as GRAPH_TOKENS
from cenote.engine.execution.cuda_graphs import SEQ_LEN_BUCKETS as GRAPH_LENGTHS
from cenote.engine.execution.gpu_executor import GPUExecutor
from cenote.engine.execution.torch_executor import TorchExecutor
from cenote.engine.execution.warmup import NullReceiver
from cenote.engine.sequence_group import GroupSlice, ScheduledBatch, SequenceGroup
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.loading.load import LoadedModel, load_model
from cenote.packed_batch import pack_sequences
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.params import PoolingOptions
from tests.tiny import SEQUENCES, copy_to_device, save_tiny, save_tokenizer

EMBED = (PoolingSpec("embed", PoolingOptions()),)


def test_one_query_fills_its_bucket() -> None:
    assert select_bucket(16, 1, 16) == GraphBucket(num_tokens=16, num_seqs=1, max_seqlen=16)


def test_an_unused_sequence_starts_at_an_existing_token() -> None:
    assert select_bucket(32, 2, 16) == GraphBucket(num_tokens=64, num_seqs=4, max_seqlen=16)
    assert select_bucket(31, 2, 16) == GraphBucket(num_tokens=32, num_seqs=4, max_seqlen=16)


@pytest.mark.parametrize("tokens, sequences, longest", [(5000, 1, 5000), (1000, 1000, 1), (8192, 3, 4000)])
def test_a_batch_larger_than_every_bucket_is_not_captured(tokens: int, sequences: int, longest: int) -> None:
    assert select_bucket(tokens, sequences, longest) is None


def test_a_bucket_holds_what_it_is_chosen_for() -> None:
    for tokens in range(1, 4000, 37):
        for sequences in (1, 2, 7, 16, 100):
            longest = max(1, tokens - sequences + 1)
            bucket = select_bucket(tokens, sequences, longest)
            if sequences <= tokens and bucket is not None:
                assert bucket.num_tokens >= tokens and bucket.num_seqs >= sequences and bucket.max_seqlen >= longest
                assert bucket.num_tokens > tokens or bucket.num_seqs == sequences


def test_no_graphs_are_captured_on_a_cpu(loaded: LoadedModel) -> None:
    assert not supports_cuda_graphs(loaded.backbone)


def load_tiny(folder: Path) -> LoadedModel:
    save_tiny(folder, "BertModel")
    return load_model(EngineConfig.from_kwargs(str(folder), dtype="bfloat16", device="cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["BertModel", "LlamaModel", "ModernBertModel"])
@pytest.mark.parametrize("pooling", ["MEAN", "CLS", "LAST"])
def test_a_captured_graph_gives_the_same_result_as_the_model(name: str, pooling: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, name)
    config = EngineConfig.from_kwargs(
        str(tmp_path), dtype="bfloat16", device="cuda", pooler_config={"pooling_type": pooling}
    )
    loaded = load_model(config)
    device = torch.device("cuda")
    model = CudaGraphCache(loaded.backbone, loaded.pooler, device)

    with torch.inference_mode():
        # large, small and large again: values left in the buffers by one batch do not affect the next
        for sequences in (SEQUENCES, SEQUENCES[:1], SEQUENCES[3:5], SEQUENCES[::-1], [[7] * 30], SEQUENCES):
            lengths = np.array(list(map(len, sequences)))
            groups = model(
                TokenizedInputs.from_ids(np.concatenate(sequences), lengths, lengths), [EMBED] * len(sequences)
            )
            assert groups is not None
            (result,) = groups
            batch = copy_to_device(pack_sequences(sequences), "cuda")
            (expected,) = loaded.pooler(loaded.backbone(batch), batch, [EMBED] * batch.num_seqs)
            assert result.seq_indices == expected.seq_indices
            assert_close(result.rows, expected.rows, atol=1e-2, rtol=1e-2)

    assert 3 <= len(model.graphs) <= 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_requests_with_any_dimensions_share_a_graph(tmp_path: Path) -> None:
    loaded = load_tiny(tmp_path)
    model = CudaGraphCache(loaded.backbone, loaded.pooler, torch.device("cuda"))
    lengths = np.array(list(map(len, SEQUENCES)))
    inputs = TokenizedInputs.from_ids(np.concatenate(SEQUENCES), lengths, lengths)
    batch = copy_to_device(pack_sequences(SEQUENCES), "cuda")

    with torch.inference_mode():
        for options in (PoolingOptions(), *(PoolingOptions(dimensions=size) for size in range(1, 30))):
            specs = [(PoolingSpec("embed", options),)] * len(SEQUENCES)
            groups = model(inputs, specs)
            assert groups is not None
            (expected,) = loaded.pooler(loaded.backbone(batch), batch, specs)
            assert groups[0].spec == expected.spec
            assert_close(groups[0].rows, expected.rows, atol=1e-2, rtol=1e-2)

    assert len(model.graphs) == 1


# every bucket of tokens with every bucket of sequences, completely filled: (sequences, tokens of each)
SHAPES = [
    (count, tokens // count)
    for tokens in GRAPH_TOKENS
    for count in GRAPH_SEQUENCES
    if 1 <= tokens // count <= GRAPH_LENGTHS[-1]
]
# several milliseconds at any clock rate: work on other streams finishes first unless it waits for this stream
DELAY_CYCLES = 20_000_000


def make_batches(count: int, length: int, seeds: range, vocab_size: int) -> list[ScheduledBatch]:
    """Return one batch per seed, with different token ids."""
    lengths = np.full(count, length)
    generators = [np.random.default_rng([count, length, seed]) for seed in seeds]
    batch_inputs = [
        TokenizedInputs.from_ids(rng.integers(5, vocab_size, count * length).astype(np.int32), lengths, lengths)
        for rng in generators
    ]
    return [
        ScheduledBatch([GroupSlice(SequenceGroup(inputs, np.arange(count), EMBED, NullReceiver()), 0, count)])
        for inputs in batch_inputs
    ]


def run_without_graphs(loaded: LoadedModel, batch: ScheduledBatch) -> torch.Tensor:
    """Return the results of a batch, on the host."""
    with torch.inference_mode():
        (group,) = TorchExecutor(loaded.backbone, loaded.pooler, torch.device("cuda")).run(batch)
    return group.rows.float().cpu()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "side_stream_bytes", [device_to_host.SIDE_STREAM_MIN_BYTES, -1], ids=["default", "every result"]
)
@pytest.mark.parametrize("hidden_size", [64, 1024, 4096])
def test_batches_back_to_back_get_their_own_results_in_every_bucket(
    hidden_size: int, side_stream_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_to_host, "SIDE_STREAM_MIN_BYTES", side_stream_bytes)
    # weights as Transformers initialises them: larger ones amplify rounding errors too much at this width
    heads = {"num_attention_heads": hidden_size // 64, "intermediate_size": 256, "num_hidden_layers": 1}
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=160, hidden_size=hidden_size, max_position_embeddings=4096, **heads))
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, max_length=4096)
    loaded = load_model(EngineConfig.from_kwargs(str(tmp_path), dtype="bfloat16", device="cuda"))
    executor = GPUExecutor(loaded.backbone, loaded.pooler, torch.device("cuda"))

    batches = [batch for count, length in SHAPES for batch in make_batches(count, length, range(4), 160)]
    in_flight, results = deque(), []
    for batch in batches:
        with torch.cuda.stream(executor.d2h_copier.stream):
            torch.cuda._sleep(DELAY_CYCLES)  # delays copies on the side stream
        in_flight.append(executor.start(batch))
        if len(in_flight) == 2:  # the engine loop starts a batch before it delivers the previous one
            results.append(in_flight.popleft()())
    results += [wait() for wait in in_flight]

    num_expected = sum(count * length <= executor.graphs.max_tokens for count, length in SHAPES)
    assert len(executor.graphs.graphs) == num_expected < MAX_GRAPHS
    for batch, result in zip(batches, results, strict=True):
        assert not result.failed_indices
        (actual,) = result.rows.values()
        cosine = torch.cosine_similarity(torch.from_numpy(actual.values), run_without_graphs(loaded, batch)).min()
        assert cosine > 0.999, f"{len(batch)} sequences, {batch.num_tokens} tokens: {cosine}"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_prepared_batches_use_the_pinned_memory_of_those_before(tmp_path: Path) -> None:
    loaded = load_tiny(tmp_path)
    executor = GPUExecutor(loaded.backbone, loaded.pooler, torch.device("cuda"))
    batches = make_batches(1, 9, range(8), 100)
    first = executor.start(batches[0])()  # captures the graph
    assert not executor.is_prepared(make_batches(1, 40, range(1), 100)[0])

    results, in_flight = [], deque()
    for batch in batches:
        assert executor.is_prepared(batch)
        in_flight.append(executor.start(batch))
        if len(in_flight) == 2:
            results.append(in_flight.popleft()())
    results.append(in_flight.popleft()())

    (entry,) = executor.graphs.graphs.entries.values()
    assert len(entry.graph.free_buffers) == 2  # as many as were in flight
    assert np.array_equal(results[0].rows[EMBED[0]].values, first.rows[EMBED[0]].values)
    for batch, result in zip(batches, results, strict=True):
        actual = torch.from_numpy(result.rows[EMBED[0]].values)
        assert_close(actual, run_without_graphs(loaded, batch), atol=1e-2, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_prepared_batches_with_options_get_their_own_results(tmp_path: Path) -> None:
    loaded = load_tiny(tmp_path)
    executor = GPUExecutor(loaded.backbone, loaded.pooler, torch.device("cuda"))
    (batch,) = make_batches(1, 9, range(1), 100)
    executor.start(batch)()
    spec = PoolingSpec("embed", PoolingOptions(dimensions=8))
    cut = ScheduledBatch([GroupSlice(SequenceGroup(batch.inputs, np.arange(1), (spec,), NullReceiver()), 0, 1)])

    assert executor.is_prepared(cut)
    assert executor.start(cut)().rows[spec].values.shape == (1, 8)
