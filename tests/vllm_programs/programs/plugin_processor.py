"""An IO processor plugin: lists of texts in, their token counts and embedding sizes out."""

from collections.abc import Sequence

from vllm.config import VllmConfig
from vllm.inputs import PromptType
from vllm.outputs import PoolingRequestOutput
from vllm.plugins.io_processors.interface import IOProcessor
from vllm.pooling_params import PoolingParams
from vllm.renderers import BaseRenderer


def entry():
    return "THIS.LengthProcessor"


class LengthProcessor(IOProcessor[list[str], list[tuple[str, int]]]):
    def __init__(self, vllm_config: VllmConfig, renderer: BaseRenderer) -> None:
        super().__init__(vllm_config, renderer)
        self.tokenizer = renderer.get_tokenizer()
        self.hidden_size = vllm_config.model_config.hf_config.hidden_size

    def parse_data(self, data: object) -> list[str]:
        if not isinstance(data, dict):
            raise ValueError("expected an object with texts")
        return data["texts"]

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return PoolingParams(task="embed")

    def pre_process(
        self, prompt: list[str], request_id: str | None = None, **kwargs
    ) -> PromptType | Sequence[PromptType]:
        return [{"prompt_token_ids": self.tokenizer(text)["input_ids"]} for text in prompt]

    def post_process(
        self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None, **kwargs
    ) -> list[tuple[str, int]]:
        assert all(output.outputs.data.shape == (self.hidden_size,) for output in model_output)
        texts = [self.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=True) for output in model_output]
        return [(text, len(output.prompt_token_ids)) for text, output in zip(texts, model_output, strict=True)]
