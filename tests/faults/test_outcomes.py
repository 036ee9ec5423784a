"""How the driver judges replies: right, honest or a violation."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from cenote.api.replies import status_error_reply
from lab.chaos.__main__ import make_parser
from lab.chaos.driver import MAX_ENGINE_FAILURES, Schedule, add_report
from lab.chaos.expectations import FAULTS as HONEST
from lab.chaos.fault_hook import contains_run
from lab.chaos.faults import FAULTS
from lab.chaos.outcomes import FaultWindow, Outcome, check_error_reply, compare_answer, judge
from lab.chaos.processes import Holdings, ProcessSize, find_leaks
from lab.chaos.request_mix import embed, read_ranking
from lab.chaos.results import ChaosResults, format_results
from lab.chaos.scenarios import Figure

OK = Outcome("embed", 10.0, 11.0, expected_status=200, status=200)


def window(fault: str, began_at: float = 9.0, ended_at: float = 12.0) -> FaultWindow:
    return FaultWindow(fault, began_at, ended_at)


@pytest.mark.parametrize(
    ("outcome", "windows", "name"),
    [
        (OK, [], "ok"),
        (replace(OK, status=400, expected_status=400), [], "rejected"),
        (replace(OK, expected_status=400), [], "dishonest"),
        (replace(OK, status=429), [window("overload")], "refused"),
        (replace(OK, status=429), [window("overload", 0, 9.5)], "dishonest"),
        (replace(OK, status=429), [window("kill-engine")], "dishonest"),
        (replace(OK, status=503), [window("kill-engine")], "dishonest"),
        (replace(OK, status=500), [window("poison")], "dishonest"),
        (replace(OK, status=504, deadline_s=1.0), [window("hang-engine")], "expired"),
        (replace(OK, status=504), [window("hang-engine")], "dishonest"),
        (replace(OK, status=504, deadline_s=1.0, finished_at=13.0), [window("hang-engine")], "late"),
        (replace(OK, wrong="it differs"), [], "wrong"),
        (replace(OK, status=None, error="timed out after 60 s"), [window("stop-engine")], "lost"),
        (replace(OK, status=None, was_aborted=True), [], "aborted"),
    ],
)
def test_an_outcome_is_judged_by_the_faults_at_its_time(
    outcome: Outcome, windows: list[FaultWindow], name: str
) -> None:
    verdict = judge(outcome, windows)

    assert verdict.name == name
    assert bool(verdict.problem) == (name in ("wrong", "lost", "dishonest", "late"))


def test_an_idle_connection_may_be_closed_for_a_new_one_when_no_descriptor_is_left() -> None:
    closed = replace(OK, status=None, error="connection closed before the response")

    assert judge(closed, [window("no-descriptors")]).name == "broken"
    assert judge(replace(closed, error="timed out after 5 s"), [window("no-descriptors")]).name == "lost"
    assert judge(closed, [window("full-disk")]).name == "lost"


def test_only_connections_of_a_lost_front_end_may_break() -> None:
    lost = window("lost-front-end")
    lost.broken_ports = {4001}
    broken = replace(OK, status=None, error="connection closed before the response", port=4001)

    assert judge(broken, [lost]).name == "broken"
    assert judge(replace(broken, port=4002), [lost]).name == "lost"
    assert judge(broken, [window("kill-engine")]).name == "lost"

    lost.ended_at = lost.began_at  # the others answer at once
    just_after = replace(broken, sent_at=lost.began_at + 0.1, finished_at=lost.began_at + 0.2)
    much_later = replace(broken, sent_at=lost.began_at + 5.0, finished_at=lost.began_at + 5.1)
    assert judge(just_after, [lost]).name == "broken"
    assert judge(much_later, [lost]).name == "lost"


def embedding(*values: float) -> bytes:
    return json.dumps({"data": [{"index": 0, "embedding": values}]}).encode()


def test_an_answer_that_differs_from_a_quiet_server_is_wrong() -> None:
    request, expected = embed("embed", "a"), np.array([[0.5, 0.25]], dtype=np.float32)

    assert compare_answer(request, embedding(0.5, 0.25), expected, 0.0) == ""
    assert compare_answer(request, embedding(0.5, 0.250001), expected, 1e-5) == ""
    assert "differs" in compare_answer(request, embedding(0.5, 0.250001), expected, 0.0)
    assert "differs" in compare_answer(request, embedding(0.5, 0.26), expected, 1e-5)
    assert "shape" in compare_answer(request, embedding(0.5), expected, 1e-5)
    assert "decode" in compare_answer(request, b"{", expected, 1e-5)


def test_a_ranking_is_compared_by_document() -> None:
    results = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]

    assert read_ranking(json.dumps({"results": results}).encode()).tolist() == pytest.approx([0.1, 0.9])


def test_an_error_must_have_the_documented_body_and_say_when_to_retry() -> None:
    reply = status_error_reply(429, "overloaded")
    headers = dict(reply.headers)
    body = bytes(reply.content)

    assert check_error_reply(429, headers, body, None) == ""
    assert "without retry-after" in check_error_reply(429, {}, body, None)
    assert "without the body" in check_error_reply(429, headers, b"Too Many Requests", None)
    assert "instead of 'input_crashed_engine'" in check_error_reply(500, {}, body, "input_crashed_engine")


def test_files_and_memory_that_a_server_keeps_are_leaks() -> None:
    before = Holdings(num_processes=2, memory_mib=400, num_files=40, num_shared_memory_files=1)

    assert find_leaks(before, before) == []
    assert find_leaks(before, replace(before, memory_mib=300)) == []
    for leak in (
        replace(before, memory_mib=500),
        replace(before, num_files=60),
        replace(before, num_shared_memory_files=2),
        replace(before, num_processes=3),
    ):
        assert len(find_leaks(before, leak)) == 1


def test_the_process_that_forks_engines_counts_only_with_what_they_share() -> None:
    engine = ProcessSize("engine_process", memory_mib=300, num_files=30, num_shared_memory_files=1)
    launcher = ProcessSize("engine_launcher", memory_mib=100, num_files=0, num_shared_memory_files=0)

    assert Holdings.of({1: engine, 2: launcher}) == Holdings(1, 400, 30, 1, "engine_process 300, engine_launcher 100")


def test_what_attackers_saw_is_part_of_the_results() -> None:
    results = ChaosResults(seed=0, tolerance=0.0)

    add_report(results, '{"attacks": {"half_close": 3}, "answers": {"400": 2}, "problems": ["/rerank: status 500"]}\n')
    add_report(results, "Traceback (most recent call last)")

    text = format_results(results)
    assert json.loads(json.dumps(results.to_json()))["attacks"] == {"half_close": 3}
    assert "half_close: 3" in text and "got these answers: 400: 2" in text
    assert "VIOLATION: an attack was answered with a failure: /rerank: status 500" in text
    assert "VIOLATION: an attacker has failed: Traceback" in text


def test_every_fault_has_a_row_in_the_table_of_honest_outcomes() -> None:
    assert FAULTS.keys() <= HONEST.keys()
    assert all(fault.__doc__ for fault in FAULTS.values())


def test_a_schedule_repeats_for_the_same_seed_and_spares_the_crash_limit() -> None:
    def names(seed: int) -> list[str | None]:
        schedule, faults = Schedule(list(FAULTS.values()), random.Random(seed)), []
        for _ in range(12):
            fault = schedule.next_fault()
            faults.append(fault)
            if fault is not None:
                schedule.record_failures(fault)
        assert sum(fault.num_engine_failures for fault in faults if fault is not None) <= MAX_ENGINE_FAILURES
        return [None if fault is None else fault.name for fault in faults]

    assert names(1) == names(1)
    assert names(1) != names(2)


def test_the_poison_is_found_only_as_a_run() -> None:
    assert contains_run([1, 2, 9, 8, 9, 3], [9, 8, 9])
    assert contains_run([9, 9, 8, 9], [9, 8, 9])
    assert not contains_run([9, 8, 8, 9], [9, 8, 9])
    assert not contains_run([], [9, 8, 9])


def test_a_report_counts_requests_and_names_violations() -> None:
    results = ChaosResults(seed=7, tolerance=1e-5)
    wrong = [replace(OK, wrong="it differs by 0.1")] * 4
    results.add_round([OK, *wrong, replace(OK, status=429)], [window("overload")])

    assert results.verdicts == {"ok": 1, "wrong": 4, "refused": 1}
    assert results.violations == [
        *["wrong during overload: embed: it differs by 0.1"] * 2,
        "wrong during overload: 2 more",
    ]
    assert "VIOLATION: wrong during overload" in format_results(results)
    assert results.to_json()["requests"] == 6


def test_an_unknown_fault_is_refused_with_the_names_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--faults", "kill-engine,earthquake"])

    message = capsys.readouterr().err
    assert "unknown fault 'earthquake'" in message
    assert all(name in message for name in FAULTS)


def test_a_figure_that_could_not_be_measured_misses_its_target() -> None:
    assert Figure("p99", 10.0, at_most=20.0).is_met
    assert not Figure("p99", 30.0, at_most=20.0).is_met
    assert not Figure("p99", math.nan, at_most=20.0).is_met
    assert not Figure("share", math.nan, at_least=0.5).is_met
    assert Figure("count", math.nan).is_met
