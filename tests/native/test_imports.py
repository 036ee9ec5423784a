"""The native runtime imports no torch, and without torch a model that needs it is refused by reason and command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cenote.utils.install_commands import TORCH_COMMAND_VARIABLE, install_command
from tests.tiny import save_tiny, tiny_bert, tiny_bert_classifier, tiny_cross_encoder

IS_IMPORTED = "print(json.dumps('torch' in sys.modules))"
USE = """
import json, sys
from cenote import LLM
with LLM(*sys.argv[2:3], device="cpu") as llm:  # where there is a GPU driver, torch is asked for a GPU
    for method, *arguments in json.loads(sys.argv[1]):
        print(json.dumps(len(getattr(llm, method)(*arguments[:-1], **arguments[-1]))))
"""
BLOCK = 'import sys\nsys.modules["torch"] = None\n'  # as where it is not installed
TEXTS = ["the fox", "a dog"]


def run(code: str, *arguments: str, **environment: str) -> list[Any]:
    command = [sys.executable, "-c", code, *arguments]
    variables = {"HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=inherited() | variables)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def inherited() -> dict[str, str]:
    """Return the environment variables of the tests, which `make` may have started."""
    return {key: value for key, value in os.environ.items() if key != TORCH_COMMAND_VARIABLE}


def test_embeddings_and_token_embeddings_import_no_torch(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    calls = [["embed", TEXTS, {}], ["score", TEXTS[0], TEXTS, {}], ["encode", TEXTS, {"pooling_task": "token_embed"}]]

    assert run(USE + IS_IMPORTED, json.dumps(calls), str(tmp_path)) == [2, 2, 2, False]


def test_the_default_model_imports_no_torch() -> None:
    assert run(USE + IS_IMPORTED, json.dumps([["embed", TEXTS, {}]])) == [2, False]


def test_classes_import_no_torch(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)

    assert run(USE + IS_IMPORTED, json.dumps([["classify", TEXTS, {}]]), str(tmp_path)) == [2, False]


def test_scores_of_a_cross_encoder_import_no_torch(tmp_path: Path) -> None:
    tiny_cross_encoder(tmp_path)

    assert run(USE + IS_IMPORTED, json.dumps([["score", TEXTS[0], TEXTS, {}]]), str(tmp_path)) == [2, False]


def test_the_same_calls_have_results_where_torch_is_not_installed(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    calls = [["embed", TEXTS, {}], ["score", TEXTS[0], TEXTS, {}], ["encode", TEXTS, {"pooling_task": "token_embed"}]]

    assert run(BLOCK + USE, json.dumps(calls), str(tmp_path)) == [2, 2, 2]


REFUSED = """
import json
from cenote import LLM
from cenote.errors import LoadError
try:
    LLM(**json.loads(sys.argv[1]))
except LoadError as error:
    print(json.dumps(error.message))
"""


@pytest.fixture(scope="module")
def deberta(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("deberta")
    save_tiny(folder, "DebertaV2ForSequenceClassification", num_labels=1)
    return str(folder)


def test_a_model_that_needs_torch_is_refused_with_the_reason_and_the_command(deberta: str) -> None:
    (message,) = run(BLOCK + REFUSED, json.dumps({"model": deberta}))

    reason = "this model needs the torch runtime (disentangled attention), but torch is not installed; install it: "
    assert message == reason + install_command("torch")


def test_a_server_that_make_has_started_names_its_target(deberta: str) -> None:
    variables = {TORCH_COMMAND_VARIABLE: "make serve TORCH=1"}

    (message,) = run(BLOCK + REFUSED, json.dumps({"model": deberta}), **variables)

    assert message.endswith("but torch is not installed; install it: make serve TORCH=1")
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert re.search(r'TORCH_COMMAND="make serve TORCH=1" \$\(BIN\)/cenote serve', makefile)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"runtime": "torch"}, "runtime=torch, but torch is not installed; install it: "),
        ({"device": "cuda"}, "device='cuda': a GPU needs torch, which is not installed; install it: "),
    ],
)
def test_options_that_need_torch_name_the_command(options: dict[str, str], reason: str) -> None:
    (message,) = run(BLOCK + REFUSED, json.dumps(options))

    assert message == reason + install_command("torch")
