"""Limits of control groups, versions 1 and 2, of containers and of machines without them; open files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from cenote.config.server import ServerConfig
from cenote.utils import system_limits
from cenote.utils.system_limits import count_open_files, find_cpu_quota, find_memory_limit, raise_file_limit

GIB = 1024**3


def make_files(folder: Path, files: dict[str, str]) -> tuple[Path, Path]:
    """Write files of control groups; return their folder and the file of those that this process is in."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder, folder / "self"


V2_CONTAINER = {"self": "0::/\n", "memory.max": f"{4 * GIB}\n", "cpu.max": "150000 100000\n"}
V2_HOST = {
    "self": "0::/system.slice/cenote.service\n",
    "system.slice/memory.max": f"{4 * GIB}\n",
    "system.slice/cpu.max": "max 100000\n",
    "system.slice/cenote.service/memory.max": "max\n",
    "system.slice/cenote.service/cpu.max": "150000 100000\n",
}
V1_CONTAINER = {  # the kernel names the groups as the host sees them
    "self": "5:cpu,cpuacct:/docker/1f\n4:memory:/docker/1f\n",
    "memory/memory.limit_in_bytes": f"{4 * GIB}\n",
    "cpu/cpu.cfs_quota_us": "150000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
}
V1_HOST = {
    "self": "5:cpu,cpuacct:/a/b\n4:memory:/a/b\n0::/\n",
    "memory/a/memory.limit_in_bytes": f"{4 * GIB}\n",
    "memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
    "cpu/a/b/cpu.cfs_quota_us": "150000\n",
    "cpu/a/b/cpu.cfs_period_us": "100000\n",
}
OUTSIDE = {"self": "0::/../../other\n", "memory.max": f"{4 * GIB}\n", "cpu.max": "150000 100000\n"}
LIMITED = {"v2 in a container": V2_CONTAINER, "v2": V2_HOST, "v1 in a container": V1_CONTAINER, "v1": V1_HOST}


@pytest.mark.parametrize("files", [*LIMITED.values(), OUTSIDE], ids=[*LIMITED, "v2, moved out of its namespace"])
def test_the_tightest_limit_of_the_groups_counts(files: dict[str, str], tmp_path: Path) -> None:
    folder, membership = make_files(tmp_path, files)

    limit = find_memory_limit(folder, membership)

    assert limit is not None and limit.num_bytes == 4 * GIB
    assert find_cpu_quota(folder, membership) == 1.5


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"self": "0::/\n"},
        {"self": "0::/\n", "memory.max": "max\n", "cpu.max": "max 100000\n"},
        {"self": "4:memory:/\n5:cpu:/\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"},
        {"self": "5:cpu:/\n", "cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
    ],
    ids=["no control groups", "the root", "v2 without limits", "v1 without limits", "v1 without a quota"],
)
def test_without_limits_there_are_none(files: dict[str, str], tmp_path: Path) -> None:
    folder, membership = make_files(tmp_path, files)

    assert find_memory_limit(folder, membership) is None
    assert find_cpu_quota(folder, membership) is None


@pytest.mark.parametrize(
    "files",
    [
        {
            **V2_CONTAINER,
            "memory.current": f"{3 * GIB}",
            "memory.stat": f"inactive_file {GIB}\nactive_file 24\n",
        },
        {
            **V1_CONTAINER,
            "memory/memory.usage_in_bytes": f"{3 * GIB}",
            "memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\ntotal_active_file 24\n",
        },
    ],
    ids=["v2", "v1"],
)
def test_cached_files_are_not_memory_in_use(files: dict[str, str], tmp_path: Path) -> None:
    limit = find_memory_limit(*make_files(tmp_path, files))

    assert limit is not None and limit.read_use() == 2 * GIB - 24


def test_bytes_in_flight_may_take_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder, membership = make_files(tmp_path, V2_CONTAINER)
    limit = find_memory_limit(folder, membership)
    monkeypatch.setattr(system_limits, "find_memory_limit", lambda: limit)

    assert ServerConfig().max_inflight_bytes == GIB
    assert ServerConfig(max_inflight_bytes=5).max_inflight_bytes == 5

    monkeypatch.setattr(system_limits, "find_memory_limit", lambda: None)
    monkeypatch.setattr(os, "sysconf", lambda name: 1024 * 1024)
    assert ServerConfig().max_inflight_bytes == 2 * GIB


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_system_that_refuses_an_unlimited_number_of_files_gets_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS does."""
    limits = []

    def setrlimit(name: int, values: tuple[int, int]) -> None:
        if values[0] == resource.RLIM_INFINITY:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(values)

    monkeypatch.setattr(resource, "getrlimit", lambda name: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)

    raise_file_limit()

    assert limits == [(10240, resource.RLIM_INFINITY)]


def test_open_files_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    before = count_open_files()
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    after = count_open_files()
    for file in files:
        os.close(file)

    assert before > 0 and after == before + 7
    monkeypatch.setattr(system_limits, "FILE_FOLDERS", ("/nowhere",))
    assert count_open_files() == 0
