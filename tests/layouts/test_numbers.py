"""Vectors, scores and probabilities of every layout in the table equal those of the named truth."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import transformers

from cenote import LLM
from cenote.errors import LoadError
from tests.layouts.builders import load_builders
from tests.layouts.checkpoint_files import write_checkpoint
from tests.layouts.references import compute_outputs, compute_reference
from tests.layouts.registry import BUILDERS
from tests.layouts.table import PublishedModel, read_table
from tests.layouts.tokenizers import TEXTS, write_tokenizer
from tests.suite import first_of

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-4


def list_layouts(*truths: str) -> list[PublishedModel]:
    """Return models of a truth, one of those that have the same folder at tiny size."""
    layouts: dict[str, PublishedModel] = {}
    for model in read_table():
        if model.truth in truths:
            layouts.setdefault(json.dumps([model.builder, model.truth, _without_sizes(model)], sort_keys=True), model)
    return list(layouts.values())


def get_family(model: PublishedModel) -> object:
    """Return what `make test` runs one layout of: the builder or architecture, and what it is used as."""
    architectures = model.layout.get("config", {}).get("architectures")
    return model.builder or str(architectures), model.truth, model.expect.get("kind")


def _without_sizes(model: PublishedModel) -> object:
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "d_model", "d_ff", "dim")
    more = ("num_layers", "num_heads", "d_kv", "hidden_dim", "n_layers", "n_heads", "vocab_size", "embedding_size")
    decoder = (
        "num_key_value_heads",
        "head_dim",
        "num_decoder_layers",
        "max_window_layers",
        "layer_types",
        "pooler_hidden_size",
    )
    config = {key: value for key, value in model.layout.get("config", {}).items() if key not in sizes + more + decoder}
    modules = [re.sub(r"Dense \d+", "Dense", word) for word in model.layout.get("modules", [])]
    return [{**model.layout, "config": config, "modules": modules}, model.expect.get("kind")]


def build(model: PublishedModel, folder: Path) -> None:
    load_builders()
    if model.builder is not None:
        BUILDERS[model.builder](folder)
    else:
        write_checkpoint(folder, model.layout, tiny=True)


@pytest.mark.parametrize(
    "model", first_of(list_layouts("sentence-transformers", "transformers"), get_family), ids=lambda model: model.name
)
def test_outputs_equal_the_named_library(model: PublishedModel, tmp_path: Path) -> None:
    build(model, tmp_path)
    prompts = list(model.expect.get("prompts", {}))[:3]

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        kind = llm.engine.model.description.kind.value
        ids = [llm.engine.tokenizer.raw.encode(text).ids for text in TEXTS]
        outputs = compute_outputs(llm, model.truth, kind, prompts)

    if (kind_name := model.layout.get("reference_tokenizer")) is not None:
        write_tokenizer(tmp_path, kind_name, {})  # Transformers 5 reads less of tokenizer_config.json than 4 did
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ids == [tokenizer(text)["input_ids"] for text in TEXTS]
    expected = compute_reference(tmp_path, model.truth, kind, prompts)
    assert outputs.keys() == expected.keys()
    for name, vectors in expected.items():
        for ours, theirs in zip(outputs[name], vectors, strict=True):
            torch.testing.assert_close(ours.reshape(theirs.shape), theirs, atol=TOLERANCE, rtol=TOLERANCE, msg=name)


@pytest.mark.parametrize("model", list_layouts("refused"), ids=lambda model: model.name)
def test_a_layout_that_is_not_supported_is_refused_in_one_line(model: PublishedModel, tmp_path: Path) -> None:
    build(model, tmp_path)

    with pytest.raises(LoadError, match=model.message) as refusal:
        LLM(str(tmp_path), dtype="float32", device="cpu").close()

    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("model", list_layouts("plain"), ids=lambda model: model.name)
def test_the_test_with_a_plain_implementation_exists(model: PublishedModel) -> None:
    file, _, name = (model.test or "").partition("::")

    assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
