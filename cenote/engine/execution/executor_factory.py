"""Choose the executor for the runtime of a loaded model."""

from __future__ import annotations

from cenote.engine.execution.executor import Executor
from cenote.loading.loaded_model import LoadedModel
from cenote.native.backbone import NativeBackbone


def make_executor(model: LoadedModel, vocab_size: int) -> Executor:
    # each runtime is imported on use: the native one starts without torch
    if isinstance(model.backbone, NativeBackbone):
        from cenote.engine.execution.native_executor import NativeExecutor

        return NativeExecutor(model.backbone, model.pooler, is_deterministic=model.description.deterministic)
    from cenote.engine.execution.torch_executor_factory import make_torch_executor

    return make_torch_executor(model, vocab_size)
