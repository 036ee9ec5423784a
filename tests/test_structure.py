"""The structure of the package and the laboratory: imports, sizes of files, names of classes."""

from __future__ import annotations

import ast
import graphlib
from collections import defaultdict
from pathlib import Path

import grimp

import cenote

ROOT = Path(cenote.__file__).parent.parent
SOURCES = sorted([*(ROOT / "cenote").rglob("*.py"), *(ROOT / "lab").rglob("*.py")])
MAX_LINES = 400
# modules that a function imports when it is called, and that import the module of the function
IMPORTED_LATE = (
    ("cenote.cli.completion", "cenote.cli.completion_scripts"),
    ("cenote.kernels.gpu.few_rows", "cenote.kernels.gpu.few_rows_linear"),  # Triton
)
# The structures of the C library have the names that they have in C; each worker of a benchmark has an Engine.
OWN_NAMESPACES = ("cenote/kernels/cpu/library.py", "cenote/bench/peers/")


def test_no_modules_import_each_other_not_even_for_types() -> None:
    """`make check` orders packages; this holds inside them, and for what only a type checker imports."""
    graph = grimp.build_graph("cenote", "lab", cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    for module, imported in IMPORTED_LATE:
        imports[module].remove(imported)

    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError


def test_a_class_name_is_used_once() -> None:
    files = defaultdict(list)
    for path in SOURCES:
        name = str(path.relative_to(ROOT))
        if not name.startswith(OWN_NAMESPACES):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    files[node.name].append(name)

    assert {name: found for name, found in files.items() if len(found) > 1} == {}


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}

    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}
