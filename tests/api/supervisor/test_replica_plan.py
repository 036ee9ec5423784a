"""Each replica has its own GPU, or its own cores."""

from __future__ import annotations

import pytest

from cenote.api.supervisor.replica_plan import plan_replicas
from cenote.config.engine import EngineConfig
from cenote.errors import BadRequest

TWO_NODES = [[(0, 4), (1, 5)], [(2, 6), (3, 7)]]  # two cores each, with two hardware threads


def make_config(**options: object) -> EngineConfig:
    return EngineConfig.from_kwargs("m", **options)


def test_one_replica_is_not_bound_to_cores() -> None:
    (plan,) = plan_replicas(make_config(), TWO_NODES, 0)

    assert plan.config == make_config() and plan.cpus == () and plan.num_threads == 0


def test_replicas_on_a_cpu_have_disjoint_cores_and_a_thread_for_each() -> None:
    plans = plan_replicas(make_config(data_parallel_size=2, dtype="float32"), TWO_NODES, 0)

    assert [(plan.cpus, plan.num_threads) for plan in plans] == [((0, 1, 4, 5), 2), ((2, 3, 6, 7), 2)]
    assert [plan.config for plan in plans] == [make_config(device="cpu", dtype="float32")] * 2


def test_more_replicas_than_cores_are_refused() -> None:
    with pytest.raises(BadRequest, match="data_parallel_size=5 needs 5 CPU cores, this process may use 4"):
        plan_replicas(make_config(data_parallel_size=5), TWO_NODES, 0)


def test_replicas_get_the_first_gpus() -> None:
    plans = plan_replicas(make_config(data_parallel_size=2), TWO_NODES, 4)

    assert [(plan.config.device, plan.config.num_replicas, plan.cpus) for plan in plans] == [
        ("cuda:0", 1, ()),
        ("cuda:1", 1, ()),
    ]


def test_more_replicas_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    message = r"need 2 GPUs, 1 are visible \(CUDA_VISIBLE_DEVICES=3\); use at most 1, or --device cpu"
    with pytest.raises(BadRequest, match=message):
        plan_replicas(make_config(data_parallel_size=2), TWO_NODES, 1)
    assert plan_replicas(make_config(data_parallel_size=2, device="cpu"), TWO_NODES, 1)[0].config.device == "cpu"


def test_there_is_a_replica_for_each_of_the_devices() -> None:
    plans = plan_replicas(make_config(devices=["cuda:2,cuda:0"]), TWO_NODES, 3)

    assert [plan.config.device for plan in plans] == ["cuda:2", "cuda:0"]
    assert [plan.config.devices for plan in plans] == [(), ()]


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadRequest, match="cuda:2 does not exist; valid are cuda:0 to cuda:1"):
        plan_replicas(make_config(devices="cuda:0,cuda:2"), TWO_NODES, 2)
    with pytest.raises(BadRequest, match="cuda:1 does not exist; no GPU is visible"):
        plan_replicas(make_config(devices="cuda:0,cuda:1"), TWO_NODES, 0)


def test_a_single_device_for_several_replicas_is_refused() -> None:
    with pytest.raises(BadRequest, match="device='cuda:1' is one device for 2 processes; use --devices"):
        plan_replicas(make_config(data_parallel_size=2, device="cuda:1"), TWO_NODES, 4)


def test_each_replica_gets_a_device_for_each_of_its_ranks() -> None:
    config = make_config(devices="cuda:0,cuda:1,cuda:2,cuda:3", tensor_parallel_size=2)
    plans = plan_replicas(config, TWO_NODES, 4)
    assert [plan.config.devices for plan in plans] == [("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")]

    plans = plan_replicas(make_config(data_parallel_size=2, tensor_parallel_size=2), TWO_NODES, 4)
    assert [plan.config.devices for plan in plans] == [("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")]
    assert all(plan.config.num_replicas == 1 for plan in plans)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_parallel_size": 0}, "invalid data_parallel_size=0; expected an integer from 1 to 128"),
        (
            {"data_parallel_size": 3, "devices": "cpu,cpu"},
            "devices has 2 names for tensor_parallel_size=1 and .*=3; use 3",
        ),
        ({"devices": "gpu0"}, "invalid device 'gpu0' in devices"),
        (
            {"devices": "cuda:0,cuda:1", "tensor_parallel_size": 2, "data_parallel_size": 2},
            "devices has 2 names .* use 4",
        ),
        ({"devices": "cpu,cpu", "device": "cuda"}, "device='cuda' is not the first of devices"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        make_config(**options)


@pytest.mark.parametrize(
    ("quota", "options", "expected"),
    [
        (None, {}, [0]),
        (0.5, {"device": "cpu"}, [1]),
        (1000.0, {"device": "cpu"}, [0]),
        (2.0, {"device": "cpu", "data_parallel_size": 2}, [1, 1]),
        (1000.0, {"device": "cpu", "data_parallel_size": 2}, None),
    ],
)
def test_replicas_have_no_more_threads_than_a_quota_of_cpu_time(
    quota: float | None, options: dict[str, object], expected: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_quota = [plan.num_threads for plan in plan_replicas(make_config(**options), TWO_NODES, 0)]
    monkeypatch.setattr("cenote.api.supervisor.replica_plan.find_cpu_quota", lambda: quota)

    plans = plan_replicas(make_config(**options), TWO_NODES, 0)

    assert [plan.num_threads for plan in plans] == (without_quota if expected is None else expected)
