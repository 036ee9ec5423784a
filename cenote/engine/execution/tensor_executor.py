"""TensorExecutor: runs models of IO processor plugins, which take tensors and whose outputs are not pooled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from cenote.engine.execution.batch_output import copy_rows
from cenote.engine.execution.torch_executor import to_array
from cenote.engine.result_delivery import BatchOutput
from cenote.engine.result_rows import RaggedRows
from cenote.engine.sequence_group import ScheduledBatch
from cenote.loading.tensor_model import TensorModel
from cenote.pooling.pooler import PoolingSpec


class TensorExecutor:
    is_async = False

    def __init__(self, model: TensorModel, *, one_by_one: bool = False) -> None:
        """`one_by_one`: the result of an input does not depend on the others of its batch."""
        self.model = model
        self.one_by_one = one_by_one

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        inputs = batch.inputs.inputs_embeds
        assert inputs is not None, "the renderer accepts only tensor inputs for these models"
        with torch.inference_mode():
            parts = [[item] for item in inputs] if self.one_by_one else [inputs]
            tensors = [output.cpu() for part in parts for output in self.model(part)]
        outputs = [copy_rows(to_array(tensor)) for tensor in tensors]
        indices_by_spec: dict[PoolingSpec, list[int]] = {}
        for index, specs in enumerate(batch.specs):
            for spec in specs:
                indices_by_spec.setdefault(spec, []).append(index)
        rows = {
            spec: RaggedRows.from_arrays([outputs[index] for index in indices])
            for spec, indices in indices_by_spec.items()
        }
        failed = {index for index, output in enumerate(outputs) if not np.isfinite(output).all()}
        return lambda: BatchOutput(rows, failed)

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        return False
