"""The page on the architecture names packages, modules and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_modules_that_the_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`([\w/]+/\w+\.py)`", page.read_text()))

    assert len(named) > 5
    assert [name for name in sorted(named) if not any((root / name).exists() for root in (PACKAGE, ROOT))] == []
