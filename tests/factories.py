"""LLMs of small checkpoints, opened by a fixture of conftest.py: `open_llm` for a module, `shared_llm` for all modules.

llm = open_llm(folder, max_model_len=40)
llm = shared_llm(tiny_bert, pooler_config={"pooling_type": "MEAN"})
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cenote import LLM


class LLMFactory(ExitStack):
    """Open each checkpoint once per set of options, as "tiny" in float32 on the CPU; close them all at the end."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self.tmp_path_factory = tmp_path_factory
        self.folders: dict[Callable[[Path], object], Path] = {}
        self.llms: dict[Hashable, LLM] = {}

    def __call__(self, source: Path | Callable[[Path], object], **options: Any) -> LLM:
        """`source`: the folder of a checkpoint, or a function that writes one into an empty folder."""
        key = source, repr(sorted(options.items()))
        if key not in self.llms:
            folder = source if isinstance(source, Path) else self.write(source)
            options = {"dtype": "float32", "device": "cpu", "served_model_name": "tiny", **options}
            self.llms[key] = self.enter_context(LLM(str(folder), **options))
        return self.llms[key]

    def write(self, save: Callable[[Path], object]) -> Path:
        if save not in self.folders:
            self.folders[save] = self.tmp_path_factory.mktemp("checkpoint")
            save(self.folders[save])
        return self.folders[save]
