"""The reference vectors are those of Sentence Transformers, and of our engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cenote import LLM
from cenote.doctor.embedding_checks import find_reference
from cenote.doctor.texts import REFERENCE_TEXTS


@pytest.mark.filterwarnings("ignore")
def test_the_vectors_are_those_of_sentence_transformers_and_of_our_engine(minilm: LLM, default_folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    reference = find_reference("all-MiniLM-L6-v2")
    assert reference is not None and len(reference.vectors) == len(REFERENCE_TEXTS) == 8
    expected = SentenceTransformer(str(default_folder), device="cpu").encode(list(REFERENCE_TEXTS))
    outputs = minilm.embed(list(REFERENCE_TEXTS), use_tqdm=False)

    assert np.abs(np.stack(reference.vectors) - expected).max() < 1e-5
    assert np.abs(np.stack(reference.vectors) - [output.outputs.embedding for output in outputs]).max() < 1e-5


@pytest.mark.parametrize(
    "name", ["sentence-transformers/all-MiniLM-L6-v2", "all-minilm:latest", "/models/all-MiniLM-L6-v2/"]
)
def test_a_model_is_known_by_all_its_names(name: str) -> None:
    assert find_reference(name) is not None
    assert find_reference("BAAI/bge-m3") is None
