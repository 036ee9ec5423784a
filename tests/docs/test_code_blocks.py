"""Code blocks after `<!-- tested -->` run: Python here, bash in a shell, both against servers on real ports.

The comment may name a model of MODELS, `<!-- tested: splade -->`: the hub name that the page uses is then replaced by
the folder of a small model of the same kind. A block of text after a tested one is its output.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cenote import LLM
from cenote.cli.main import main
from tests.doctor.conftest import EXACT, make_app, run_app
from tests.tiny import change_config, save_tiny, tiny_splade

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^<!-- tested(?:: (?P<model>\w+))? -->\n+```(?P<language>\w+)\n(?P<code>.*?)^```$"
    r"(?:\n+```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
ADDRESS = "localhost:8000"
# pages and how many blocks of them run, so that a comment which no longer matches is noticed
PAGES = {
    "quickstart.md": 3,
    "prompts.md": 2,
    "long_texts.md": 4,
    "late_interaction.md": 3,
    "sparse.md": 3,
    "security.md": 1,
    "files.md": 2,
}
SHELL = 'set -euo pipefail\ncurl() { command curl --silent --show-error --fail-with-body "$@"; echo; }\n'


@dataclass(frozen=True)
class CodeBlock:
    model: str
    language: str
    code: str
    output: str | None


@dataclass(frozen=True)
class PageModel:
    hub_name: str
    folder: Path


def find_blocks(page: str) -> list[CodeBlock]:
    matches = BLOCK.finditer((ROOT / "docs" / page).read_text())
    return [CodeBlock(m["model"] or "default", m["language"], m["code"], m["output"]) for m in matches]


def save_prompts_model(folder: Path) -> None:
    """Save a model of Sentence Transformers with a prompt for queries."""
    save_tiny(folder, "BertModel")
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "the old book: "}}))


def save_colbert(folder: Path) -> None:
    save_tiny(folder, "BertModel")
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = torch.randn(12, 32, generator=torch.Generator().manual_seed(0))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, architectures=["HF_ColBERT"])


MODELS = {
    "splade": ("naver/splade-v3-distilbert", tiny_splade),
    "colbert": ("answerdotai/answerai-colbert-small-v1", save_colbert),
    "prompts": ("Snowflake/snowflake-arctic-embed-m-v1.5", save_prompts_model),
}


@pytest.fixture(scope="module")
def models(default_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, PageModel]:
    """The models of the pages: the default model, also with an API key, and small ones with random weights."""
    default = PageModel("sentence-transformers/all-MiniLM-L6-v2", default_folder)
    found = {"default": default, "protected": default}
    for name, (hub_name, save) in MODELS.items():
        folder = tmp_path_factory.mktemp(name)
        save(folder)
        found[name] = PageModel(hub_name, folder)
    return found


class Servers:
    """A server for each model, started when a block needs it."""

    def __init__(self, models: dict[str, PageModel], stack: ExitStack) -> None:
        self.models = models
        self.stack = stack
        self.addresses: dict[str, str] = {}

    def get_address(self, name: str) -> str:
        if name not in self.addresses:
            model = self.models[name]
            served_name = model.hub_name.rpartition("/")[2]
            llm = self.stack.enter_context(LLM(str(model.folder), served_model_name=served_name, **EXACT))
            settings = {"api_key": ("SECRET",)} if name == "protected" else {}
            url = self.stack.enter_context(run_app(make_app(llm, **settings)))
            self.addresses[name] = url.removeprefix("http://")
        return self.addresses[name]


@pytest.fixture(scope="module")
def servers(models: dict[str, PageModel]) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(models, stack)


@pytest.mark.parametrize(
    ("page", "number"), [pytest.param(page, n, id=f"{page} {n}") for page, count in PAGES.items() for n in range(count)]
)
def test_a_block_runs(
    page: str, number: int, servers: Servers, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    block = find_blocks(page)[number]
    code = block.code
    if ADDRESS in code:
        code = code.replace(ADDRESS, servers.get_address(block.model))
    for model in servers.models.values():
        code = code.replace(f'LLM("{model.hub_name}"', f'LLM("{model.folder}"')
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()

    if block.language == "python":
        exec(compile(code, f"docs/{page}", "exec"), {"__name__": "__main__"})
    else:
        for line in code.replace("\\\n", "").splitlines():
            assert run_line(line) == 0, (line, capfd.readouterr())

    if block.output is not None:
        assert_same_output(capfd.readouterr().out, block.output)


def run_line(line: str) -> int:
    """Run a line of a bash block; `cenote` in this process, which has loaded what takes seconds to import."""
    program, *argv = shlex.split(line, comments=True) or ["true"]
    if program == "cenote":
        return main(argv)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(["bash", "-c", SHELL + line], env=os.environ | {"PATH": path}, timeout=60).returncode


@pytest.mark.parametrize("page", PAGES)
def test_every_tested_block_of_a_page_is_found(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()

    assert len(find_blocks(page)) == text.count("<!-- tested") == PAGES[page]


def assert_same_output(actual: str, expected: str) -> None:
    """Compare word by word; numbers up to rounding, which depends on the processor."""
    words, expected_words = actual.split(), expected.split()
    assert len(words) == len(expected_words), actual
    for word, expected_word in zip(words, expected_words, strict=True):
        try:
            assert float(word) == pytest.approx(float(expected_word), abs=0.006)
        except ValueError:
            assert word == expected_word, actual
