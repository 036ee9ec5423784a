"""`cenote models`: every architecture with its tasks and some models, for the terminal or as docs/models.md."""

from __future__ import annotations

from collections.abc import Sequence

from cenote.loading.describe import TASKS
from cenote.models.guide import Row, rows

PAGE = """\
# Models

Every architecture that Cenote knows by the name in a model's `config.json`. `cenote models --markdown` writes this page.
An architecture that is not here still runs, slower, where the Transformers library knows it.

The files of a model decide before its name: with Sentence Transformers' files any of them embeds, with ColBERT's it gives a vector for
every token, with SPLADE's a sparse one. A language model (`ForCausalLM` and the like) embeds, and classifies by answer tokens where its
files or the flags say so. How it then scores pairs is in [offline.md](offline.md).

The last column says what the tests compare its numbers with: always float32, tiny random weights in the checkpoint's own layout, within
1e-4. What it says of vLLM was measured once, on its CPU build: the largest difference of any number of any answer.

| architecture | models | tasks | compared with |
|---|---|---|---|
"""


def models(word: str, *, markdown: bool) -> int:
    shown = [row for row in rows() if word.lower() in f"{row.name} {row.models}".lower()]
    print(page(shown) if markdown else table(shown), end="")
    return 0 if shown else 1


def page(shown: Sequence[Row]) -> str:
    return PAGE + "".join(
        f"| `{row.name}` | {row.models} | {', '.join(_tasks(row))} | {row.compared} |\n" for row in shown
    )


def table(shown: Sequence[Row]) -> str:
    cells = [(row.name, ", ".join(_tasks(row)), row.models) for row in shown]
    widths = [max((len(row[column]) for row in cells), default=0) for column in (0, 1)]
    return "".join(f"{name:<{widths[0]}}  {tasks:<{widths[1]}}  {known}".rstrip() + "\n" for name, tasks, known in cells)


def _tasks(row: Row) -> tuple[str, ...]:
    return TASKS["embed" if row.form == "causal" else row.form]  # converted, unless its files say otherwise
