"""Models of plugins run one input at a time with `deterministic`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cenote.engine.execution.tensor_executor import TensorExecutor
from cenote.engine.execution.warmup import NullReceiver
from cenote.engine.sequence_group import GroupSlice, ScheduledBatch, SequenceGroup
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.loading.tensor_model import TensorModel
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.params import PoolingOptions

SPEC = PoolingSpec("plugin", PoolingOptions())


class BatchSize(nn.Module):
    """Returns for every input the size of its batch."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.full((len(x), 1), float(len(x)))


@pytest.mark.parametrize(("one_by_one", "expected"), [(False, [3.0, 3.0, 3.0]), (True, [1.0, 1.0, 1.0])])
def test_a_plugin_model_gets_one_input_at_a_time_if_asked(one_by_one: bool, expected: list[float]) -> None:
    ones = np.ones(3, dtype=np.int64)
    inputs = TokenizedInputs.from_ids(np.zeros(3, dtype=np.int32), ones, ones)
    inputs = TokenizedInputs(inputs.token_ids, inputs.metadata, inputs_embeds=[{"x": torch.zeros(2)}] * 3)
    group = SequenceGroup(inputs, np.arange(3), (SPEC,), NullReceiver())

    executor = TensorExecutor(TensorModel("a model", BatchSize(), {"x": (2,)}), one_by_one=one_by_one)

    output = executor.start(ScheduledBatch([GroupSlice(group, 0, 3)]))()
    assert [tensor.item() for tensor in output.rows[SPEC].unbind()] == expected
