"""`cenote models`: every architecture with its tasks and some models, for the terminal or as docs/models.md."""

from __future__ import annotations

from collections.abc import Sequence

from cenote.loading.describe import TASKS_BY_KIND
from cenote.models.supported_models import SupportedModel, iter_supported_models

PAGE_HEADER = """\
# Models

Every architecture that Cenote knows, by the name in a model's `config.json`. An architecture that is not here still
runs, slower, where the Transformers library knows it. `cenote models --markdown` writes this page.

The files of a model are asked before its name: with those of Sentence Transformers any of them embeds, with those of a
ColBERT it gives a vector for every token, with those of SPLADE a sparse one. A language model (`ForCausalLM` and the
like) embeds; where its files or an option name answer tokens it classifies and reranks.

The last column says what its numbers are compared with. The tests do so in float32 with tiny random weights in the
layout of the published checkpoint, and allow 1e-4. Beside vLLM it was run once, on its CPU build: given is the largest
difference of any number of any answer. For LFM2 and DeepSeek that was with its plain rotary code, because its CPU
kernel misreads their tensors.

| architecture | models | tasks | compared with |
|---|---|---|---|
"""


def list_models(filter_text: str, *, markdown: bool) -> int:
    shown = [row for row in iter_supported_models() if filter_text.lower() in f"{row.name} {row.models}".lower()]
    print(format_page(shown) if markdown else format_table(shown), end="")
    return 0 if shown else 1


def format_page(shown: Sequence[SupportedModel]) -> str:
    return PAGE_HEADER + "".join(
        f"| `{row.name}` | {row.models} | {', '.join(_tasks_of_model(row))} | {row.verified_with} |\n" for row in shown
    )


def format_table(shown: Sequence[SupportedModel]) -> str:
    cells = [(row.name, ", ".join(_tasks_of_model(row)), row.models) for row in shown]
    widths = [max((len(row[column]) for row in cells), default=0) for column in (0, 1)]
    return "".join(
        f"{name:<{widths[0]}}  {tasks:<{widths[1]}}  {known}".rstrip() + "\n" for name, tasks, known in cells
    )


def _tasks_of_model(row: SupportedModel) -> tuple[str, ...]:
    return TASKS_BY_KIND["embed" if row.kind == "causal" else row.kind]  # converted, unless its files say otherwise
