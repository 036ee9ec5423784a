"""Flags are generated from the declared options, with `-` or `_`, as JSON or field by field."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cenote.cli.text_commands import embed
from cenote.config.engine import EngineConfig
from cenote.config.options import option_fields

from .conftest import CommandResult, FakeEngine, FakeLLM

Command = Callable[..., CommandResult]


def options(cenote_command: Command, *flags: str) -> dict[str, object]:
    result = cenote_command("embed", "hello", *flags)
    assert result.status == 0, result.err
    return FakeLLM.last_options


def test_every_declared_option_has_a_flag_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        embed(["--help"])

    words = " ".join(capsys.readouterr().out.split())
    for option in option_fields(EngineConfig):
        assert f"--{option.name.replace('_', '-')}" in words
        assert option.metadata["help"] in words


def test_options_that_are_not_given_keep_the_defaults_of_the_library(cenote_command: Command) -> None:
    assert options(cenote_command) == {}


@pytest.mark.parametrize("flag", ["--max-model-len", "--max_model_len"])
def test_hyphens_and_underscores_in_flags_are_equivalent(flag: str, cenote_command: Command) -> None:
    assert options(cenote_command, flag, "8k") == {"max_model_len": 8000}
    assert options(cenote_command, f"{flag}=8K") == {"max_model_len": 8192}


def test_flags_have_the_types_of_their_options(cenote_command: Command) -> None:
    given = options(
        cenote_command, "--max-num-seqs", "7", "--step_timeout_s", "1.5", "--dtype", "half", "--enable-prompt-embeds"
    )

    assert given == {"max_num_seqs": 7, "step_timeout_s": 1.5, "dtype": "half", "enable_prompt_embeds": True}


@pytest.mark.parametrize("flag", ["--pooler-config", "--pooler_config", "--override-pooler-config"])
def test_the_pooler_config_is_set_as_json_or_field_by_field(flag: str, cenote_command: Command) -> None:
    json_text = '{"pooling_type": "MEAN", "use_activation": false}'
    expected = {"pooler_config": {"pooling_type": "MEAN", "use_activation": False}}

    assert options(cenote_command, flag, json_text) == expected
    assert options(cenote_command, f"{flag}.pooling_type", "MEAN", f"{flag}.use-activation=false") == expected
    assert options(cenote_command, flag, '{"pooling_type": "MEAN"}', f"{flag}.use_activation", "false") == expected


def test_dotted_flags_set_nested_fields(cenote_command: Command) -> None:
    given = options(cenote_command, "--hf-overrides.rope_scaling.factor", "2.0", "--hf-overrides.model_type", "bert")

    assert given == {"hf_overrides": {"rope_scaling": {"factor": 2.0}, "model_type": "bert"}}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-model-len", "many"], "invalid token count 'many'; expected for example 4096"),
        (["--pooler-config", "MEAN"], "'MEAN' is not JSON"),
        (["--pooler-config", "[1]"], "is not a JSON object like"),
        (["--dimensions", "0"], "'0' is not a whole number of at least 1"),
        (["--dtype", "int3"], "invalid choice: 'int3'"),
        (["--dtype.x", "1"], "--dtype has no fields to set"),
        (["--pooler-config.task"], "--pooler-config.task needs a value"),
        (["--format", "npy"], "--format npy needs --output FILE"),
        (["--output", "vectors.csv"], "unknown format of vectors.csv; use --format"),
    ],
)
def test_an_invalid_value_is_one_line_and_status_2(flags: list[str], message: str, cenote_command: Command) -> None:
    result = cenote_command("embed", "hello", *flags)

    assert result.status == 2
    assert message in result.err
    assert result.err.count("\n") == 1


def test_texts_may_be_between_flags_and_may_look_like_flags_after_two_dashes(
    cenote_command: Command, engine: FakeEngine
) -> None:
    cenote_command(
        "embed", "one", "--prompt", "p: ", "-2 degrees", "--dimensions", "2", "three", "--", "--model_x", "-q"
    )

    request = engine.requests[0]
    assert request.inputs == ["one", "-2 degrees", "three", "--model_x", "-q"]
    assert request.prompt == "p: "
    assert request.params.dimensions == 2


def test_requests_have_the_parameters_of_the_flags(cenote_command: Command, engine: FakeEngine) -> None:
    cenote_command(
        "embed",
        "a",
        "--no-normalize",
        "--truncate-prompt-tokens",
        "-1",
        "--truncation-side",
        "left",
        "--prompt-name",
        "q",
    )

    request = engine.requests[0]
    assert (request.task, request.prompt_name, request.return_exceptions) == ("embed", "q", True)
    assert request.params.use_activation is False
    assert (request.tokenization.truncate_prompt_tokens, request.tokenization.truncation_side) == (-1, "left")
