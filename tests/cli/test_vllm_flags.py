"""Every flag of `vllm serve` 0.33 takes as many arguments as there, and is accepted, or refused with a reason."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cenote.cli.parser import CommandParser
from cenote.cli.serve import make_parser
from cenote.config.engine import TRANSLATED_OPTIONS, EngineConfig
from cenote.config.server import ServerConfig
from cenote.config.vllm_options import REFUSAL_REASONS, REFUSED_OPTIONS, VLLM_OPTIONS, remove_vllm_options
from cenote.errors import LoadError

# each option of vLLM's parser: a switch, or a value or several such as this, and all its flags
LINES = [line.split() for line in Path(__file__).with_name("vllm_flags.txt").read_text().splitlines()]
DOCS = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text()


@pytest.fixture(scope="module")
def parser() -> CommandParser:
    return make_parser()


def parse(parser: CommandParser, *words: str) -> dict[str, Any]:
    """Return the options that are set."""
    args = vars(parser.parse(words))
    return {name: value for name, value in args.items() if value is not None and value != []}


def test_the_list_has_all_options_and_long_flags_of_vllm() -> None:
    names = [flag for _, *flags in LINES for flag in flags if flag.startswith("--")]

    assert (len(LINES), len(names), len(set(names))) == (320, 460, 460)


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line[1]))
def test_a_flag_of_vllm_takes_its_arguments_and_is_accepted_or_refused_as_documented(
    line: list[str], parser: CommandParser
) -> None:
    kind, value = (line[0].split("=") + [""])[:2]
    words = {"switch": [], "value": [value], "values": [value, value]}[kind]

    underscored = [f"--{flag[2:].replace('-', '_')}" for flag in line[1:] if flag.startswith("--")]

    given = [parse(parser, flag, *words, "--", "model") for flag in (*line[1:], *underscored)]

    assert all(options.pop("model_tags") == ["model"] for options in given)
    (name,) = {name for options in given for name in options}
    try:
        remove_vllm_options(given[0])
    except LoadError as error:
        assert REFUSAL_REASONS[name] in error.message


@pytest.mark.parametrize("line", [line for line in LINES if line[0] == "switch"], ids=lambda line: str(line[1]))
def test_the_other_flags_of_a_switch_are_its_opposites(line: list[str], parser: CommandParser) -> None:
    given = {flag: [*parse(parser, flag).values()][0] for flag in line[1:]}

    opposites = [flag for flag in line[2:] if flag.startswith("--")]
    assert given.pop(line[1]) is True
    assert [flag for flag, value in given.items() if value is False] == opposites


@pytest.mark.parametrize("reason", REFUSED_OPTIONS)
def test_the_docs_name_the_refused_options_with_the_reason(reason: str) -> None:
    names = ", ".join(f"`{name}`" for name in REFUSED_OPTIONS[reason])

    assert f"| {names} | {reason} |" in DOCS


def test_the_options_of_vllm_are_keywords_of_llm_except_those_of_the_server() -> None:
    names = {flag[2:].replace("-", "_") for _, flag, *_ in LINES}
    keywords = {*VLLM_OPTIONS, *TRANSLATED_OPTIONS, *(field.name for field in fields(EngineConfig))}
    of_server = {field.name for field in fields(ServerConfig)}

    assert names - keywords - of_server == {
        "config", "uvicorn_log_level", "disable_uvicorn_access_log", "disable_fastapi_docs"
    }  # fmt: skip


def test_options_without_effect_that_are_not_of_this_version_are_of_older_ones_or_keywords(
    parser: CommandParser,
) -> None:
    flags = {flag for _, *flags in LINES for flag in flags}
    others = {name for name in VLLM_OPTIONS if "--" + name.replace("_", "-") not in flags}

    assert others == {"swap_space", "max_seq_len_to_capture", "model_weights", "mamba_config"} | {
        "enable_mm_processor_stats"
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-O 2", {"optimization_level": 2}),
        ("-O3", {"optimization_level": 3}),
        ("-O=1", {"optimization_level": 1}),
        ("--compilation-config.mode 3 --compilation_config.pass_config.x=true",
         {"compilation_config": {"mode": 3, "pass_config": {"x": True}}}),
        ("-cc.mode 3", {"compilation_config": {"mode": 3}}),
        ('--kernel-config {"enable_jit_warmup":false}', {"kernel_config": {"enable_jit_warmup": False}}),
        ("--kv-cache-memory-bytes 8G", {"kv_cache_memory_bytes": "8G"}),
        ("--cudagraph-capture-sizes 1 2 --port 1", {"cudagraph_capture_sizes": ("1", "2"), "port": 1}),
    ],
)  # fmt: skip
def test_values_are_written_as_in_vllm(words: str, expected: dict[str, object], parser: CommandParser) -> None:
    assert parse(parser, *words.split()) == expected
