"""Code blocks after `<!-- tested -->` run: Python here, bash in a shell, both against servers on real ports.

The comment may name a model of MODELS, `<!-- tested: splade -->`: the hub name that the page uses is then replaced by
the folder of a small model of the same kind. A block of text after a tested one is its output.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from cenote import LLM
from cenote.cli.main import main
from tests.docs.code_blocks import ROOT, CodeBlock, read_blocks
from tests.doctor.conftest import EXACT, make_app, run_app

ADDRESS = "localhost:8000"
# pages and how many blocks of them run, so that a comment which no longer matches is noticed
PAGES = {
    "README.md": 3,
    "docs/quickstart.md": 3,
    "docs/offline.md": 1,
    "docs/prompts.md": 2,
    "docs/long_texts.md": 5,
    "docs/late_interaction.md": 3,
    "docs/sparse.md": 3,
    "docs/security.md": 1,
    "docs/files.md": 2,
    "docs/vision.md": 1,
    "docs/vllm.md": 1,
}
SHELL = 'set -euo pipefail\ncurl() { command curl --silent --show-error --fail-with-body "$@"; echo; }\n'


@dataclass(frozen=True)
class PageModel:
    hub_name: str
    save: Callable[[Path], object] | None = None  # None: the default model


def find_blocks(page: str) -> list[CodeBlock]:
    return [block for block in read_blocks(page) if block.is_tested]


# the functions import what only the environment of the tests has: the pages of the default model run without it
def save_prompts_model(folder: Path) -> None:
    """Save a model of Sentence Transformers with a prompt for queries."""
    from tests.tiny import save_tiny

    save_tiny(folder, "BertModel")
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "the old book: "}}))


def save_colbert(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from tests.tiny import change_config, save_tiny

    save_tiny(folder, "BertModel")
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = torch.randn(12, 32, generator=torch.Generator().manual_seed(0))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, architectures=["HF_ColBERT"])


def save_splade(folder: Path) -> None:
    from tests.tiny import tiny_splade

    tiny_splade(folder)


def save_colqwen3(folder: Path) -> None:
    """Save the model of the examples, and the image of the page."""
    from PIL import Image

    spec = spec_from_file_location("tiny_colqwen3", ROOT / "examples" / "tiny_colqwen3.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_checkpoint(folder)
    Image.new("RGB", (64, 96), "red").save(folder / "scan.png")


DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
# small models with random weights have the place of those on the hub, or the default model, which does the same tasks
MODELS = {
    "default": PageModel(DEFAULT),
    "protected": PageModel(DEFAULT),  # with an API key
    "e5": PageModel("intfloat/e5-small"),
    "reranker": PageModel("BAAI/bge-reranker-v2-m3"),
    "splade": PageModel("naver/splade-v3-distilbert", save_splade),
    "colbert": PageModel("answerdotai/answerai-colbert-small-v1", save_colbert),
    "colqwen3": PageModel("TomoroAI/tomoro-colqwen3-embed-4b", save_colqwen3),
    "prompts": PageModel("Snowflake/snowflake-arctic-embed-m-v1.5", save_prompts_model),
}


class Servers:
    """The models, made when a block needs one, and a server for each that is asked for over HTTP."""

    def __init__(self, default_folder: Path, make_folder: Callable[[str], Path], stack: ExitStack) -> None:
        self.default_folder = default_folder
        self.make_folder = make_folder
        self.stack = stack
        self.folders: dict[str, Path] = {}
        self.addresses: dict[str, str] = {}

    def get_folder(self, name: str) -> Path:
        save = MODELS[name].save
        if save is None:
            return self.default_folder
        if name not in self.folders:
            self.folders[name] = self.make_folder(name)
            save(self.folders[name])
        return self.folders[name]

    def get_address(self, name: str) -> str:
        if name not in self.addresses:
            served_name = MODELS[name].hub_name.rpartition("/")[2]
            folder = str(self.get_folder(name))
            llm = self.stack.enter_context(LLM(folder, served_model_name=served_name, **EXACT))
            settings = {"api_key": ("SECRET",)} if name == "protected" else {}
            url = self.stack.enter_context(run_app(make_app(llm, **settings)))
            self.addresses[name] = url.removeprefix("http://")
        return self.addresses[name]


@pytest.fixture(scope="module")
def servers(default_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(default_folder, tmp_path_factory.mktemp, stack)


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
    hub_name, folder = MODELS[block.model].hub_name, servers.get_folder(block.model)
    code = code.replace(f'"{hub_name}"', f'"{folder}"')
    monkeypatch.chdir(tmp_path)
    for image in folder.glob("*.png"):
        copy(image, tmp_path)
    capfd.readouterr()

    if block.language == "python":
        exec(compile(code, page, "exec"), {"__name__": "__main__"})
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
    if [program, *argv] == ["make", "serve"]:  # the server of the test is running
        return 0
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(["bash", "-c", SHELL + line], env=os.environ | {"PATH": path}, timeout=60).returncode


@pytest.mark.parametrize("page", PAGES)
def test_every_tested_block_of_a_page_is_found(page: str) -> None:
    text = (ROOT / page).read_text()

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
