"""CUDA graphs for small batches: replay the whole model with one launch, where kernel launches dominate."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cenote.engine.execution.device_to_host import uses_side_stream
from cenote.engine.execution.graph_table import GraphTable
from cenote.inputs.tokenized_inputs import Int64Array, TokenizedInputs
from cenote.kernels.gpu.few_rows import MAX_ROWS, disable_few_rows_mode, few_rows_mode
from cenote.kernels.gpu.triton_support import HALF_DTYPES, can_use_triton
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, InputEmbedding
from cenote.layers.mlp import MLP, GatedMLP
from cenote.packed_batch import PackedBatch
from cenote.pooling.pooler import PooledGroup, Pooler, PoolingSpec
from cenote.protocol.params import PoolingOptions

logger = logging.getLogger("cenote")

# a batch is padded to the smallest bucket that holds it
NUM_TOKENS_BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 8192)
# wide models spend so long on this many tokens that launches do not matter, and a graph would take much memory
MAX_WIDE_TOKENS, WIDE_HIDDEN_SIZE = 4096, 1025
NUM_SEQS_BUCKETS = (1, 4, 16, 64, 256)
SEQ_LEN_BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# each graph takes some megabytes and a tenth of a second to capture
MAX_GRAPHS = 64
# pinned memory up to this size is kept for the next replay of a graph: allocating it takes longer than filling it
MAX_KEPT_BYTES = 64 * 1024


class GraphBucket(NamedTuple):
    num_tokens: int
    num_seqs: int
    max_seqlen: int


class GraphKey(NamedTuple):
    """What a captured graph depends on; other options are applied to its output."""

    bucket: GraphBucket
    spec: PoolingSpec  # see make_graph_spec
    has_token_type_ids: bool


def make_graph_spec(spec: PoolingSpec) -> PoolingSpec:
    """Return the part of a spec that is computed inside of a graph; specs with the same part share their graphs.

    Dimensions, normalization and activation come after the head. The columns of a classifier are part of it.
    """
    columns = spec.options.returned_token_ids if spec.task == "classify" else None
    return PoolingSpec(spec.task, PoolingOptions(returned_token_ids=columns))


def select_bucket(num_tokens: int, num_seqs: int, max_seqlen: int) -> GraphBucket | None:
    """Return the smallest bucket that holds a batch; None if the batch is too large for a graph."""
    bucket_seqs = _smallest_bucket(NUM_SEQS_BUCKETS, num_seqs)
    if bucket_seqs is None:
        return None
    # padding sequences are empty and start after the last token, where the buffers must have one more token
    bucket_tokens = _smallest_bucket(NUM_TOKENS_BUCKETS, num_tokens + (bucket_seqs > num_seqs))
    bucket_seqlen = _smallest_bucket(SEQ_LEN_BUCKETS, max_seqlen)
    if bucket_tokens is None or bucket_seqlen is None:
        return None
    return GraphBucket(bucket_tokens, bucket_seqs, min(bucket_seqlen, bucket_tokens))


def _smallest_bucket(sizes: Sequence[int], needed: int) -> int | None:
    index = bisect_left(sizes, needed)
    return sizes[index] if index < len(sizes) else None


class CudaGraphCache:
    """CUDA graphs of the model by bucket and task, captured on first use; they share one memory pool."""

    def __init__(self, backbone: nn.Module, pooler: Pooler, device: torch.device) -> None:
        self.backbone = backbone
        self.pooler = pooler
        self.device = device
        self.is_enabled = supports_cuda_graphs(backbone) and pooling_supports_cuda_graphs(pooler)
        self.graphs = GraphTable(self._capture, self._wait_for_graphs, MAX_GRAPHS)
        self.memory_pool: Any = None  # can be shared because one graph runs at a time

    @property
    def max_tokens(self) -> int:
        """The largest batch that may run as a graph."""
        return get_max_tokens(self.backbone)

    def __call__(self, inputs: TokenizedInputs, specs: Sequence[Sequence[PoolingSpec]]) -> list[PooledGroup] | None:
        """Return the pooled results of inputs without adapters; None if no graph can run them."""
        if (key := self._make_key(inputs, specs)) is None or (graph := self._get_or_capture(key)) is None:
            return None
        ((spec,), *_) = specs
        return [PooledGroup(spec, list(range(len(inputs))), graph.run(inputs, spec.options))]

    def find(self, inputs: TokenizedInputs, specs: Sequence[Sequence[PoolingSpec]]) -> CapturedGraph | None:
        """Return the graph for these inputs if it has been captured already."""
        key = self._make_key(inputs, specs)
        return None if key is None else self.graphs.find(key)

    def _make_key(self, inputs: TokenizedInputs, specs: Sequence[Sequence[PoolingSpec]]) -> GraphKey | None:
        if not self.is_enabled or len(inputs.token_ids) > self.max_tokens:
            return None
        first = specs[0]
        if len(first) != 1 or any(seq_specs != first for seq_specs in specs):
            return None
        (spec,) = first
        if spec.task not in ("embed", "classify") or spec.is_max_sim or not _is_plain(inputs):
            return None
        num_tokens, num_seqs = len(inputs.token_ids), len(inputs)
        bucket = select_bucket(num_tokens, num_seqs, num_tokens if num_seqs == 1 else int(inputs.lengths.max()))
        if bucket is None:
            return None
        has_token_type_ids = not inputs.is_plain and bool((inputs.metadata["type1_start"] < inputs.lengths).any())
        return GraphKey(bucket, make_graph_spec(spec), has_token_type_ids)

    def _get_or_capture(self, key: GraphKey) -> CapturedGraph | None:
        try:
            return self.graphs.get(key)
        except Exception as error:  # too little memory, a library that does not support capture, or any of a compiler
            logger.warning("CUDA graph capture failed; small batches run without graphs: %s", error)
            self.is_enabled = False
            return None

    def _capture(self, key: GraphKey) -> CapturedGraph:
        try:
            graph = CapturedGraph(key, self.backbone, self.pooler, self.device, self.memory_pool)
        except Exception as error:
            if key.bucket.num_tokens > MAX_ROWS or not disable_few_rows_mode():
                raise
            logger.warning("kernels for few tokens failed; short texts use the others, more slowly: %s", error)
            graph = CapturedGraph(key, self.backbone, self.pooler, self.device, self.memory_pool)
        self.memory_pool = graph.graph.pool()
        return graph

    def _wait_for_graphs(self) -> None:
        """Wait for the last replay, on the stream that all graphs run on, before the memory of a graph is freed."""
        torch.cuda.current_stream(self.device).synchronize()


def get_max_tokens(backbone: nn.Module) -> int:
    is_wide = isinstance(backbone, Backbone) and backbone.spec.hidden_size >= WIDE_HIDDEN_SIZE
    return MAX_WIDE_TOKENS if is_wide else NUM_TOKENS_BUCKETS[-1]


def supports_cuda_graphs(backbone: nn.Module) -> bool:
    """Return whether the backbone never reads lengths or computed values on the host, as graph capture requires."""
    if type(backbone) is not Backbone or type(backbone.embed) is not InputEmbedding or backbone.bias is not None:
        return False
    parameter = next(backbone.parameters())
    spec = backbone.spec
    has_supported_heads = spec.softcap is None and spec.head_size <= 128 and spec.head_size % 8 == 0
    return (
        can_use_triton(parameter)
        and parameter.dtype in HALF_DTYPES
        and has_supported_heads
        and all(
            isinstance(layer.mixer, Attention)
            and type(layer.mixer).forward is Attention.forward
            and layer.mixer.sinks is None
            and type(layer.mlp) in (MLP, GatedMLP)
            for layer in backbone.layers
        )
    )


def pooling_supports_cuda_graphs(pooler: Pooler) -> bool:
    """Return whether the pooler can be captured: MAX pooling and SPLADE synchronize with the device."""
    return pooler.heads.splade is None and "MAX" not in pooler.plan.seq_pooling_types.value


def _is_plain(inputs: TokenizedInputs) -> bool:
    """Return whether all tokens of all inputs are token ids that are attended to and pooled."""
    if inputs.row_mask is not None or inputs.inputs_embeds is not None or inputs.images is not None:
        return False
    if inputs.is_plain:
        return True
    metadata = inputs.metadata
    return not (metadata["num_unpooled"].any() or (metadata["attended_len"] < metadata["length"]).any())


class CapturedGraph:
    """A captured graph of one bucket with its static input and output buffers.

    It has two outputs: the rows as they leave the head, and the results of requests without options.
    """

    def __init__(
        self, key: GraphKey, backbone: nn.Module, pooler: Pooler, device: torch.device, memory_pool: Any
    ) -> None:
        num_tokens, num_seqs, max_seqlen = key.bucket
        sizes = [num_tokens, num_tokens, num_tokens if key.has_token_type_ids else 0, num_seqs + 1]
        self.input_slices = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        with torch.inference_mode(False):  # so that inputs can be copied to it outside of inference mode
            self.static_inputs = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        token_ids, positions, token_types, cu_seqlens = self.static_inputs.split(sizes)  # type: ignore[no-untyped-call]
        cu_seqlens[1:] = max_seqlen if num_seqs == 1 else min(max_seqlen, num_tokens - 1)

        self.pooler = pooler
        self.task = key.spec.task
        self.default_options = pooler.plan.resolve_options(self.task, None)._replace(
            returned_token_ids=key.spec.options.returned_token_ids
        )

        def run() -> tuple[Tensor, Tensor]:
            # a new batch each time: values cached by an earlier one would not be computed in the graph
            batch = PackedBatch(
                token_ids=token_ids,
                positions=positions,
                cu_seqlens=cu_seqlens,
                seq_lens_cpu=(max_seqlen,) * num_seqs,
                token_type_ids=token_types if key.has_token_type_ids else None,
                lens_are_upper_bounds=True,
            )
            with few_rows_mode(num_tokens, device):
                raw = pooler.pool_raw(backbone(batch), batch, key.spec)
                return raw, pooler.finish(raw, self.task, self.default_options)

        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):  # compile kernels and initialize libraries before the capture
            run()
            run()
        torch.cuda.current_stream(device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # thread_local: other threads may use the device meanwhile, for example to copy results
        with torch.cuda.graph(self.graph, pool=memory_pool, stream=stream, capture_error_mode="thread_local"):
            self.static_raw, self.static_output = run()
        self.arange = np.arange(num_tokens)
        self.keeps_buffers = self.static_inputs.nbytes + self.static_output.nbytes <= MAX_KEPT_BYTES
        self.free_buffers: list[HostBuffers] = []  # of earlier replays; used by several threads

    def start(self, inputs: TokenizedInputs, options: PoolingOptions) -> Callable[[], Tensor] | None:
        """Replay the graph for these inputs and copy the results; return a function that waits for them on the host.

        None if the results are large, or not those of requests without options: `run` computes them.
        """
        if not self.keeps_buffers or options != self.default_options:
            return None
        buffers = self.free_buffers.pop() if self.free_buffers else HostBuffers(self)
        self._replay(inputs, buffers.inputs, buffers.columns)
        buffers.output.copy_(self.static_output, non_blocking=True)
        buffers.done.record()
        return partial(self._wait, buffers, len(inputs))

    def _wait(self, buffers: HostBuffers, num_seqs: int) -> Tensor:
        buffers.done.synchronize()
        rows = buffers.output[:num_seqs].clone()
        self.free_buffers.append(buffers)  # not after an error: the device may still use them
        return rows

    def run(self, inputs: TokenizedInputs, options: PoolingOptions) -> Tensor:
        """Replay the graph for these inputs and return the results.

        They are valid until the next replay of any graph: copy them on the current stream before.
        """
        staging = torch.empty(self.static_inputs.shape, dtype=torch.int64, pin_memory=True)
        self._replay(inputs, staging, split_columns(staging, self.input_slices))
        # The next replay overwrites both outputs, and so may the replay of any other graph of this memory pool, whose
        # scratch may lie there. A copy on this stream is ordered before them; a copy on another stream would not be.
        # Small results are copied to the host on this stream, without a copy on the device.
        num_seqs = len(inputs)
        if options == self.default_options:
            rows = self.static_output[:num_seqs]
            num_mask_bytes = num_seqs  # whether each row is finite is copied with them
            return rows.clone() if uses_side_stream(rows.nbytes + num_mask_bytes) else rows
        finished: Tensor = self.pooler.finish(self.static_raw[:num_seqs].clone(), self.task, options)
        return finished

    def _replay(self, inputs: TokenizedInputs, staging: Tensor, columns: Sequence[Int64Array]) -> None:
        """Copy the inputs to the device by way of `staging`, which consists of these columns, and replay the graph."""
        token_ids, positions, token_types, cu_seqlens = columns
        num_tokens, num_seqs = len(inputs.token_ids), len(inputs)
        token_ids[:num_tokens] = inputs.token_ids
        token_ids[num_tokens:] = 0  # padding tokens, which belong to no sequence
        positions[:num_tokens] = self.arange[:num_tokens]
        if num_seqs > 1:
            positions[:num_tokens] -= np.repeat(inputs.cu_seqlens[:-1], inputs.lengths)
        positions[num_tokens:] = 0
        if len(token_types):
            type1_start = np.repeat(inputs.metadata["type1_start"], inputs.lengths)
            token_types[:num_tokens] = positions[:num_tokens] >= type1_start
            token_types[num_tokens:] = 0
        cu_seqlens[: num_seqs + 1] = inputs.cu_seqlens
        cu_seqlens[num_seqs + 1 :] = num_tokens  # padding sequences are empty
        self.static_inputs.copy_(staging, non_blocking=True)
        self.graph.replay()


class HostBuffers:
    """Pinned memory for the inputs and results of one replay of a graph, and the event that marks its end."""

    def __init__(self, graph: CapturedGraph) -> None:
        output = graph.static_output
        with torch.inference_mode(False):
            self.inputs = torch.empty(graph.static_inputs.shape, dtype=torch.int64, pin_memory=True)
            self.output = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)
        self.columns = split_columns(self.inputs, graph.input_slices)
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]


def split_columns(staging: Tensor, parts: Sequence[slice]) -> list[Int64Array]:
    values = staging.numpy()
    return [values[part] for part in parts]
