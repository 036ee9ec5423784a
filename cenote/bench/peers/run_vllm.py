"""Engine for the worker: the CPU build of vLLM, all inputs in one call."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; encoders do not use it
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


class Engine:
    def __init__(self, model: str, task: str, settings: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.config import PoolerConfig

        self.max_tokens = settings["max_tokens"]
        # an embedding model supports token_embed only if it is configured at startup
        pooler = {"pooler_config": PoolerConfig(task=task)} if task == "token_embed" else {}
        self.llm = LLM(model, runner="pooling", dtype=settings["dtype"], max_model_len=self.max_tokens, **pooler)
        self.settings = {
            **settings,
            "threads": find_omp_threads(os.getpid()),
            "binding": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto"),
        }

    def run(self, task: str, inputs: Any) -> Any:
        options = {"use_tqdm": False, "tokenization_kwargs": {"truncate_prompt_tokens": self.max_tokens}}
        if task == "score":
            return self.llm.score(inputs["query"], inputs["documents"], **options)
        if task == "embed":
            return self.llm.embed(inputs, **options)
        return self.llm.encode(inputs, pooling_task=task, **options)

    def to_rows(self, task: str, outputs: Any) -> list[Any]:
        if task == "score":
            return [[output.outputs.score for output in outputs]]
        if task == "embed":
            return [output.outputs.embedding for output in outputs]
        return [output.outputs.data.float().numpy() for output in outputs]


def find_omp_threads(pid: int) -> int | None:
    """Return OMP_NUM_THREADS of the descendant that computes, or None if it cannot be read."""
    parents, threads_by_pid = dict[int, int](), dict[int, int]()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
        except OSError:
            continue
        if b"OMP_NUM_THREADS" in environment:
            threads_by_pid[int(name)] = int(environment[b"OMP_NUM_THREADS"])
    for child, threads in threads_by_pid.items():
        ancestor = child
        while ancestor in parents and ancestor != pid:
            ancestor = parents[ancestor]
        if ancestor == pid and child != pid:
            return threads
    return None
