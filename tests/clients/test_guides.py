"""The snippets, commands and flags of docs/migration.md work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub import close_session, set_client_factory
from huggingface_hub.utils._http import default_client_factory

from cenote import LLM
from cenote.cli.doctor import make_parser
from cenote.cli.serve import make_table, parse_config
from cenote.config.engine import EngineConfig
from cenote.config.options import option_fields
from cenote.config.server import ServerConfig
from cenote.kernels.cpu_features import CPU_LEVEL
from tests.clients.conftest import EXACT
from tests.cpu import FLOAT32_LEVEL
from tests.doctor.conftest import NAME, make_app, run_app

GUIDE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
URL = "http://localhost:8000"
TEXTS = ["hello", "a red bird"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def find_blocks(language: str) -> list[Any]:
    """Return the code blocks of a language, with the section of each."""
    blocks = []
    for part in GUIDE.split("\n## "):
        found = [code for name, code in BLOCK.findall(part) if name == language]
        blocks += [pytest.param(code, id=f"{part.partition(chr(10))[0]} {i}") for i, code in enumerate(found)]
    return blocks


def find_commands() -> list[str]:
    lines = [line for block in find_blocks("bash") for line in str(block.values[0]).splitlines()]
    return [line.partition("   #")[0] for line in lines]


@pytest.fixture(scope="module")
def model(default_folder: Path) -> Iterator[LLM]:
    with LLM(str(default_folder), served_model_name=NAME, **EXACT) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(model: LLM) -> Iterator[str]:
    with run_app(make_app(model)) as url:
        yield url


@pytest.fixture
def plain_hub_client() -> Iterator[None]:
    """With HF_HUB_OFFLINE, the client of huggingface_hub refuses local addresses too."""
    set_client_factory(httpx.Client)
    yield
    close_session()
    set_client_factory(default_client_factory)


@pytest.mark.parametrize("code", find_blocks("python"))
def test_a_snippet_returns_what_the_model_computes(
    code: str, server: str, model: LLM, plain_hub_client: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CPU_LEVEL, FLOAT32_LEVEL)
    names: dict[str, Any] = {}

    exec(compile(code.replace(URL, server), "docs/migration.md", "exec"), names)

    expected = [output.outputs.embedding for output in model.embed(TEXTS, use_tqdm=False)]
    results = [name for name in ("vectors", "similarities", "scores", "ranking", "ranks") if name in names]
    assert results
    for name in results:
        value = names[name]
        if name == "vectors":
            assert np.allclose(value, expected, atol=2e-3)
        elif name in ("similarities", "scores"):
            exact = [o.outputs.score for o in model.score("hello", ["good morning", "a red bird"], use_tqdm=False)]
            assert np.allclose(value, exact, atol=2e-3)
        else:
            assert [item["index"] for item in value] == [1, 0]
    for client in (item for key, item in names.items() if key in ("client", "llm")):
        getattr(client, "close", lambda: None)()


def test_every_section_but_the_first_has_a_snippet() -> None:
    sections = GUIDE.split("\n## ")[1:]

    assert len(sections) == 5
    assert all("```python" in section and "\n| " in section for section in sections)


@pytest.mark.parametrize("command", find_commands())
def test_a_command_has_valid_arguments(command: str) -> None:
    program, name, *argv = shlex.split(command)

    assert program == "cenote"
    if name == "serve":
        settings, options = parse_config(argv, {})
        make_table(settings, options)
    else:
        assert name == "doctor" and make_parser().parse(argv)


def test_every_flag_in_the_column_of_cenote_exists() -> None:
    known = {
        f"--{option.name.replace('_', '-')}" for part in (ServerConfig, EngineConfig) for option in option_fields(part)
    }
    rows = [line.strip("| ").split(" | ") for line in GUIDE.splitlines() if line.startswith("| ")]
    flags = {flag for row in rows for flag in re.findall(r"--[a-z][a-z-]+", row[-1])}

    assert len(flags) > 20
    assert flags - known == {"--replicas"}  # another name of --data-parallel-size
