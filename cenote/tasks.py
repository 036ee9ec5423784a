"""The tasks, under their names in `vllm.tasks`."""

from cenote.protocol.params import TASKS as POOLING_TASKS
from cenote.protocol.params import Task as PoolingTask

__all__ = ["POOLING_TASKS", "PoolingTask"]
