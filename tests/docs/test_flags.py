"""Every `--flag` that the documentation and the files of `deploy/` name is one of a program that has it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from cenote.cli.completion import collect_parser, list_commands
from cenote.cli.main import find_command
from lab.chaos.__main__ import make_parser

ROOT = Path(__file__).parents[2]
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*")]
# declare the flags of our programs that the completion does not list
SCRIPTS = (
    "cenote/bench/**/*.py",
    "lab/**/*.py",
    "cenote/cli/explain.py",
    "examples/**/*.py",
    "tests/clients/matrix/*.py",
    "tests/workers.py",
)
OTHER_PROGRAMS = {
    "any program of vLLM": "--enable-x --disable-x --no-enable-x",
    "apt-get": "--no-install-recommends",
    "cenote": "--version",
    "docker": "--build-arg --from --interval --mount --platform --read-only --retries --start-period --user",
    "helm": "--values",
    "kubectl": "--from-literal --output",
    "mypy": "--strict",
    "pip": "--find-links --hash --index-url --no-deps --no-index --only-binary --require-hashes",
    "prometheus": "--storage",
    "sky": "--env",
}


@cache
def list_known_flags() -> frozenset[str]:
    shown = {flag for command in list_commands() for option in command.options for flag in option.flags}
    shown.update(re.findall(r"--[a-z-]+", make_parser().format_help()))
    sources = [path.read_text() for pattern in SCRIPTS for path in ROOT.glob(pattern)]
    declared = {flag for source in sources for flag in re.findall(r'"(--[a-z][a-z-]*)"', source)}
    return frozenset(shown | declared).union(*(flags.split() for flags in OTHER_PROGRAMS.values()))


def read_own_part(page: Path) -> str:
    """Return a page; without the columns and comments of other servers in the guide for their users."""
    text = page.read_text()
    if page.name == "migration.md":
        return "\n".join(line.partition("# was:")[0].strip("| ").rpartition(" | ")[2] for line in text.splitlines())
    return text


def list_pages() -> list[Path]:
    return [page for page in PAGES if page.is_file() and page.suffix != ".json" and page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_flag_of_a_page_is_a_flag_of_a_program(page: Path) -> None:
    known = list_known_flags()
    if page.name == "vllm.md":  # names of vLLM, which the help does not show
        known |= collect_parser(find_command("serve")).options_by_flag().keys()

    named = {flag.replace("_", "-") for flag in FLAG.findall(read_own_part(page))}

    assert named - known == set()


def test_pages_name_flags_and_deprecated_ones_are_unknown() -> None:
    named = {flag for page in list_pages() for flag in FLAG.findall(read_own_part(page))}

    assert len(named) > 150
    assert "--max-waiting-chars" not in list_known_flags()
