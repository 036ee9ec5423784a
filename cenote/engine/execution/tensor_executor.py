"""Runs models that read tensors: what they give goes to whoever waits for it as it is, unpooled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cenote.engine.result_delivery import Outcome
from cenote.engine.sequence_group import Batch, Rows
from cenote.loading.tensor_model import TensorModel
from cenote.pooling.pooler import Ask


class TensorExecutor:
    overlapping = False

    def __init__(self, model: TensorModel) -> None:
        self.model = model

    def start(self, batch: Batch) -> Callable[[], Outcome]:
        inputs = batch.strip.embeds
        assert inputs is not None, "the renderer lets nothing else in"
        with torch.inference_mode():
            answers = [_widened(answer).cpu() for answer in self.model(inputs)]
        members: dict[Ask, list[int]] = {}
        for number, asks in enumerate(batch.asks):
            for ask in asks:
                members.setdefault(ask, []).append(number)
        # what callers get is made out here: autograd refuses tensors of inference mode
        rows = {ask: Rows.of_any_shape([answers[number] for number in numbers]) for ask, numbers in members.items()}
        failed = {number for number, answer in enumerate(answers) if not bool(torch.isfinite(answer).all())}
        return lambda: Outcome(rows, failed)


def _widened(answer: Tensor) -> Tensor:
    """Halves as float32, like every other answer: numpy does not know all of them."""
    return answer.float() if answer.dtype in (torch.bfloat16, torch.float16) else answer
