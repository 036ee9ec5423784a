"""Small batches as recorded CUDA graphs: one launch for a whole model, where launching its parts takes longest."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.kernels.gpu.triton_support import HALF_DTYPES, can_use_triton
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, InputEmbedding
from cenote.layers.mlp import MLP, GatedMLP
from cenote.packed_batch import PackedBatch
from cenote.pooling.pooler import PooledGroup, Pooler, PoolingSpec

logger = logging.getLogger("cenote")

# a batch is recorded as the smallest of these that holds it
NUM_TOKENS_BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
NUM_SEQS_BUCKETS = (1, 4, 16, 64, 256)
SEQ_LEN_BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# each takes some megabytes and a tenth of a second; what comes after them is launched part by part
MAX_GRAPHS = 64


class GraphBucket(NamedTuple):
    num_tokens: int
    num_seqs: int
    max_seqlen: int


class GraphKey(NamedTuple):
    bucket: GraphBucket
    spec: PoolingSpec
    has_token_type_ids: bool


def select_bucket(num_tokens: int, num_seqs: int, max_seqlen: int) -> GraphBucket | None:
    """The smallest that holds so much; None where a batch is large enough to be launched part by part."""
    room = _smallest_bucket(NUM_SEQS_BUCKETS, num_seqs)
    if room is None:
        return None
    # sequences that are not there begin behind the last token, and that place must be one
    held = _smallest_bucket(NUM_TOKENS_BUCKETS, num_tokens + (room > num_seqs))
    reach = _smallest_bucket(SEQ_LEN_BUCKETS, max_seqlen)
    return None if held is None or reach is None else GraphBucket(held, room, min(reach, held))


def _smallest_bucket(sizes: Sequence[int], needed: int) -> int | None:
    at = bisect_left(sizes, needed)
    return sizes[at] if at < len(sizes) else None


class CudaGraphCache:
    """The model as recordings of it, made when a batch of a new bucket comes; they share their memory."""

    def __init__(self, backbone: nn.Module, pooler: Pooler, device: torch.device) -> None:
        self.backbone = backbone
        self.pooler = pooler
        self.device = device
        self.is_enabled = supports_cuda_graphs(backbone) and pooling_supports_cuda_graphs(pooler)
        self.graphs: dict[GraphKey, CapturedGraph] = {}
        self.memory_pool: Any = None  # the memory: one recording runs at a time

    def __call__(self, inputs: TokenizedInputs, specs: Sequence[Sequence[PoolingSpec]]) -> list[PooledGroup] | None:
        """What the pooler answers to these inputs, read without adapters; None where they are not recorded."""
        if (key := self._make_key(inputs, specs)) is None or (recording := self._get_or_capture(key)) is None:
            return None
        return [PooledGroup(key.spec, list(range(len(inputs))), recording.run(inputs))]

    def _make_key(self, inputs: TokenizedInputs, specs: Sequence[Sequence[PoolingSpec]]) -> GraphKey | None:
        if not self.is_enabled or len(inputs.token_ids) > NUM_TOKENS_BUCKETS[-1]:
            return None
        wanted = specs[0]
        if len(wanted) != 1 or any(several != wanted for several in specs):
            return None
        (ask,) = wanted
        if ask.task not in ("embed", "classify") or ask.is_max_sim or not _is_plain(inputs):
            return None
        bucket = select_bucket(len(inputs.token_ids), len(inputs), int(inputs.lengths.max()))
        return (
            None
            if bucket is None
            else GraphKey(bucket, ask, bool((inputs.metadata["type1_start"] < inputs.lengths).any()))
        )

    def _get_or_capture(self, key: GraphKey) -> CapturedGraph | None:
        if (recording := self.graphs.get(key)) is None and len(self.graphs) < MAX_GRAPHS:
            try:
                recording = CapturedGraph(key, self.backbone, self.pooler, self.device, self.memory_pool)
            except RuntimeError as error:  # too little memory, or a library that cannot be recorded
                logger.warning("small batches are launched part by part: recording them failed: %s", error)
                self.is_enabled = False
                return None
            self.graphs[key] = recording
            self.memory_pool = recording.graph.pool()
        return recording


def supports_cuda_graphs(backbone: nn.Module) -> bool:
    """Whether nothing in it looks at the lengths of a batch on the host, or at what it computed."""
    if type(backbone) is not Backbone or type(backbone.embed) is not InputEmbedding or backbone.bias is not None:
        return False
    parameter = next(backbone.parameters())
    spec = backbone.spec
    plain_heads = spec.softcap is None and spec.head_size <= 128 and spec.head_size % 8 == 0
    return (
        can_use_triton(parameter)
        and parameter.dtype in HALF_DTYPES
        and plain_heads
        and all(
            isinstance(layer.mixer, Attention)
            and type(layer.mixer).forward is Attention.forward
            and layer.mixer.sinks is None
            and type(layer.mlp) in (MLP, GatedMLP)
            for layer in backbone.layers
        )
    )


def pooling_supports_cuda_graphs(pooler: Pooler) -> bool:
    """Torch asks the device for the lengths to find the largest of each sequence, and a recording cannot wait."""
    return pooler.heads.splade is None and "MAX" not in pooler.plan.seq_pooling_types.value


def _is_plain(inputs: TokenizedInputs) -> bool:
    """Whether all tokens of all inputs are read, seen and pooled."""
    facts = inputs.metadata
    odd = inputs.row_mask is not None or inputs.inputs_embeds is not None or inputs.images is not None
    return not (odd or facts["num_unpooled"].any() or (facts["attended_len"] < facts["length"]).any())


class CapturedGraph:
    """One bucket: buffers that are always the same, and the launches that read and fill them."""

    def __init__(
        self, key: GraphKey, backbone: nn.Module, pooler: Pooler, device: torch.device, memory_pool: Any
    ) -> None:
        tokens, sequences, longest = key.bucket
        sizes = [tokens, tokens, tokens if key.has_token_type_ids else 0, sequences + 1]
        self.input_splits = list(accumulate(sizes[:-1]))
        self.static_inputs = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        token_ids, positions, token_types, offsets = self.static_inputs.split(sizes)  # type: ignore[no-untyped-call]
        offsets[1:] = longest if sequences == 1 else min(longest, tokens - 1)

        def run() -> Tensor:
            # a new one each time: what a batch remembers to have computed would be missing from the recording
            batch = PackedBatch(
                token_ids=token_ids,
                positions=positions,
                cu_seqlens=offsets,
                seq_lens_cpu=(longest,) * sequences,
                token_type_ids=token_types if key.has_token_type_ids else None,
                lens_are_upper_bounds=True,
            )
            (answers,) = pooler(backbone(batch), batch, [(key.spec,)] * sequences)
            rows: Tensor = answers.rows
            return rows

        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):  # kernels are compiled and libraries make their plans outside of the recording
            run()
            run()
        torch.cuda.current_stream(device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # other threads may talk to the device meanwhile, to copy answers for one
        with torch.cuda.graph(self.graph, pool=memory_pool, stream=stream, capture_error_mode="thread_local"):
            self.static_output = run()

    def run(self, inputs: TokenizedInputs) -> Tensor:
        """Replay the graph for these inputs and return the results, in memory that the caller owns."""
        staging = torch.empty(self.static_inputs.shape, dtype=torch.int64, pin_memory=True)
        token_ids, positions, token_types, offsets = np.split(staging.numpy(), self.input_splits)
        tokens, size = len(inputs.token_ids), len(inputs)
        token_ids[:tokens] = inputs.token_ids
        token_ids[tokens:] = 0  # what is not there belongs to nobody
        positions[:tokens] = np.arange(tokens)
        positions[:tokens] -= np.repeat(inputs.cu_seqlens[:-1], inputs.lengths)
        positions[tokens:] = 0
        if len(token_types):
            token_types[:tokens] = positions[:tokens] >= np.repeat(inputs.metadata["type1_start"], inputs.lengths)
            token_types[tokens:] = 0
        offsets[: size + 1] = inputs.cu_seqlens
        offsets[size + 1 :] = tokens  # sequences that are not there are empty
        self.static_inputs.copy_(staging, non_blocking=True)
        self.graph.replay()
        # The next replay overwrites self.rows, and so may the replay of any other graph of this memory pool, whose
        # scratch may lie there. A copy on this stream is ordered before them; a copy on another stream would not be.
        return self.static_output[:size].clone()
