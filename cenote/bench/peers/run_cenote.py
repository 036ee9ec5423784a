"""Engine for the worker: Cenote."""

from __future__ import annotations

from typing import Any


class Engine:
    def __init__(self, model: str, task: str, settings: dict[str, Any]) -> None:
        import torch

        from cenote.llm import LLM

        options = {name: settings[name] for name in ("dtype", "quantization") if name in settings}
        self.llm = LLM(model, max_model_len=settings["max_tokens"], **options)
        loaded = self.llm.engine.model
        description = loaded.description
        dtype = description.dtype.value
        self.settings = {
            **settings,
            "dtype": dtype if loaded.products is None else loaded.products.format,  # that of the matrix products
            "device": str(description.device.value),
            "threads": torch.get_num_threads(),
        }
        self.truncate_kwargs: dict[str, Any] = {
            "use_tqdm": False,
            "tokenization_kwargs": {"truncate_prompt_tokens": -1},
        }

    def run(self, task: str, inputs: Any) -> Any:
        if task == "score":
            return self.llm.score(inputs["query"], inputs["documents"], **self.truncate_kwargs)
        if task == "embed_images":
            prompts = [{"prompt": "", "multi_modal_data": {"image": image}} for image in inputs]
            return self.llm.embed(prompts, use_tqdm=False)
        if task == "embed":
            return self.llm.embed(inputs, **self.truncate_kwargs)
        return self.llm.encode(inputs, pooling_task=task, **self.truncate_kwargs)

    def to_rows(self, task: str, outputs: Any) -> list[Any]:
        if task == "score":
            return [[output.outputs.score for output in outputs]]
        return [output.outputs.data.float().numpy() for output in outputs]
