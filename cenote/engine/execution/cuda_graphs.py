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

from cenote.inputs.tokenized_inputs import Strip
from cenote.kernels.gpu.triton_support import HALF, usable
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, Embedding
from cenote.layers.mlp import MLP, GatedMLP
from cenote.packed_batch import PackedBatch
from cenote.pooling.pooler import Answers, Ask, Pooler

logger = logging.getLogger("cenote")

# a batch is recorded as the smallest of these that holds it
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
SEQUENCES = (1, 4, 16, 64, 256)
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# each takes some megabytes and a tenth of a second; what comes after them is launched part by part
MAX_RECORDINGS = 64


class Bucket(NamedTuple):
    tokens: int
    sequences: int
    longest: int


class Key(NamedTuple):
    bucket: Bucket
    ask: Ask
    has_types: bool


def bucket_of(tokens: int, sequences: int, longest: int) -> Bucket | None:
    """The smallest that holds so much; None where a batch is large enough to be launched part by part."""
    room = _smallest(SEQUENCES, sequences)
    if room is None:
        return None
    # sequences that are not there begin behind the last token, and that place must be one
    held = _smallest(TOKENS, tokens + (room > sequences))
    reach = _smallest(LENGTHS, longest)
    return None if held is None or reach is None else Bucket(held, room, min(reach, held))


def _smallest(sizes: Sequence[int], needed: int) -> int | None:
    at = bisect_left(sizes, needed)
    return sizes[at] if at < len(sizes) else None


class Recordings:
    """The model as recordings of it, made when a batch of a new bucket comes; they share their memory."""

    def __init__(self, backbone: nn.Module, pooler: Pooler, device: torch.device) -> None:
        self.backbone = backbone
        self.pooler = pooler
        self.device = device
        self.possible = recordable(backbone) and recordable_pooling(pooler)
        self.made: dict[Key, Recording] = {}
        self.pool: Any = None  # the memory: one recording runs at a time

    def __call__(self, strip: Strip, asks: Sequence[Sequence[Ask]]) -> list[Answers] | None:
        """What the pooler answers to these inputs, read without adapters; None where they are not recorded."""
        if (key := self._key(strip, asks)) is None or (recording := self._recording(key)) is None:
            return None
        return [Answers(key.ask, list(range(len(strip))), recording.run(strip))]

    def _key(self, strip: Strip, asks: Sequence[Sequence[Ask]]) -> Key | None:
        if not self.possible or len(strip.token_ids) > TOKENS[-1]:
            return None
        wanted = asks[0]
        if len(wanted) != 1 or any(several != wanted for several in asks):
            return None
        (ask,) = wanted
        if ask.task not in ("embed", "classify") or ask.compared or not _plain(strip):
            return None
        bucket = bucket_of(len(strip.token_ids), len(strip), int(strip.lengths.max()))
        return None if bucket is None else Key(bucket, ask, bool((strip.facts["second_start"] < strip.lengths).any()))

    def _recording(self, key: Key) -> Recording | None:
        if (recording := self.made.get(key)) is None and len(self.made) < MAX_RECORDINGS:
            try:
                recording = Recording(key, self.backbone, self.pooler, self.device, self.pool)
            except RuntimeError as error:  # too little memory, or a library that cannot be recorded
                logger.warning("small batches are launched part by part: recording them failed: %s", error)
                self.possible = False
                return None
            self.made[key] = recording
            self.pool = recording.graph.pool()
        return recording


def recordable(backbone: nn.Module) -> bool:
    """Whether nothing in it looks at the lengths of a batch on the host, or at what it computed."""
    if type(backbone) is not Backbone or type(backbone.embed) is not Embedding or backbone.bias is not None:
        return False
    parameter = next(backbone.parameters())
    spec = backbone.spec
    plain_heads = spec.softcap is None and spec.size_per_head <= 128 and spec.size_per_head % 8 == 0
    return (
        usable(parameter)
        and parameter.dtype in HALF
        and plain_heads
        and all(
            isinstance(layer.mixer, Attention)
            and type(layer.mixer).forward is Attention.forward
            and layer.mixer.sinks is None
            and type(layer.mlp) in (MLP, GatedMLP)
            for layer in backbone.layers
        )
    )


def recordable_pooling(pooler: Pooler) -> bool:
    """Torch asks the device for the lengths to find the largest of each sequence, and a recording cannot wait."""
    return pooler.heads.vocabulary is None and "MAX" not in pooler.plan.sequence.value


def _plain(strip: Strip) -> bool:
    """Whether all tokens of all inputs are read, seen and pooled."""
    facts = strip.facts
    odd = strip.kept is not None or strip.embeds is not None or strip.sights is not None
    return not (odd or facts["skip"].any() or (facts["attended"] < facts["length"]).any())


class Recording:
    """One bucket: buffers that are always the same, and the launches that read and fill them."""

    def __init__(self, key: Key, backbone: nn.Module, pooler: Pooler, device: torch.device, pool: Any) -> None:
        tokens, sequences, longest = key.bucket
        sizes = [tokens, tokens, tokens if key.has_types else 0, sequences + 1]
        self.places = list(accumulate(sizes[:-1]))
        self.inputs = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        token_ids, positions, token_types, offsets = self.inputs.split(sizes)  # type: ignore[no-untyped-call]
        offsets[1:] = longest if sequences == 1 else min(longest, tokens - 1)

        def run() -> Tensor:
            # a new one each time: what a batch remembers to have computed would be missing from the recording
            batch = PackedBatch(
                token_ids=token_ids,
                positions=positions,
                offsets=offsets,
                host_lengths=(longest,) * sequences,
                token_types=token_types if key.has_types else None,
                loose=True,
            )
            (answers,) = pooler(backbone(batch), batch, [(key.ask,)] * sequences)
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
        with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self.rows = run()

    def run(self, strip: Strip) -> Tensor:
        """Replay the graph for these inputs and return the results, in memory that the caller owns."""
        staging = torch.empty(self.inputs.shape, dtype=torch.int64, pin_memory=True)
        token_ids, positions, token_types, offsets = np.split(staging.numpy(), self.places)
        tokens, size = len(strip.token_ids), len(strip)
        token_ids[:tokens] = strip.token_ids
        token_ids[tokens:] = 0  # what is not there belongs to nobody
        positions[:tokens] = np.arange(tokens)
        positions[:tokens] -= np.repeat(strip.offsets[:-1], strip.lengths)
        positions[tokens:] = 0
        if len(token_types):
            token_types[:tokens] = positions[:tokens] >= np.repeat(strip.facts["second_start"], strip.lengths)
            token_types[tokens:] = 0
        offsets[: size + 1] = strip.offsets
        offsets[size + 1 :] = tokens  # sequences that are not there are empty
        self.inputs.copy_(staging, non_blocking=True)
        self.graph.replay()
        # The next replay overwrites self.rows, and so may the replay of any other graph of this memory pool, whose
        # scratch may lie there. A copy on this stream is ordered before them; a copy on another stream would not be.
        return self.rows[:size].clone()
