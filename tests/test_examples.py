"""The examples on texts run offline, on small models, and print what their description says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from cenote import LLM
from tests.serving.server_process import ServerProcess
from tests.tiny import tiny_bert_classifier, tiny_bert_token_classifier, tiny_splade

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = [
    *("semantic_search", "rag_with_reranking", "clustering", "deduplication", "ner", "moderation", "hybrid_search"),
    *("langchain_search", "llama_index_search", "openai_client"),
]
Run = Callable[..., list[str]]


@pytest.fixture(scope="module", autouse=True)
def examples() -> Iterator[None]:
    """Put the folder of the examples first on sys.path, as Python does for a script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield
    for name in (*SCRIPTS, "passages"):
        sys.modules.pop(name, None)


@pytest.fixture
def run_example(llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run an example and return the lines that it prints; the default model is loaded once for all."""

    def load(model: str | None) -> AbstractContextManager[LLM]:
        return nullcontext(llm) if model is None else LLM(model, device="cpu")

    def run(name: str, *arguments: object) -> list[str]:
        example = import_module(name)
        if hasattr(example, "LLM"):
            monkeypatch.setattr(example, "LLM", load)
        example.main([str(argument) for argument in arguments])
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The base URL of a server with the default model."""
    process = ServerProcess("--device", "cpu", "--served-model-name", "all-MiniLM-L6-v2")
    try:
        yield f"{process.wait_until_ready().address}/v1"
    finally:
        process.stop()


def test_the_nearest_passage_is_found(run_example: Run) -> None:
    question, best, *others = run_example("semantic_search", "--top", 4)

    assert question == "How does a sinkhole with water in it form?"
    assert "A cenote is a natural pit" in best
    assert [float(line[:6]) for line in [best, *others]] == sorted(
        (float(x[:6]) for x in [best, *others]), reverse=True
    )


def test_the_prompt_has_the_passages_that_the_reranker_selects(run_example: Run, tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path, num_labels=1, max_position_embeddings=256)

    alone = run_example("rag_with_reranking")
    reranked = run_example("rag_with_reranking", "--reranker", tmp_path, "--candidates", 4, "--top", 3)

    assert alone[2].startswith("[1] ") and "Sourdough" in alone[2]
    assert alone[-2:] == ["Question: Which bread needs no yeast from a shop?", "Answer:"]
    assert [line[:4] for line in reranked[2:5]] == ["[1] ", "[2] ", "[3] "]


def test_clusters_are_the_subjects_of_the_passages(run_example: Run) -> None:
    lines = run_example("clustering")

    clusters = "\n".join(lines).split("cluster ")[1:]
    found = {frozenset(line.strip() for line in cluster.splitlines()[1:]) for cluster in clusters}
    assert found == set(map(frozenset, import_module("passages").PASSAGES.values()))


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_clusters_are_drawn(run_example: Run, tmp_path: Path) -> None:
    run_example("clustering", "--plot", tmp_path / "clusters.png")

    assert (tmp_path / "clusters.png").stat().st_size > 1000


def test_texts_in_other_words_are_dropped(run_example: Run, tmp_path: Path) -> None:
    built_in = [line[:4] for line in run_example("deduplication")]
    (tmp_path / "lines.txt").write_text("a deep cave\nthe price of bread\na deep cave\n")
    lines = run_example("deduplication", tmp_path / "lines.txt")

    assert built_in == ["keep", "keep", "drop", "drop", "keep", "drop"]
    assert lines[2] == "drop  a deep cave  (1.00: a deep cave)"


def test_entities_are_marked(run_example: Run, tmp_path: Path) -> None:
    tiny_bert_token_classifier(tmp_path, id2label={0: "X", 1: "B-PER", 2: "I-PER"}, label2id={"X": 0})

    marked, first, *_ = run_example("ner", "--model", tmp_path, "the old city")

    label, _, text = first.split(maxsplit=2)
    assert f"[{text}]({label})" in marked


def test_messages_are_refused_by_the_score_of_a_label(run_example: Run, tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path, id2label={0: "fine", 1: "toxic", 2: "spam"}, label2id={"fine": 0})
    words = ["--model", tmp_path, "--label", "toxic"]

    all_refused = run_example("moderation", *words, "--threshold", 0)
    none_refused = run_example("moderation", *words, "--threshold", 1.1)

    assert [line[:7] for line in all_refused] == ["refuse "] * 3
    assert [line[:7] for line in none_refused] == ["publish"] * 3
    assert [line.split()[2] for line in all_refused] == ["toxic"] * 3


def test_words_and_meaning_are_searched_together(run_example: Run, tmp_path: Path) -> None:
    tiny_splade(tmp_path)

    head, best, *_ = run_example("hybrid_search")
    sparse = run_example("hybrid_search", "--sparse-model", tmp_path)

    assert head.split() == ["fused", "dense", "words"]
    assert best.endswith("The first high-speed railway line opened in Japan in 1964.")
    assert len(sparse) == 4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai_client", "a hole in the ground"),
        ("langchain_search", "caves   Bats find their way"),
        ("llama_index_search", "trains  A railway signal"),
    ],
)
def test_clients_of_a_server_find_the_nearest_text(
    name: str, expected: str, server: str, run_example: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    lines = run_example(name, "--url", server)

    nearest = lines[2] if name == "openai_client" else lines[1]  # the first text is compared with itself
    assert expected in nearest


def test_the_notebook_is_valid_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((EXAMPLES / "search.ipynb").read_text())

    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        assert set(cell) >= {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)

    assert "high-speed railway" in capsys.readouterr().out.splitlines()[0]
    assert names["best"] == "The first high-speed railway line opened in Japan in 1964."


def test_every_script_is_short_listed_and_has_a_help_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (EXAMPLES / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    for name in SCRIPTS:
        assert f"[{name}.py]({name}.py)" in readme
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 80
        with pytest.raises(SystemExit) as caught:
            import_module(name).main(["--help"])
        assert caught.value.code == 0
        assert f"examples/{name}.py" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
