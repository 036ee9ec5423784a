"""Output objects of `LLM`: resolved on access, pickled without other results."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from cenote.errors import BadRequest, NumericalError, Overloaded, PoolingError
from cenote.outputs import EmbeddingOutput, EmbeddingRequestOutput, LazyResults, RequestError

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
