"""Output objects of `LLM`: resolved on access, pickled without other results."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from cenote.errors import BadRequest, NumericalError, Overloaded, PoolingError
from cenote.outputs import (
    CombinedOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    LazyResults,
    PoolingOutput,
    RequestError,
    SparseEmbeddingOutput,
)
from tests.test_imports import run_code

ROWS = np.arange(3000, dtype=np.float32).reshape(3, 1000)


def make_lazy_results() -> LazyResults[EmbeddingOutput]:
    ids = np.array([5, 6, 7, 8], dtype=np.int32)
    return LazyResults(EmbeddingOutput, lambda: [list(ROWS)], ids, np.array([0, 1, 3, 4]), np.array([1, 9, 1]))


def test_every_output_resolves_its_own_result() -> None:
    first, second, third = EmbeddingRequestOutput.from_lazy(make_lazy_results(), [7, 8, 9])

    assert [output.request_id for output in (first, second, third)] == ["7", "8", "9"]
    assert second.prompt_token_ids == [6, 7]
    assert (second.num_prompt_tokens, second.num_input_tokens) == (2, 9)
    assert second.outputs.data.tolist() == ROWS[1].tolist()
    assert third.outputs.embedding[:2] == [2000.0, 2001.0]
    assert "request_id='7'" in repr(first)


def test_a_resolved_output_is_cached_and_can_be_changed() -> None:
    (output, *_) = EmbeddingRequestOutput.from_lazy(make_lazy_results(), range(3))

    assert output.outputs is output.outputs
    output.prompt_token_ids = [1, 2]
    output.outputs = EmbeddingOutput(torch.ones(2))
    assert output.prompt_token_ids == [1, 2]
    assert output.outputs.hidden_size == 2


def test_an_output_is_pickled_without_the_other_results() -> None:
    (_, output, _) = EmbeddingRequestOutput.from_lazy(make_lazy_results(), range(3))

    pickled = pickle.dumps(output)

    assert len(pickled) < 2 * ROWS[1].nbytes
    restored = pickle.loads(pickled)
    assert isinstance(restored, EmbeddingRequestOutput)
    assert restored.outputs.embedding == output.outputs.embedding
    assert (restored.request_id, restored.prompt_token_ids, restored.num_input_tokens) == ("1", [6, 7], 9)


def test_the_output_of_a_prompt_that_failed_has_its_error_and_no_data() -> None:
    failed = EmbeddingRequestOutput("4", NumericalError("not finite"))

    for output in (failed, pickle.loads(pickle.dumps(failed))):
        assert output.error == RequestError("numerical_error", "not finite", retryable=False)
        assert (output.request_id, output.finished, output.prompt_token_ids) == ("4", True, [])
        with pytest.raises(NumericalError, match="not finite"):
            _ = output.outputs
    assert "error=RequestError(code='numerical_error'" in repr(failed)
    (fine, *_) = EmbeddingRequestOutput.from_lazy(make_lazy_results(), range(3))
    assert fine.error is None and fine.late_chunking is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RequestError("validation_error", "no"), BadRequest),
        (RequestError("engine_paused", "later", retryable=True), Overloaded),
        (RequestError("numerical_error", "nan"), PoolingError),
    ],
)
def test_the_error_of_a_prompt_is_raised_as_the_class_of_its_code(error: RequestError, expected: type) -> None:
    raised = error.to_exception()

    assert (type(raised), raised.message) == (expected, error.message)


def test_data_is_a_tensor_with_the_memory_of_the_result() -> None:
    array = np.ones(3, dtype=np.float32)
    output = PoolingOutput(array)

    data = output.data

    assert isinstance(data, torch.Tensor) and data is output.data
    assert data.data_ptr() == array.ctypes.data
    assert [item.name for item in dataclasses.fields(output)] == ["data"]
    assert repr(output) == "PoolingOutput(data=tensor([1., 1., 1.]))"


def test_a_program_may_set_a_tensor() -> None:
    output = EmbeddingOutput(torch.zeros(2, dtype=torch.bfloat16))

    output.data = torch.ones(3, dtype=torch.bfloat16)

    assert output.hidden_size == 3 and output.embedding == [1, 1, 1]
    assert pickle.loads(pickle.dumps(output)).data.dtype is torch.bfloat16


def test_data_of_combined_tasks_is_one_tensor() -> None:
    dense = PoolingOutput(np.ones(2, dtype=np.float32))
    sparse = SparseEmbeddingOutput(np.array([[7, 0.5]], dtype=np.float32), ["a"])

    combined = CombinedOutput({"embed": dense, "sparse_embed": sparse})

    assert isinstance(combined.data, torch.Tensor)
    assert combined.data.tolist() == [1, 1, 7, 0.5]


LISTS = """
import pickle, sys
import numpy as np
from cenote.outputs import CombinedOutput, EmbeddingOutput, PoolingOutput, SparseEmbeddingOutput
{first}
embedding = EmbeddingOutput(np.arange(2, dtype=np.float32))
sparse = SparseEmbeddingOutput(np.array([[7, 0.5]], dtype=np.float32), ["a"])
print(embedding.embedding, embedding.hidden_size, sparse.token_ids, sparse.weights, sparse.tokens, embedding, sparse)
print(pickle.loads(pickle.dumps(embedding)).embedding)
"""


def test_lists_are_read_without_an_import_of_torch() -> None:
    code = (
        LISTS.format(first="")
        + """
assert "torch" not in sys.modules
"""
    )

    lines = run_code(code).splitlines()

    assert lines[0].startswith("[0.0, 1.0] 2 [7] [0.5] ['a'] EmbeddingOutput(hidden_size=2)")
    assert lines[1] == "[0.0, 1.0]"


def test_without_torch_data_is_an_array() -> None:
    code = (
        LISTS.format(first='sys.modules["torch"] = None  # as if it were not installed')
        + """
combined = CombinedOutput({"embed": embedding, "sparse_embed": sparse})
print(type(embedding.data).__name__, combined.data.tolist(), PoolingOutput(np.ones(1)))
"""
    )

    lines = run_code(code).splitlines()

    assert lines[-1] == "ndarray [0.0, 1.0, 7.0, 0.5] PoolingOutput(data=array([1.]))"
