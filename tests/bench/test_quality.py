"""Quality metrics and the data sets they are computed on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cenote.bench.main import main
from cenote.bench.quality import ndcg, read_pairs, read_retrieval, rerank, spearman
from cenote.errors import BadRequest


def save_dataset(folder: Path) -> None:
    entries = [{"_id": "d1", "title": "Rivers", "text": "They flow."}, {"_id": "d2", "text": "A cat."}]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    queries = [
        {"_id": "q1", "text": "water"},
        {"_id": "q2", "text": "without a judgement"},
        {"_id": "q3", "text": "pet"},
    ]
    (folder / "queries.test.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in queries))
    (folder / "qrels.test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq3\td2\t1\n")


def test_ndcg_is_one_for_a_perfect_ranking_and_less_for_a_late_hit() -> None:
    assert ndcg(["a", "b", "c"], {"a": 1.0}) == 1.0
    assert ndcg(["b", "a"], {"a": 1.0}) == pytest.approx(1 / np.log2(3))
    assert ndcg(["b", "c"], {"a": 1.0}) == 0.0
    assert ndcg(["a", "b"], {"a": 1.0, "b": 2.0}) == pytest.approx((1 + 2 / np.log2(3)) / (2 + 1 / np.log2(3)))


def test_spearman_compares_ranks_and_ties_get_the_mean_rank() -> None:
    assert spearman(np.array([1, 2, 3, 4]), np.array([1, 10, 100, 1000])) == pytest.approx(1.0)
    assert spearman(np.array([1, 2, 3]), np.array([3, 2, 1])) == pytest.approx(-1.0)
    assert spearman(np.array([1, 2, 2, 3]), np.array([1, 2, 3, 4])) == pytest.approx(0.9486832980505138)


def test_only_queries_with_a_judgement_are_read_and_titles_come_first(tmp_path: Path) -> None:
    save_dataset(tmp_path)

    data = read_retrieval(tmp_path)

    assert data.queries == {"q1": "water", "q3": "pet"}
    assert data.documents == {"d1": "Rivers They flow.", "d2": "A cat."}
    assert read_retrieval(tmp_path, max_queries=1).queries == {"q1": "water"}


def test_a_folder_with_missing_files_is_refused_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"has no qrels.test.tsv or qrels/test.tsv, plain or with .gz"):
        read_retrieval(tmp_path)


def test_pairs_are_read_by_their_columns(tmp_path: Path) -> None:
    rows = 'split\tscore\tsentence1\tsentence2\ntest\t4.5\ta "quoted" text\tb\ndev\t1\tc\td\n'
    (tmp_path / "pairs.tsv").write_text(rows)

    assert read_pairs(tmp_path / "pairs.tsv") == (['a "quoted" text'], ["b"], [4.5])


def test_a_reranker_reorders_the_top_documents_only(tmp_path: Path) -> None:
    save_dataset(tmp_path)
    data = read_retrieval(tmp_path)

    reranked = rerank(
        data, {"q1": ["d2", "d1"]}, lambda query, texts: np.array([len(t) for t in texts], dtype=np.float32)
    )

    assert reranked == {"q1": ["d1", "d2"]}


def test_without_a_data_set_the_command_lists_the_options_and_formats(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["quality"])

    assert end.value.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "no data set given, and none is bundled" in error
    for name in ("--retrieval FOLDER", "corpus.jsonl", "qrels.test.tsv", "--pairs FILE.tsv", "sentence1"):
        assert name in error


def test_data_sets_without_usable_rows_are_refused(tmp_path: Path) -> None:
    save_dataset(tmp_path)
    (tmp_path / "qrels.test.tsv").write_text("query-id\tcorpus-id\tscore\nq9\td1\t2\n")
    (tmp_path / "pairs.tsv").write_text("split\tscore\tsentence1\tsentence2\ndev\t1\tc\td\n")
    (tmp_path / "commas.tsv").write_text("sentence1,sentence2,score\na,b,1\n")

    with pytest.raises(BadRequest, match="none of the 3 queries has a relevance judgement for split 'test'"):
        read_retrieval(tmp_path)
    with pytest.raises(BadRequest, match="has no rows of split 'test'"):
        read_pairs(tmp_path / "pairs.tsv")
    with pytest.raises(
        BadRequest, match="has no column sentence1, sentence2, score; .* are: sentence1,sentence2,score"
    ):
        read_pairs(tmp_path / "commas.tsv")
