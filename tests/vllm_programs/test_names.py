"""The names that programs for vLLM's pooling API import are at the same place in `cenote`."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
import torch

from cenote.entrypoints.pooling.scoring.utils import compute_maxsim_score
from cenote.exceptions import VLLMValidationError

NAMES = {
    "vllm": "LLM EngineArgs PoolingParams PoolingOutput PoolingRequestOutput EmbeddingOutput EmbeddingRequestOutput "
    "ClassificationOutput ClassificationRequestOutput ScoringOutput ScoringRequestOutput TextPrompt TokensPrompt "
    "PromptType __version__",
    "vllm.config": "PoolerConfig VllmConfig",
    "vllm.config.pooler": "PoolerConfig",
    "vllm.engine.arg_utils": "EngineArgs",
    "vllm.entrypoints.chat_utils": "load_chat_template ChatCompletionMessageParam",
    "vllm.entrypoints.llm": "LLM",
    "vllm.entrypoints.openai.protocol": "EMBED_DTYPE_TO_TORCH_DTYPE IOProcessorRequest IOProcessorResponse",
    "vllm.entrypoints.pooling.score.utils": "ScoreMultiModalParam ScoreContentPartParam",
    "vllm.entrypoints.pooling.scoring.typing": "ScoreMultiModalParam ScoreContentPartParam",
    "vllm.entrypoints.pooling.scoring.utils": "compute_maxsim_score",
    "vllm.entrypoints.pooling.utils": "MetadataItem build_metadata_items decode_pooling_output",
    "vllm.entrypoints.score_utils": "ScoreMultiModalParam ScoreContentPartParam",
    "vllm.exceptions": "VLLMValidationError",
    "vllm.inputs": "TextPrompt TokensPrompt EmbedsPrompt DataPrompt PromptType SingletonPrompt",
    "vllm.inputs.data": "TextPrompt TokensPrompt EmbedsPrompt DataPrompt PromptType SingletonPrompt",
    "vllm.lora.request": "LoRARequest",
    "vllm.multimodal.utils": "fetch_image encode_image_base64 encode_image_url",
    "vllm.outputs": "PoolingOutput PoolingRequestOutput EmbeddingRequestOutput ClassificationRequestOutput "
    "ScoringRequestOutput EmbeddingOutput ClassificationOutput ScoringOutput LateChunk LateChunkingMetadata "
    "RequestError",
    "vllm.plugins.io_processors": "IOProcessor",
    "vllm.plugins.io_processors.interface": "IOProcessor IOProcessorInput IOProcessorOutput",
    "vllm.pooling_params": "LateChunkingParams PoolingParams",
    "vllm.renderers": "BaseRenderer",
    "vllm.renderers.chat_utils": "load_chat_template ChatCompletionMessageParam ChatCompletionContentPartTextParam "
    "ChatCompletionContentPartImageParam",
    "vllm.tasks": "PoolingTask POOLING_TASKS",
    "vllm.transformers_utils.repo_utils": "hf_api",
    "vllm.utils": "FlexibleArgumentParser",
    "vllm.utils.argparse_utils": "FlexibleArgumentParser",
    "vllm.utils.print_utils": "print_embeddings",
    "vllm.utils.serial_utils": "EMBED_DTYPES EMBED_DTYPE_TO_N_BYTES EMBED_DTYPE_TO_TORCH_DTYPE ENDIANNESS "
    "EmbedDType Endianness MetadataItem binary2tensor build_metadata_items decode_pooling_output "
    "decoding_pooling_output",
}


@pytest.mark.parametrize("module", NAMES)
def test_a_module_of_vllm_has_its_names_here(module: str) -> None:
    ours = import_module(module.replace("vllm", "cenote", 1))

    assert [name for name in NAMES[module].split() if not hasattr(ours, name)] == []


def test_an_error_has_the_parameter_of_vllms() -> None:
    error = VLLMValidationError("invalid", parameter="dimensions", value=3)

    assert (error.parameter, error.value, str(error)) == ("dimensions", 3, "invalid (parameter=dimensions, value=3)")


def test_maxsim_of_two_matrices_is_that_of_vllm() -> None:
    query, document = torch.eye(2, 3), torch.tensor([[0.5, 0.25, 9.0], [0.125, 2.0, 0.0]])

    assert compute_maxsim_score(query.half(), document.half()).item() == 0.5 + 2.0


def test_argument_parsers_and_prompt_types_need_no_torch() -> None:
    code = (
        "import sys; from cenote import EngineArgs, TextPrompt; from cenote.utils import FlexibleArgumentParser; "
        "from cenote.inputs import TokensPrompt; EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args([]); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)

    assert done.stdout.strip() == "False"
