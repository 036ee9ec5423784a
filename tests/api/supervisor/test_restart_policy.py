"""When another engine process is started, and which exits count as failures of the engine itself."""

from __future__ import annotations

import pytest

from cenote.api.supervisor import restart_policy
from cenote.api.supervisor.restart_policy import MAX_FAILURES, MAX_RESTART_DELAY_S, ChildExit, RestartPolicy
from cenote.api.wire.device_table import OnDevice

SHARED = ChildExit(on_device=OnDevice([(1, 0), (2, 0)], False, 10))
ALONE = ChildExit(on_device=OnDevice([(1, 0)], True, 0))
BROKEN = ChildExit(on_device=OnDevice([(1, 0)], False, 0))  # its first batch
BEFORE_LOADED = ChildExit(is_ready=False)
SURROUNDINGS = ChildExit(is_ready=False, is_external=True)


def after(*exits: ChildExit) -> RestartPolicy:
    policy = RestartPolicy()
    for exit_ in exits:
        policy.on_exit(exit_)
    return policy


def test_crashes_without_a_culprit_are_failures_of_the_engine() -> None:
    assert not after(*[SHARED] * (MAX_FAILURES - 1)).is_crash_loop
    assert after(*[SHARED] * MAX_FAILURES).is_crash_loop


def test_both_crashes_of_an_input_that_is_to_blame_are_its_own() -> None:
    poison = [SHARED, ALONE]

    assert not after(*poison * 10).is_crash_loop
    assert after(*poison * 10, *[SHARED] * MAX_FAILURES).is_crash_loop


def test_an_engine_that_finishes_no_batch_fails_by_itself_whatever_the_inputs() -> None:
    assert after(*[BROKEN, ALONE] * 3).is_crash_loop


def test_what_the_surroundings_do_never_counts() -> None:
    assert not after(*[SURROUNDINGS] * 50).is_crash_loop
    assert not after(*[SURROUNDINGS, ChildExit(is_external=True)] * 50).is_crash_loop


def test_failures_count_in_any_time_until_one_has_loaded_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart_policy, "FAILURE_WINDOW_S", 0.0)  # each start takes longer

    assert not after(*[SHARED] * 50).is_crash_loop
    assert not after(SHARED, *[BEFORE_LOADED] * 50).is_crash_loop
    assert not after(*[BEFORE_LOADED] * (MAX_FAILURES - 1)).is_crash_loop
    never_ready = after(*[BEFORE_LOADED] * MAX_FAILURES)
    assert never_ready.is_crash_loop
    assert never_ready.describe_crash_loop() == "5 engine processes failed and none was ever ready"


def test_an_engine_that_served_is_replaced_at_once_and_one_that_does_not_start_waits_longer_each_time() -> None:
    assert after(SHARED).delay_s == 0
    assert [after(*[SURROUNDINGS] * count).delay_s for count in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert after(*[SURROUNDINGS] * 50).delay_s == MAX_RESTART_DELAY_S
    assert after(*[SURROUNDINGS] * 50, SHARED).delay_s == 0


def test_an_engine_that_fails_again_and_again_waits_although_it_loads() -> None:
    assert after(*[SHARED] * MAX_FAILURES).delay_s == 0.5
    assert after(*[SHARED] * (MAX_FAILURES + 2)).delay_s == 2.0
