"""Request ids of `LLM`: consecutive, unique across threads, and combined for scores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from cenote.utils.request_ids import RequestIdCounter


def test_ids_are_consecutive() -> None:
    ids = RequestIdCounter()

    assert [ids.next_id(), ids.reserve(3), ids.next_id()] == ["0", 1, "4"]


def test_threads_never_get_the_same_id() -> None:
    ids = RequestIdCounter()

    with ThreadPoolExecutor(8) as threads:
        first = list(threads.map(lambda _: ids.reserve(2), range(500)))

    assert sorted(first) == list(range(0, 1000, 2))


def test_scores_of_separately_encoded_texts_have_the_ids_of_both() -> None:
    ids = RequestIdCounter()

    assert ids.score_ids(1, 2, is_joint=False, is_single_prompt=False) == ["0_1", "0_2"]
    assert ids.score_ids(2, 2, is_joint=False, is_single_prompt=False) == ["3_5", "4_6"]


def test_scores_of_pairs_and_of_one_listwise_prompt_have_one_id_per_sequence() -> None:
    ids = RequestIdCounter()

    assert ids.score_ids(1, 3, is_joint=True, is_single_prompt=False) == ["0", "1", "2"]
    assert ids.score_ids(1, 3, is_joint=True, is_single_prompt=True) == ["3", "3", "3"]
