"""The first code block of every page runs, or the table says why it is only parsed, as all other blocks are."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec

import pytest
import yaml

from cenote.bench.main import COMMANDS as BENCH_COMMANDS
from cenote.cli.completion import collect_parser
from cenote.cli.main import COMMANDS, find_command
from tests.docs.code_blocks import PAGES, ROOT, CodeBlock, read_blocks

TESTED = "runs in test_code_blocks.py"
MADE = "runs in test_readers_environment.py, which makes the environment"
MAKES = "a target that installs, builds or tests for minutes"
# the first block of each page runs, or is parsed for the reason given
FIRST_BLOCKS = {
    "CONTRIBUTING.md": MAKES,
    "README.md": TESTED,
    "docs/architecture.md": "a drawing of the layers",
    "docs/clients.md": MAKES,
    "docs/contributing.md": MAKES,
    "docs/doctor.md": TESTED,
    "docs/files.md": TESTED,
    "docs/index.md": "begins as README.md does",
    "docs/internals.md": "a drawing of the processes",
    "docs/late_interaction.md": TESTED,
    "docs/long_texts.md": TESTED,
    "docs/measurements/method.md": "installs other engines",
    "docs/migration.md": TESTED,
    "docs/offline.md": TESTED,
    "docs/operations.md": "builds an image with docker",
    "docs/performance.md": "measures for minutes",
    "docs/plugins.md": "a part of a pyproject.toml",
    "docs/prompts.md": TESTED,
    "docs/quantization.md": TESTED,
    "docs/quickstart.md": MADE,
    "docs/ray.md": "runs in tests/ray/test_dataset.py, on a folder in the place of the bucket",
    "docs/routes.md": TESTED,
    "docs/runtimes.md": "a line of what cenote inspect prints",
    "docs/scale.md": MADE,
    "docs/security.md": TESTED,
    "docs/serving.md": TESTED,
    "docs/several_models.md": TESTED,
    "docs/sizing.md": "needs an index with CPU builds of torch",
    "docs/sparse.md": TESTED,
    "docs/vision.md": TESTED,
    "docs/vllm.md": TESTED,
    "examples/README.md": MADE,
    "examples/corpus/README.md": "runs in tests/ray/test_corpus_example.py, without the installation",
    "examples/near_duplicates/README.md": MADE,
    "examples/tensor_plugin/README.md": MADE,
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = re.findall(r"^([\w-]+):.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
OPERATORS = set(";|&()<>")


def test_the_table_has_every_page_with_a_code_block() -> None:
    assert FIRST_BLOCKS.keys() == {page for page in PAGES if read_blocks(page)}


@pytest.mark.parametrize("page", FIRST_BLOCKS)
def test_a_first_block_that_runs_is_marked(page: str) -> None:
    assert read_blocks(page)[0].is_tested == (FIRST_BLOCKS[page] == TESTED)


@pytest.mark.parametrize("page", FIRST_BLOCKS)
def test_the_code_of_a_page_can_be_parsed(page: str) -> None:
    for block in read_blocks(page):
        PARSERS[block.language](block)


def parse_python(block: CodeBlock) -> None:
    compile(block.code, "block", "exec")
    for module, names in re.findall(r"^ *from (cenote[\w.]*) import \(?([\w, ]+)", block.code, re.MULTILINE):
        assert all(hasattr(import_module(module), name) for name in names.strip(" ,").split(", "))


def parse_bash(block: CodeBlock) -> None:
    subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
    for command in split_commands(block.code):
        check_command(command)


def split_commands(code: str) -> Iterator[list[str]]:
    """Yield the words of every command, without those of redirections."""
    pending = ""
    for line in code.replace("\\\n", " ").splitlines():
        pending += line
        lexer = shlex.shlex(pending, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quoted text that goes on in the next line
            pending += "\n"
            continue
        pending = ""
        command: list[str] = []
        for word in [*words, ";"]:
            if not OPERATORS.issuperset(word):
                command.append(word)
            elif command:
                yield command
                command = []


def check_command(words: Sequence[str]) -> None:
    """Check the arguments of our own programs."""
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    program, *arguments = words or ["true"]
    match program.rpartition("/")[2], arguments:
        case "cenote", [name, *rest]:
            parse_cenote(name, rest)
        case "make", _:
            assert {word for word in arguments if "=" not in word} <= set(TARGETS), arguments
        case "python", ["-m", module, *_] if module.startswith("cenote."):
            assert find_spec(module) is not None
        case "pip", ["install", *rest]:
            check_pip(rest)


def parse_cenote(name: str, arguments: list[str]) -> None:
    assert name in COMMANDS
    if name == "bench":
        parser = argparse.ArgumentParser(allow_abbrev=False)
        BENCH_COMMANDS[arguments[0]].add_flags(parser)
        parser.parse_args(arguments[1:])
    else:
        collect_parser(find_command(name)).parse(arguments)


def check_pip(arguments: Sequence[str]) -> None:
    for option, word in zip(["", *arguments], arguments, strict=False):
        if option == "--group":
            assert word in PROJECT["dependency-groups"]
        for extras in re.findall(r"\[(.+)\]", word):
            assert set(extras.split(",")) <= PROJECT["project"]["optional-dependencies"].keys()


PARSERS = {
    "": lambda block: None,
    "text": lambda block: None,
    "bash": parse_bash,
    "python": parse_python,
    "json": lambda block: json.loads(block.code),
    "toml": lambda block: tomllib.loads(block.code),
    "yaml": lambda block: list(yaml.safe_load_all(block.code)),
}


@pytest.mark.parametrize(
    "command",
    [
        *("cenote serve m --prot 8000", "cenote embeds a", "make servee", "pip install -e '.[s4]'", "cenote ps &&"),
        "git clone <this repository>\n",
    ],
)
def test_a_mistake_in_a_block_is_found(command: str) -> None:
    with pytest.raises(Exception):  # noqa: B017  # of pytest, bash or our own parser
        parse_bash(CodeBlock(False, "default", "bash", command, None))


def test_the_table_of_optional_packages_has_every_extra() -> None:
    table = (ROOT / "docs/quickstart.md").read_text().partition("## Optional packages")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == PROJECT["project"]["optional-dependencies"].keys()


def test_the_entry_point_of_the_page_on_plugins_is_that_of_the_example() -> None:
    example = (ROOT / "examples/near_duplicates/pyproject.toml").read_text()

    assert read_blocks("docs/plugins.md")[0].code in example


def test_the_readme_is_short_and_begins_with_code() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()

    assert len(lines) < 150
    assert any(line.startswith("```") for line in lines[:25])
