"""Programs written for vLLM, models that need more than one GPU, and the message about plugins."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from torch.testing import assert_close

from cenote import LLM, Unsupported
from tests.seeds.checkpoints import EXACT, GREETING, Models

# modules and names of vLLM, with the package renamed
NAMES = [
    ("cenote", "EngineArgs"),
    ("cenote", "LLM"),
    ("cenote", "PoolingParams"),
    ("cenote.config.pooler", "PoolerConfig"),
    ("cenote.inputs", "TextPrompt"),
    ("cenote.inputs", "TokensPrompt"),
    ("cenote.lora.request", "LoRARequest"),
    ("cenote.pooling_params", "PoolingParams"),
    ("cenote.utils", "FlexibleArgumentParser"),
]


def parse_options(**defaults: Any) -> dict[str, Any]:
    """Parse an empty command line as the example programs do."""
    parser = import_module("cenote.utils").FlexibleArgumentParser()
    parser = import_module("cenote").EngineArgs.add_cli_args(parser)
    parser.set_defaults(**defaults)
    return vars(parser.parse_args([]))


@pytest.mark.parametrize(
    ("name", "method", "arguments"),
    [
        ("bert", LLM.embed, (GREETING,)),
        ("apeach", LLM.classify, (GREETING,)),
        ("bge-reranker", LLM.score, (GREETING, GREETING)),
        ("internlm2 reward", LLM.reward, (GREETING,)),
    ],
)
def test_basic_examples_run_with_engine_args(name: str, method: Any, arguments: Any, models: Models) -> None:
    for module, attribute in NAMES:
        assert hasattr(import_module(module), attribute), f"{module}.{attribute}"
    options = parse_options(model=str(models.folder(name)), runner="pooling", enforce_eager=True, **EXACT)

    with LLM(**options) as llm:
        (output,) = method(llm, *arguments)

    assert output.finished


def test_qwen_math_rm_72b_runs_on_several_devices(models: Models) -> None:
    (expected,) = models.load("math rm", task="reward").reward(GREETING)

    (output,) = models.load("math rm", task="reward", tensor_parallel_size=2).reward(GREETING)

    assert_close(output.outputs.data, expected.outputs.data, atol=1e-4, rtol=0)


def test_plugin_error_names_our_example(models: Models) -> None:
    with pytest.raises(Unsupported, match="examples/near_duplicates") as caught:
        models.load("bert").encode({"data": "a"}, pooling_task="plugin")

    assert "prithvi" not in caught.value.message
