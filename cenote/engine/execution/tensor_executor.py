"""Runs models that read tensors: what they give goes to whoever waits for it as it is, unpooled."""

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

    def __init__(self, model: TensorModel) -> None:
        self.model = model

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        inputs = batch.inputs.inputs_embeds
        assert inputs is not None, "the renderer lets nothing else in"
        with torch.inference_mode():
            answers = [_to_float32(answer).cpu() for answer in self.model(inputs)]
        members: dict[PoolingSpec, list[int]] = {}
        for number, asks in enumerate(batch.specs):
            for ask in asks:
                members.setdefault(ask, []).append(number)
        # what callers get is made out here: autograd refuses tensors of inference mode
        rows = {
            ask: RaggedRows.from_tensors([answers[number] for number in numbers]) for ask, numbers in members.items()
        }
        failed = {number for number, answer in enumerate(answers) if not bool(torch.isfinite(answer).all())}
        return lambda: BatchOutput(rows, failed)


def _to_float32(tensor: Tensor) -> Tensor:
    """Halves as float32, like every other answer: numpy does not know all of them."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
