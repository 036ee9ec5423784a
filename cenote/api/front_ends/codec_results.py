"""Encode and decode results and errors that travel between the engine and front-end processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cenote import errors
from cenote.api.encoding import Float32Array, to_float32_array
from cenote.api.front_ends.codec_requests import from_json
from cenote.api.front_ends.messages import (
    EngineReady,
    EntitiesResponse,
    ModelInfoUpdate,
    PoolResponse,
    ScoreResponse,
    SerializedError,
    Shapes,
    TimingTuple,
    TokenLengths,
)
from cenote.errors import PoolingError
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import Timing
from cenote.protocol.results import EntityResult, PoolResult, PoolResultBatch, ScoreResult

NO_IDS = np.zeros(0, dtype=np.int32)


ERROR_CLASSES = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PoolingError)
}


CONCAT_BELOW_BYTES = 64 * 1024


def encode_pool_results(
    call_id: int, timing: Timing, results: Sequence[PoolResult | PoolingError]
) -> tuple[PoolResponse, list[Float32Array]]:
    """The words, and the numbers that follow them."""
    pooled = [each for each in results if isinstance(each, PoolResult)]
    if isinstance(results, PoolResultBatch):
        rows = to_float32_array(results.rows)
        return PoolResponse(call_id, encode_timing(timing), [rows.shape[1:]], [], encode_lengths(pooled), []), [rows]
    shapes, numbers = _concat_arrays([each.data for each in pooled])
    others = []
    for task in pooled[0].extra_data if pooled else ():
        shapes_of_task, more = _concat_arrays([each.extra_data[task] for each in pooled])
        others.append((task, shapes_of_task))
        numbers += more
    return PoolResponse(
        call_id, encode_timing(timing), shapes, others, encode_lengths(pooled), encode_errors(results)
    ), numbers


def _concat_arrays(tensors: Sequence[Any]) -> tuple[Shapes, list[Float32Array]]:
    arrays = [to_float32_array(each) for each in tensors]
    shapes = [tuple(each.shape) for each in tensors]
    same = len(set(shapes)) == 1
    if same and arrays[0].nbytes < CONCAT_BELOW_BYTES:
        arrays = [np.concatenate(arrays, axis=None)]  # cheaper than to hand over many small pieces
    return shapes[:1] if same else shapes, arrays


def decode_pool_results(message: PoolResponse, array_bytes: bytes | memoryview) -> list[PoolResult | PoolingError]:
    """What `vectors_message` was made of, as views of the numbers; the token ids stayed behind."""
    flat = np.frombuffer(array_bytes, dtype=np.float32)
    count = len(message.lengths.num_tokens)
    arrays, flat = _split_arrays(flat, message.shapes, count)
    columns = zip(arrays, message.lengths.num_tokens, message.lengths.num_input_tokens, strict=True)
    answers = [PoolResult(array, NO_IDS, num_tokens, given) for array, num_tokens, given in columns]
    if isinstance(arrays, np.ndarray) and arrays.ndim == 2 and not message.extra_data and not message.errors:
        return merge_errors(PoolResultBatch(answers, arrays), message.lengths.inexact_indices, [])
    for task, shapes in message.extra_data:
        arrays, flat = _split_arrays(flat, shapes, count)
        for answer, array in zip(answers, arrays, strict=True):
            answer.extra_data = {**answer.extra_data, task: array}
    return merge_errors(answers, message.lengths.inexact_indices, message.errors)


def _split_arrays(
    flat: Float32Array, shapes: Shapes, count: int
) -> tuple[Float32Array | list[Float32Array], Float32Array]:
    """So many answers from the front of the numbers, and the rest."""
    if len(shapes) == 1:
        end = count * math.prod(shapes[0])
        return flat[:end].reshape(count, *shapes[0]), flat[end:]
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)])
    arrays = [flat[start:end].reshape(shape) for start, end, shape in zip(ends, ends[1:], shapes, strict=False)]
    return arrays, flat[ends[-1] :]


def encode_score_results(call_id: int, timing: Timing, results: Sequence[ScoreResult | PoolingError]) -> ScoreResponse:
    scored = [each for each in results if isinstance(each, ScoreResult)]
    return ScoreResponse(
        call_id, encode_timing(timing), [each.score for each in scored], encode_lengths(scored), encode_errors(results)
    )


def decode_score_results(message: ScoreResponse) -> list[ScoreResult | PoolingError]:
    columns = zip(message.scores, message.lengths.num_tokens, message.lengths.num_input_tokens, strict=True)
    answers = [ScoreResult(score, NO_IDS, num_tokens, given) for score, num_tokens, given in columns]
    return merge_errors(answers, message.lengths.inexact_indices, message.errors)


def encode_entity_results(call_id: int, timing: Timing, results: Sequence[EntityResult]) -> EntitiesResponse:
    return EntitiesResponse(
        call_id, encode_timing(timing), [each.entities for each in results], encode_lengths(results)
    )


def decode_entity_results(message: EntitiesResponse) -> list[EntityResult]:
    columns = zip(message.entities, message.lengths.num_tokens, message.lengths.num_input_tokens, strict=True)
    answers = [EntityResult(entities, NO_IDS, num_tokens, given) for entities, num_tokens, given in columns]
    return merge_errors(answers, message.lengths.inexact_indices, [])


def encode_lengths(results: Sequence[PoolResult | ScoreResult | EntityResult]) -> TokenLengths:
    return TokenLengths(
        [each.num_tokens for each in results],
        [each.num_input_tokens for each in results],
        [place for place, each in enumerate(results) if not each.is_input_count_exact],
    )


def encode_errors(results: Sequence[Any]) -> list[tuple[int, SerializedError]]:
    return [(place, encode_error(each)) for place, each in enumerate(results) if isinstance(each, PoolingError)]


def merge_errors(
    results: list[Any], inexact_indices: list[int], errors_by_index: list[tuple[int, SerializedError]]
) -> list[Any]:
    for place in inexact_indices:
        results[place].is_input_count_exact = False
    for place, fault in errors_by_index:
        results.insert(place, decode_error(fault))
    return results


def encode_error(error: BaseException) -> SerializedError:
    if not isinstance(error, PoolingError):
        return SerializedError("", escape_surrogates(f"{type(error).__name__}: {error}"))
    kind = next(base.__name__ for base in type(error).__mro__ if ERROR_CLASSES.get(base.__name__) is base)
    value = None if error.value is None else escape_surrogates(str(error.value))
    return SerializedError(kind, escape_surrogates(error.message), error.param, value, error.index)


def escape_surrogates(text: str) -> str:
    """The text with what is no character written as an escape: a message about a bad text may quote it."""
    return text.encode(errors="backslashreplace").decode()


def decode_error(serialized: SerializedError) -> Exception:
    """The same error again, so that it is answered with the same words and status."""
    if not serialized.class_name:
        return RuntimeError(f"the engine's process failed: {serialized.message}")
    error = ERROR_CLASSES[serialized.class_name](serialized.message, param=serialized.param, value=serialized.value)
    error.index = serialized.index
    return error


def encode_timing(timing: Timing) -> TimingTuple:
    return (timing.queue_s, timing.tokenize_s, timing.inference_s)


def decode_model_info(message: EngineReady | ModelInfoUpdate) -> ModelInfo:
    return from_json(message.model_info, type=ModelInfo)
