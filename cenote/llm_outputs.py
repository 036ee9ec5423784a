"""Make the outputs of the methods of `LLM` of the engine's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cenote.engine.result_rows import GroupResult
from cenote.outputs import (
    ChunkEmbeddingOutput,
    CombinedOutput,
    EmbeddingRequestOutput,
    LazyResults,
    PoolingOutput,
    RequestOutput,
    SparseEmbeddingOutput,
)
from cenote.protocol.input_types import ChunkedDocument
from cenote.protocol.late_chunking import describe_chunks, find_late_chunking_params, get_offsets
from cenote.protocol.params import Task
from cenote.protocol.prompt_selection import select_prompt
from cenote.protocol.requests import PoolRequest
from cenote.utils.arrays import Array

if TYPE_CHECKING:
    from cenote.engine.engine import PoolingEngine


def make_sparse_output(engine: PoolingEngine, data: Array) -> SparseEmbeddingOutput:
    return SparseEmbeddingOutput(data, engine.tokenizer.convert_ids_to_tokens)


def make_task_output(engine: PoolingEngine, tasks: Sequence[Task], *arrays: Array) -> PoolingOutput:
    """Return the output of a task, or of several that ran together."""
    outputs: dict[str, PoolingOutput] = {
        task: make_sparse_output(engine, data) if task == "sparse_embed" else PoolingOutput(data)
        for task, data in zip(tasks, arrays, strict=True)
    }
    return CombinedOutput(outputs) if len(outputs) > 1 else outputs[tasks[0]]


def make_lazy_results(make_output: Callable[..., Any], result: GroupResult) -> LazyResults[Any]:
    inputs = result.inputs
    if inputs.images is not None:  # outputs must not keep preprocessed images in memory
        result = result._replace(inputs=replace(inputs, images=None))
    num_input_tokens = [inputs.only_record[2]] if len(inputs) == 1 else inputs.metadata["num_input_tokens"]
    return LazyResults(make_output, result.unbind, inputs.token_ids, inputs.cu_seqlens, num_input_tokens)


def make_chunk_outputs(documents: Sequence[ChunkedDocument], result: GroupResult) -> list[list[EmbeddingRequestOutput]]:
    """Return for every document of a group the outputs of its chunks."""
    inputs, offsets = result.inputs, result.inputs.cu_seqlens.tolist()
    assert inputs.row_mask is not None, "the renderer marks the chunks of every document"
    outputs = []
    (matrices,) = result.unbind()
    for index, vectors, start, end in zip(result.indices.tolist(), matrices, offsets, offsets[1:], strict=False):
        places = get_offsets(documents[index].chunks)
        token_ids = np.split(inputs.token_ids[start:end], np.flatnonzero(inputs.row_mask[start:end])[1:])
        outputs.append(
            [
                EmbeddingRequestOutput("", ChunkEmbeddingOutput(vector, index, *place), ids)
                for vector, place, ids in zip(vectors, places, token_ids, strict=True)
            ]
        )
    return outputs


def describe_late_chunks(engine: PoolingEngine, request: PoolRequest, outputs: Sequence[RequestOutput[Any]]) -> None:
    """Set the places of the chunks of every text that has chunks of a number of tokens."""
    if not (late_chunking_params := find_late_chunking_params(request)):
        return
    prompt = select_prompt(request, engine.model_info).prompt
    for output, text, late in zip(outputs, request.inputs, late_chunking_params, strict=True):
        if late is not None and output.error is None:
            assert isinstance(text, str), "checked at admission"
            token_ids = output.prompt_token_ids
            offsets = engine.tokenizer.find_offsets((prompt or "") + text, token_ids)
            output.late_chunking = describe_chunks(text, prompt, late.chunk_size, len(token_ids), offsets)
