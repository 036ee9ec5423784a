"""Open the weights of a described model, with the adapter of its task merged."""

from __future__ import annotations

import logging

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.merged_weights import TaskAdapter, open_model_weights
from cenote.loading.model_description import ModelDescription
from cenote.loading.weight_loader import WeightLoader
from cenote.loading.weights import CheckpointWeights
from cenote.models.architecture import Architecture

logger = logging.getLogger("cenote")


def open_weights(
    description: ModelDescription, options: EngineConfig, weights: CheckpointWeights | None = None
) -> WeightLoader:
    architecture = description.architecture
    if weights is None:
        adapter = _resolve_task_adapter(architecture, options)
        weights = open_model_weights(description.checkpoint, adapter)
    return WeightLoader(weights, architecture.weight_tables, architecture.prefixes)


def _resolve_task_adapter(architecture: Architecture, options: EngineConfig) -> TaskAdapter | None:
    """Return the adapter of a task that is merged into the weights; None if the checkpoint has no such adapters."""
    if (adapters := architecture.task_adapters) is None:
        return None
    task = options.default_adapter or adapters.tasks[0]
    if task not in adapters.tasks:
        raise LoadError(f"invalid default_adapter {task!r}; expected one of: {', '.join(adapters.tasks)}")
    logger.info("the adapter of task %s is merged; default_adapter selects another of %s", task, adapters.tasks)
    return TaskAdapter(adapters.folder, task)
