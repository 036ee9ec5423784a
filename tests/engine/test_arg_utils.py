"""EngineArgs: the options of LLM as a dataclass and as flags."""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from cenote import EngineArgs, LoadError, PoolerConfig
from cenote.config.engine import TRANSLATED_OPTIONS, EngineConfig
from cenote.config.vllm_options import VLLM_OPTIONS
from cenote.utils import FlexibleArgumentParser


def parse(*argv: str, **defaults: object) -> argparse.Namespace:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.set_defaults(**defaults)
    return parser.parse_args(list(argv))


def test_its_fields_are_the_options_of_llm() -> None:
    names = {item.name for item in fields(EngineConfig)} | VLLM_OPTIONS.keys() | set(TRANSLATED_OPTIONS)

    assert {item.name for item in fields(EngineArgs)} == names
    assert EngineArgs("a model").model == "a model"
    with pytest.raises(TypeError, match="nonsense"):
        EngineArgs(nonsense=1)


def test_defaults_round_trip() -> None:
    assert EngineConfig.from_kwargs(**asdict(EngineArgs(model="m"))) == EngineConfig(model="m")
    assert EngineConfig.from_kwargs(**vars(parse(model="m"))) == EngineConfig(model="m")


def test_options_round_trip_as_a_dataclass_and_as_flags() -> None:
    pooler = PoolerConfig(task="token_embed", pooling_type="ALL", normalize=False)
    expected = EngineConfig(model="m", runner="pooling", max_model_len=8000, pooler_config=pooler)

    args = EngineArgs(model="m", runner="pooling", max_model_len="8k", pooler_config=pooler, enforce_eager=True)
    namespace = parse("--max_model_len", "8k", "--no-enforce-eager", model="m", runner="pooling", pooler_config=pooler)

    assert EngineConfig.from_kwargs(**asdict(args)) == expected
    assert EngineConfig.from_kwargs(**vars(namespace)) == expected


def test_deprecated_names_are_accepted() -> None:
    expected = EngineConfig(
        model="m", runner="pooling", convert="embed", task="embed", pooler_config=PoolerConfig(pooling_type="MEAN")
    )
    pooler = {"pooling_type": "MEAN"}

    args = EngineArgs(model="m", task="embed", override_pooler_config=pooler)
    namespace = parse("--task", "embed", "--override-pooler-config", '{"pooling_type": "MEAN"}', model="m")

    assert EngineConfig.from_kwargs(**asdict(args)) == expected
    assert EngineConfig.from_kwargs(**vars(namespace)) == expected
    assert EngineConfig.from_kwargs(**vars(parse(model="m", task="embed", override_pooler_config=pooler))) == expected


def test_options_of_a_namespace_leave_out_those_of_the_program() -> None:
    namespace = parse("--dtype", "half", model="m")
    namespace.seed_of_the_program = 3

    assert EngineArgs.from_cli_args(namespace) == EngineArgs(model="m", dtype="half")


def test_a_value_that_would_change_results_is_refused_by_llm() -> None:
    with pytest.raises(LoadError, match="pipeline_parallel_size=2"):
        EngineConfig.from_kwargs(**vars(parse("--pipeline-parallel-size", "2")))


def test_vllms_short_flags_are_accepted() -> None:
    options = vars(parse("-tp", "2", "-pp", "1", "-dp=1", "-q", "fp8", model="m"))

    expected = EngineConfig(model="m", quantization="fp8", tensor_parallel_size=2)
    assert EngineConfig.from_kwargs(**options) == expected
    with pytest.raises(LoadError, match="pipeline_parallel_size=2"):
        EngineConfig.from_kwargs(**vars(parse("-pp", "2")))


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["--served-model-name", "a", "b"], "a"),
        (["--config", "FILE"], "c"),
        (["--config", "FILE", "--served_model_name", "a"], "a"),
        ([], None),
    ],
    ids=str,
)
def test_the_first_of_several_served_model_names_is_taken(argv: list[str], name: str | None, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("served_model_name: [c, d]\n")

    options = vars(parse(*(word.replace("FILE", str(file)) for word in argv), model="m"))

    assert EngineConfig.from_kwargs(**options) == EngineConfig(model="m", served_model_name=name)
