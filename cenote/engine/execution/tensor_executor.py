"""TensorExecutor: runs models of IO processor plugins, which take tensors and whose outputs are not pooled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cenote.engine.result_delivery import BatchOutput
from cenote.engine.sequence_group import RaggedRows, ScheduledBatch
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
            outputs = [_to_float32(output).cpu() for part in parts for output in self.model(part)]
        indices_by_spec: dict[PoolingSpec, list[int]] = {}
        for index, specs in enumerate(batch.specs):
            for spec in specs:
                indices_by_spec.setdefault(spec, []).append(index)
        # copied outside of inference mode: autograd rejects inference tensors
        rows = {
            spec: RaggedRows.from_tensors([outputs[index] for index in indices])
            for spec, indices in indices_by_spec.items()
        }
        failed = {index for index, output in enumerate(outputs) if not bool(torch.isfinite(output).all())}
        return lambda: BatchOutput(rows, failed)

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        return False


def _to_float32(tensor: Tensor) -> Tensor:
    """Convert 16-bit floats to float32: NumPy has no bfloat16, and other results are float32 too."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
