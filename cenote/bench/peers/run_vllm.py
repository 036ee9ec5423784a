"""vLLM's CPU build, asked as its users ask it: all inputs in one call."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; pooling encoders need none of it
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


class Engine:
    def __init__(self, model: str, task: str, settings: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.config import PoolerConfig

        self.max_tokens = settings["max_tokens"]
        # an embedder answers for single tokens only if it is told so at the start
        pooler = {"pooler_config": PoolerConfig(task=task)} if task == "token_embed" else {}
        self.llm = LLM(model, runner="pooling", dtype=settings["dtype"], max_model_len=self.max_tokens, **pooler)
        self.settings = {
            **settings,
            "threads": find_omp_threads(os.getpid()),
            "binding": os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto"),
        }

    def run(self, task: str, inputs: Any) -> Any:
        same = {"use_tqdm": False, "tokenization_kwargs": {"truncate_prompt_tokens": self.max_tokens}}
        if task == "score":
            return self.llm.score(inputs["query"], inputs["documents"], **same)
        if task == "embed":
            return self.llm.embed(inputs, **same)
        return self.llm.encode(inputs, pooling_task=task, **same)

    def to_rows(self, task: str, found: Any) -> list[Any]:
        if task == "score":
            return [[output.outputs.score for output in found]]
        if task == "embed":
            return [output.outputs.embedding for output in found]
        return [output.outputs.data.float().numpy() for output in found]


def find_omp_threads(pid: int) -> int | None:
    """What OpenMP was told in the process below this one that computes; None where that cannot be seen."""
    parents, told = dict[int, int](), dict[int, int]()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
        except OSError:
            continue
        if b"OMP_NUM_THREADS" in environment:
            told[int(name)] = int(environment[b"OMP_NUM_THREADS"])
    for child, threads in told.items():
        above = child
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and child != pid:
            return threads
    return None
