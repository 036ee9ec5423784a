"""Code blocks after `<!-- tested -->` run: Python here, bash in a shell, both against servers on real ports.

Hub names are replaced by folders of small models of the same kind (page_models.py). The comment may name the model that
answers at the address of the page, `<!-- tested: splade -->`. A block of text after a tested one is its output.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from cenote import LLM
from cenote.cli.main import main
from tests.docs.code_blocks import PAGES, ROOT, find_tested_blocks, read_blocks
from tests.docs.page_models import MODELS, MODELS_VARIABLE, make_model
from tests.doctor.conftest import EXACT, make_app, run_app
from tests.serving.certificates import certificate
from tests.serving.server_process import ServerProcess

ADDRESS = re.compile(r"(?<=//)127\.0\.0\.1:[38]0[08]0|localhost:8000")
SHELL = 'set -euo pipefail\ncurl() { command curl --silent --show-error --fail-with-body "$@"; echo; }\n'


class Servers:
    """The models, made when a block needs one, and a server for each that is asked for over HTTP."""

    def __init__(self, default_folder: Path, models_folder: Path, stack: ExitStack) -> None:
        self.default_folder = default_folder
        self.models_folder = models_folder
        self.stack = stack
        self.addresses: dict[str, str] = {}

    def get_folder(self, name: str) -> Path:
        return make_model(name, self.models_folder) or self.default_folder

    def get_address(self, name: str) -> str:
        if name not in self.addresses:
            served_name = MODELS[name].hub_name.rpartition("/")[2]
            folder = str(self.get_folder(name))
            llm = self.stack.enter_context(LLM(folder, served_model_name=served_name, **EXACT))
            settings = {"api_key": ("SECRET",)} if name == "protected" else {}
            url = self.stack.enter_context(run_app(make_app(llm, **settings)))
            self.addresses[name] = url.removeprefix("http://")
        return self.addresses[name]

    def replace_models(self, code: str) -> str:
        for name, model in MODELS.items():
            if model.hub_name in code:
                code = code.replace(model.hub_name, str(self.get_folder(name)))
        return code


@pytest.fixture(scope="module")
def servers(default_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    models_folder = os.environ.get(MODELS_VARIABLE) or tmp_path_factory.mktemp("models")
    with ExitStack() as stack:
        yield Servers(default_folder, Path(models_folder), stack)


def list_rows() -> Iterator[Any]:
    """Yield pages and numbers of their tested blocks; `make test` runs first blocks in the environment of a reader."""
    for page in PAGES:
        for number, block in enumerate(find_tested_blocks(page)):
            marks = [pytest.mark.slow] if block == read_blocks(page)[0] else []
            yield pytest.param(page, number, id=f"{page} {number}", marks=marks)


@pytest.mark.parametrize(("page", "number"), list(list_rows()))
def test_a_block_runs(
    page: str, number: int, servers: Servers, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    block = find_tested_blocks(page)[number]
    code = servers.replace_models(block.code)
    if ADDRESS.search(code):
        code = ADDRESS.sub(servers.get_address(block.model), code)
    monkeypatch.chdir(tmp_path)
    write_files(page, code, servers)
    if "cert.pem" in code:
        code = code.replace("key.pem", certificate(tmp_path, "cert")[1]).replace("/run/secrets", str(tmp_path))
    capfd.readouterr()

    if block.language == "python":
        exec(compile(code, page, "exec"), {"__name__": "__main__"})
    else:
        for line in code.replace("\\\n", "").splitlines():
            assert run_line(line) == 0, (line, capfd.readouterr())

    if block.output is not None:
        assert_same_output(capfd.readouterr().out, block.output)


def write_files(page: str, code: str, servers: Servers) -> None:
    """Write the files that a block names into the working folder: those of the page, its image, texts, keys."""
    for block in read_blocks(page):
        if block.language == "yaml" and (name := re.match(r"# (\S+\.yaml)\n", block.code)):
            Path(name[1]).write_text(servers.replace_models(block.code))
    if "scan.png" in code:
        copy(servers.get_folder("colqwen3") / "scan.png", ".")
    Path("lines.txt").write_text("Follow the white rabbit.\nHow deep is the cave?\n")
    Path("keys").write_text("SECRET\n")


def run_line(line: str) -> int:
    """Run a line of a bash block; `cenote` in this process, which has loaded what takes seconds to import."""
    program, *argv = shlex.split(line, comments=True) or ["true"]
    if [program, *argv[:1]] == ["cenote", "serve"]:
        return serve_until_ready(argv[1:])
    if program == "cenote":
        return main(argv)
    if [program, *argv] == ["make", "serve"]:  # the server of the test is running
        return 0
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(["bash", "-c", SHELL + line], env=os.environ | {"PATH": path}, timeout=60).returncode


def serve_until_ready(flags: Sequence[str]) -> int:
    server = ServerProcess(*flags, "--port", "0")
    try:
        server.wait_until_ready()
    finally:
        status = server.stop()
    return status


def test_every_tested_block_of_a_page_is_found() -> None:
    for page in PAGES:
        assert len(find_tested_blocks(page)) == len(re.findall("^<!-- tested", (ROOT / page).read_text(), re.MULTILINE))


def assert_same_output(actual: str, expected: str) -> None:
    """Compare word by word; numbers up to rounding, which depends on the processor."""
    words, expected_words = actual.split(), expected.split()
    assert len(words) == len(expected_words), actual
    for word, expected_word in zip(words, expected_words, strict=True):
        try:
            assert float(word) == pytest.approx(float(expected_word), abs=0.006)
        except ValueError:
            assert word == expected_word, actual
