"""The page on the architecture names packages, modules and functions that exist."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from cenote import LLM
from tests.tiny import tiny_bert
from tools.list_packages import PACKAGE, PAGE, ROOT, replace_table

TEXT = PAGE.read_text()
PAGES = [PAGE, PAGE.with_name("internals.md"), PAGE.with_name("contributing.md")]


def test_the_table_of_packages_is_what_its_script_writes() -> None:
    assert replace_table(TEXT) == TEXT, "write it again: python tools/list_packages.py"


def test_every_module_says_what_it_holds() -> None:
    modules = list(PACKAGE.rglob("*.py"))

    assert [str(path) for path in modules if not path.read_text().startswith(('"""', 'r"""'))] == []


def test_the_functions_on_the_way_of_a_request_are_in_their_modules() -> None:
    found = re.findall(r"`([\w.]+)` \(`([\w/]+\.py)`\)", TEXT)

    assert len(found) > 15
    for name, module in found:
        source = (PACKAGE / module).read_text()
        for part in name.split("."):
            assert re.search(rf"^ *(?:async def|def|class) {part}\b", source, re.MULTILINE), (name, module)


@contextmanager
def record_calls() -> Iterator[set[tuple[str, str]]]:
    """Collect the functions of the package that this thread and those that it starts call, with their modules."""
    calls: set[tuple[str, str]] = set()

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            calls.add((frame.f_code.co_qualname, frame.f_code.co_filename[len(str(PACKAGE)) + 1 :]))

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def embed_traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[list[str]], set[tuple[str, str]]]]:
    """Embed texts with a model whose threads are traced; return the functions that were called meanwhile."""
    folder = tmp_path_factory.mktemp("traced")
    tiny_bert(folder)
    with record_calls() as calls, LLM(str(folder), device="cpu", dtype="float32") as llm:

        def embed(texts: list[str]) -> set[tuple[str, str]]:
            calls.clear()
            with record_calls() as own:
                llm.embed(texts)
            return calls | own

        yield embed


def find_functions(text: str) -> set[tuple[str, str]]:
    return {name for name in re.findall(r"`([\w.]+)` \(`([\w/]+\.py)`\)", text) if "." in name[0] or name[0].islower()}


def test_llm_embed_passes_the_functions_of_the_table(
    embed_traced: Callable[[list[str]], set[tuple[str, str]]],
) -> None:
    rows = re.findall(r"^\| (\d\..*) \| (.*) \| (.*) \|$", TEXT, re.MULTILINE)
    expected = set[tuple[str, str]]()
    for step, in_server, offline in rows:
        expected |= find_functions(step) | find_functions(in_server if offline == "the same" else offline)

    assert len(expected) > 10
    assert expected - embed_traced([f"the cat {number} sat" for number in range(50)]) == set()


def test_one_text_on_an_idle_engine_takes_the_shorter_way_that_the_page_names(
    embed_traced: Callable[[list[str]], set[tuple[str, str]]],
) -> None:
    calls = embed_traced(["the cat"])

    assert ("EngineLoop.run_here", "engine/engine_loop.py") in calls
    assert ("Scheduler.next_batch", "engine/scheduler.py") not in calls


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_modules_that_the_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`([\w/]+/\w+\.py)`", page.read_text()))

    assert len(named) > 5
    assert [name for name in sorted(named) if not any((root / name).exists() for root in (PACKAGE, ROOT))] == []
