"""A cluster of two nodes of one core each, on this machine; without Ray only the tests that need no cluster run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HAS_RAY = find_spec("ray") is not None
NEEDS_CLUSTER = [
    *("test_dataset.py", "test_run_files.py", "test_commands.py", "test_serve.py", "test_faults.py"),
    "test_corpus_example.py",
]
collect_ignore = [] if HAS_RAY else NEEDS_CLUSTER
IS_FULL = os.environ.get("RAY_TESTS") == "full"
STORE_BYTES = 200 * 1024**2
# a killed node is noticed within seconds
HEALTH_CHECKS = {"health_check_period_ms": 1000, "health_check_timeout_ms": 3000, "health_check_failure_threshold": 3}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of the cluster waits for several actors to start, beside the other tests."""
    for item in items:
        if "tests/ray" in str(item.path):
            item.add_marker(pytest.mark.timeout(1800 if IS_FULL else 400))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes; the driver is connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    cluster = Cluster(
        initialize_head=True, head_node_args={**node, "include_dashboard": False, "_system_config": HEALTH_CHECKS}
    )
    cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def two_nodes(cluster: Any) -> Any:
    """The cluster, with a second node in place of one that another test has killed."""
    if len(cluster.list_all_nodes()) < 2:
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    return cluster


def find_workers(cluster: Any, title: str) -> list[int]:
    """Return the process ids of the workers of this cluster that run an actor of this class."""
    raylets = {node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()}
    pids = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal() and (folder / "cmdline").read_text().startswith(f"ray::{title}"):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                pids += [int(folder.name)] if parent in raylets else []
    return pids
