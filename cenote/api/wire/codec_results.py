"""Encode and decode results that travel between the engine and front-end processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from cenote.api.encoding import Float32Array, to_float32_array
from cenote.api.wire.codec_errors import decode_error, encode_error
from cenote.api.wire.messages import (
    ArrayBytes,
    EngineReady,
    ModelInfoUpdate,
    PoolResponse,
    SerializedError,
    Shapes,
    TimingTuple,
    TokenLengths,
    from_json,
)
from cenote.api.wire.token_codec import split_arrays
from cenote.errors import PoolingError
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import Timing
from cenote.protocol.results import PoolResult, PoolResultBatch

NO_IDS = np.zeros(0, dtype=np.int32)

CONCAT_BELOW_BYTES = 64 * 1024


def encode_pool_results(
    timing: Timing, results: Sequence[PoolResult | PoolingError]
) -> tuple[PoolResponse, list[Float32Array]]:
    """Return the message and the arrays that follow it."""
    pooled = [result for result in results if isinstance(result, PoolResult)]
    if isinstance(results, PoolResultBatch):
        rows = to_float32_array(results.rows)
        return PoolResponse(encode_timing(timing), [rows.shape[1:]], [], encode_lengths(pooled), []), [rows]
    shapes, arrays = _concat_arrays([result.data for result in pooled])
    extra_data = []
    for task in pooled[0].extra_data if pooled else ():
        task_shapes, task_arrays = _concat_arrays([result.extra_data[task] for result in pooled])
        extra_data.append((task, task_shapes))
        arrays += task_arrays
    return PoolResponse(
        encode_timing(timing), shapes, extra_data, encode_lengths(pooled), encode_errors(results)
    ), arrays


def _concat_arrays(tensors: Sequence[Any]) -> tuple[Shapes, list[Float32Array]]:
    arrays = [to_float32_array(tensor) for tensor in tensors]
    shapes = [tuple(tensor.shape) for tensor in tensors]
    have_one_shape = len(set(shapes)) == 1
    if have_one_shape and arrays[0].nbytes < CONCAT_BELOW_BYTES:
        arrays = [np.concatenate(arrays, axis=None)]  # cheaper than sending many small buffers
    return shapes[:1] if have_one_shape else shapes, arrays


def decode_pool_results(message: PoolResponse, array_bytes: ArrayBytes) -> list[PoolResult | PoolingError]:
    """Return the results as views of `array_bytes`; their token ids are not transferred."""
    flat = np.frombuffer(array_bytes, dtype=np.float32)
    count = len(message.lengths.num_tokens)
    arrays, flat = split_arrays(flat, message.shapes, count)
    columns = zip(arrays, message.lengths.num_tokens, message.lengths.num_input_tokens, strict=True)
    results = [PoolResult(array, NO_IDS, num_tokens, num_input) for array, num_tokens, num_input in columns]
    if isinstance(arrays, np.ndarray) and arrays.ndim == 2 and not message.extra_data and not message.errors:
        return merge_errors(PoolResultBatch(results, arrays), message.lengths.inexact_indices, [])
    for task, shapes in message.extra_data:
        arrays, flat = split_arrays(flat, shapes, count)
        for result, array in zip(results, arrays, strict=True):
            result.extra_data = {**result.extra_data, task: array}
    return merge_errors(results, message.lengths.inexact_indices, message.errors)


def encode_lengths(results: Sequence[PoolResult]) -> TokenLengths:
    return TokenLengths(
        [result.num_tokens for result in results],
        [result.num_input_tokens for result in results],
        [index for index, result in enumerate(results) if not result.is_input_count_exact],
    )


def encode_errors(results: Sequence[Any]) -> list[tuple[int, SerializedError]]:
    return [(index, encode_error(result)) for index, result in enumerate(results) if isinstance(result, PoolingError)]


def merge_errors(
    results: list[Any], inexact_indices: list[int], errors_by_index: list[tuple[int, SerializedError]]
) -> list[Any]:
    """Mark the results with inexact input counts, then insert the errors at their indices."""
    for index in inexact_indices:
        results[index].is_input_count_exact = False
    for index, serialized in errors_by_index:
        results.insert(index, decode_error(serialized))
    return results


def encode_timing(timing: Timing) -> TimingTuple:
    """Return the times of a request in the engine process, which ends here."""
    now = timing.mark_delivered()
    return (
        timing.queue_s,
        timing.tokenize_s,
        timing.inference_s,
        timing.pack_s,
        timing.device_s,
        timing.deliver_s,
        now - timing.received_at if timing.received_at else 0.0,
    )


def set_timing(timing: Timing, seconds: TimingTuple, sent_at: float) -> None:
    """Set the times of a request in the front-end, which sent it at `sent_at` and now has the response."""
    timing.queue_s, timing.tokenize_s, timing.inference_s, timing.pack_s, timing.device_s, timing.deliver_s, total_s = (
        seconds
    )
    timing.answered_at = time.monotonic()
    timing.wire_s = max(0.0, timing.answered_at - sent_at - total_s)


def decode_model_info(message: EngineReady | ModelInfoUpdate) -> ModelInfo:
    return from_json(message.model_info, type=ModelInfo)
