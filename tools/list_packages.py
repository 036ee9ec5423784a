"""Write the packages, with their docstrings, into docs/architecture.md: `python tools/list_packages.py`.

With a package, `python tools/list_packages.py api/wire`, the modules of that package are printed.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cenote"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- written by tools/list_packages.py -->\n"
END = "<!-- end of what it writes -->\n"
VLLM_NAMES = "`vllm."  # in the docstring of a module that has names of vLLM


def read_summary(module: Path) -> str:
    """Return the first paragraph of the docstring of a module or package, in one line; "" if it has none."""
    source = module / "__init__.py" if module.is_dir() else module
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def list_modules(package: Path) -> Iterator[Path]:
    """Yield the modules and packages of a package, in alphabetical order."""
    for path in sorted(package.iterdir()):
        if path.suffix == ".py" and path.stem != "__init__" or (path / "__init__.py").exists():
            yield path


def read_import_order() -> list[str]:
    """Return the top-level modules, importers first, from the contract that `make check` enforces."""
    contract, *_ = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [name.strip() for layer in contract["layers"] for name in layer.split("|")]


def list_rows() -> Iterator[tuple[str, str]]:
    """Yield names and summaries: of the top-level modules, and of the packages inside of them."""
    vllm_names = []
    for name in read_import_order():
        top = PACKAGE / name if (PACKAGE / name).is_dir() else PACKAGE / f"{name}.py"
        if name == "__main__":
            continue
        if VLLM_NAMES in read_summary(top):
            vllm_names.append(f"`{name}`")
            continue
        yield (f"`{name}/`" if top.is_dir() else f"`{name}.py`"), read_summary(top)
        for path in list_modules(top) if top.is_dir() else ():
            if path.is_dir() and VLLM_NAMES not in read_summary(path):
                yield f"`{name}/{path.name}/`", read_summary(path)
    yield ", ".join(vllm_names), "Names of vLLM's modules, for programs written for vLLM."


def make_table() -> str:
    rows = "".join(f"| {name} | {summary} |\n" for name, summary in list_rows())
    return f"| package | holds |\n|---|---|\n{rows}"


def replace_table(page: str) -> str:
    """Return the page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{make_table()}{END}{rest.partition(END)[2]}"


def main() -> None:
    for name in sys.argv[1:]:
        for path in list_modules(PACKAGE / name):
            print(f"{path.relative_to(PACKAGE)}: {read_summary(path)}")
    if not sys.argv[1:]:
        PAGE.write_text(replace_table(PAGE.read_text()))


if __name__ == "__main__":
    main()
