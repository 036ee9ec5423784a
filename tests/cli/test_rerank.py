"""`cenote rerank` prints documents, the most relevant first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import CommandResult, FakeEngine

Command = Callable[..., CommandResult]


def test_documents_come_best_first(cenote_command: Command) -> None:
    result = cenote_command("rerank", "a b c", "none", "a b", "a Ü")

    assert result.status == 0
    assert result.out == (
        '{"index":1,"relevance_score":0.2,"document":"a b"}\n'
        '{"index":2,"relevance_score":0.1,"document":"a Ü"}\n'
        '{"index":0,"relevance_score":0.0,"document":"none"}\n'
    )


def test_top_n_shows_only_the_best(cenote_command: Command) -> None:
    assert [row["index"] for row in cenote_command("rerank", "a b", "x", "a b", "a", "--top-n", "2").rows] == [1, 2]


def test_equal_scores_keep_their_order(cenote_command: Command) -> None:
    assert [row["index"] for row in cenote_command("rerank", "a", "x", "y", "z").rows] == [0, 1, 2]


def test_documents_come_from_a_file(cenote_command: Command, tmp_path: Path) -> None:
    (tmp_path / "docs.csv").write_text("id,body\n1,no\n2,a\n")

    result = cenote_command("rerank", "a", "--input", tmp_path / "docs.csv", "--column", "body")

    assert [row["document"] for row in result.rows] == ["a", "no"]


def test_documents_come_through_a_pipe(cenote_command: Command, pipe: Callable[[bytes], None]) -> None:
    pipe(b"no\na\n")

    assert [row["document"] for row in cenote_command("rerank", "a").rows] == ["a", "no"]


def test_an_invalid_document_fails_alone(cenote_command: Command) -> None:
    result = cenote_command("rerank", "a", "too long", "a")

    assert result.status == 1
    assert result.rows[1] == {"index": 0, "error": "input has 900 tokens, fake reads at most 512"}
    assert result.err == "cenote: 1 of 2 documents failed; see their error\n"


def test_a_terminal_gets_a_table(cenote_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    result = cenote_command("rerank", "a", "b", "a", "too long")

    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["rank", "index", "score", "document"]
    assert lines[1] == ["1", "1", "0.1000", "a"]
    assert lines[3][:3] == ["-", "2", "failed"]
    assert cenote_command("rerank", "a", "b", "--format", "jsonl").rows[0]["index"] == 0


def test_the_output_file_is_kept_unless_overwrite_is_given(cenote_command: Command, tmp_path: Path) -> None:
    out = tmp_path / "ranked.jsonl"

    assert cenote_command("rerank", "a", "b", "--output", out).status == 0
    assert cenote_command("rerank", "a", "b", "--output", out).err == f"cenote: {out} exists; --overwrite replaces it\n"
    assert cenote_command("rerank", "a", "b", "c", "--output", out, "--overwrite").status == 0
    assert len(out.read_text().splitlines()) == 2


@pytest.mark.parametrize("argv", [["rerank"], ["rerank", "query"]])
def test_a_query_and_documents_are_needed(
    argv: list[str], cenote_command: Command, pipe: Callable[[bytes], None]
) -> None:
    pipe(b"")

    assert cenote_command(*argv).status == 2


def test_the_index_of_a_document_is_its_line_blank_ones_counted(cenote_command: Command, tmp_path: Path) -> None:
    documents = tmp_path / "documents.jsonl"
    documents.write_text('"bread"\n\n"a deep cave"\n\n"too long"\n')

    result = cenote_command("rerank", "deep cave", "--input", documents)

    assert [(row["index"], row.get("document")) for row in result.rows] == [(2, "a deep cave"), (0, "bread"), (4, None)]


def test_an_interrupted_rerank_reports_that_nothing_was_written(
    cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    def press_ctrl_c(number: int) -> None:
        raise KeyboardInterrupt

    engine.on_call = press_ctrl_c

    result = cenote_command("rerank", "a", "b", "c", "--output", tmp_path / "out.jsonl")

    assert (result.status, result.err) == (
        130,
        f"cenote: interrupted; nothing was written to {tmp_path / 'out.jsonl'}\n",
    )
    assert list(tmp_path.iterdir()) == []
