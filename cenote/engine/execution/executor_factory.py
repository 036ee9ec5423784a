"""Choose the executor for a loaded model and its device."""

from __future__ import annotations

from cenote.engine.execution.deterministic import DeterministicRunner
from cenote.engine.execution.executor import Executor
from cenote.engine.execution.tensor_executor import TensorExecutor
from cenote.engine.execution.torch_executor import TorchExecutor
from cenote.layers.torch_dtypes import to_torch_device
from cenote.loading.load import LoadedModel
from cenote.loading.tensor_model import TensorModel
from cenote.pooling.pooler import PoolingSpec


def make_executor(model: LoadedModel, vocab_size: int) -> Executor:
    """Return the executor for the model's device; on a GPU, warmed up: kernels are compiled on first use."""
    description = model.description
    device = to_torch_device(description.device.value)
    if isinstance(model.backbone, TensorModel):
        return TensorExecutor(model.backbone, one_by_one=description.deterministic)
    deterministic = (
        DeterministicRunner(model.backbone, model.pooler, device, is_batch_invariant=model.is_batch_invariant)
        if description.deterministic
        else None
    )
    if device.type != "cuda":
        return TorchExecutor(model.backbone, model.pooler, device, deterministic)
    # imported on use: a start without a GPU is faster
    from cenote.engine.execution.gpu_executor import GPUExecutor
    from cenote.engine.execution.warmup import warm_up

    executor = GPUExecutor(model.backbone, model.pooler, device, deterministic)
    if not description.architecture.reads_texts:  # batches of the warm-up are texts
        return executor
    task = description.default_task
    spec = PoolingSpec(task, description.plan.resolve_options(task, None))
    measured = warm_up(executor, spec, description.max_length.value, vocab_size)
    executor.initial_tokens_per_s = measured or executor.initial_tokens_per_s
    return executor
