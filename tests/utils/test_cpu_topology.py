"""Cores are divided among processes by NUMA node and core."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cenote.utils.cpu_topology import divide_cores, parse_cpu_list, read_nodes

# two nodes of four cores with two hardware threads each: CPU n and n + 8 are the same core
TWO_NODES = {"node0": "0-3,8-11", "node1": "4-7,12-15"}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    for name, cpus in TWO_NODES.items():
        (tmp_path / "node" / name).mkdir(parents=True)
        (tmp_path / "node" / name / "cpulist").write_text(f"{cpus}\n")
    for cpu in range(16):
        topology = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    return tmp_path


def test_two_parts_of_two_nodes_are_whole_nodes(machine: Path) -> None:
    shares = divide_cores(read_nodes(range(16), machine), 2)

    assert [share.cpus for share in shares] == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
    assert [share.num_cores for share in shares] == [4, 4]


def test_more_parts_than_nodes_stay_within_a_node_and_keep_hardware_threads_together(machine: Path) -> None:
    shares = divide_cores(read_nodes(range(16), machine), 4)

    assert [share.cpus for share in shares] == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15)]


def test_an_odd_number_of_parts_never_crosses_a_node(machine: Path) -> None:
    shares = divide_cores(read_nodes(range(16), machine), 3)

    assert [share.num_cores for share in shares] == [2, 2, 4]
    assert shares[2].cpus == (4, 5, 6, 7, 12, 13, 14, 15)


def test_one_part_of_two_nodes_is_everything(machine: Path) -> None:
    (share,) = divide_cores(read_nodes(range(16), machine), 1)

    assert share.cpus == tuple(range(16))


def test_only_allowed_cpus_are_used(machine: Path) -> None:
    shares = divide_cores(read_nodes([2, 3, 10, 12], machine), 2)

    assert [share.cpus for share in shares] == [(2, 3, 10), (12,)]
    assert [share.num_cores for share in shares] == [2, 1]


def test_a_machine_without_topology_has_a_core_per_cpu(tmp_path: Path) -> None:
    shares = divide_cores(read_nodes([0, 1, 5], tmp_path), 2)

    assert [share.cpus for share in shares] == [(0, 1), (5,)]


def test_the_cores_of_this_machine_are_those_that_the_process_may_use() -> None:
    nodes = read_nodes()

    assert sorted(cpu for node in nodes for core in node for cpu in core) == sorted(os.sched_getaffinity(0))


def test_lists_of_the_kernel_are_parsed() -> None:
    assert parse_cpu_list("0-2,7,9-10\n") == [0, 1, 2, 7, 9, 10]
    assert parse_cpu_list("\n") == []
