"""The cache on disk: survives restarts, is shared by processes, and never returns corrupted entries."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cenote.cache import disk_cache, sqlite_file
from cenote.cache.disk_cache import DiskCache
from cenote.cache.result_cache import ResultCache
from cenote.utils.file_lock import lock_file

MIB = 1024**2
WRITER = """
import sys
from pathlib import Path
from cenote.cache.disk_cache import DiskCache

disk = DiskCache(Path(sys.argv[1]), 64 * 1024**2)
name = sys.argv[2].encode()
for number in range(int(sys.argv[3])):
    disk.put([(b"%s %d %d" % (name, number, part), b"%d" % number * 100) for part in range(20)])
    disk.flush()
    print(number, flush=True)
disk.close()
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskCache]:
    disk = DiskCache(tmp_path, 64 * MIB)
    yield disk
    disk.close()


def write(disk: DiskCache, **entries: bytes) -> None:
    disk.put([(name.encode(), value) for name, value in entries.items()])
    disk.flush()


def start_writer(folder: Path, name: str, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), name, str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_results_survive_a_restart(tmp_path: Path) -> None:
    cache = ResultCache(b"m", folder=tmp_path, disk_bytes=MIB)
    cache.put([b"key"], [(np.array([0.1, 0.2], dtype=np.float32),)])
    cache.close()

    again = ResultCache(b"m", folder=tmp_path, disk_bytes=MIB)
    (found,) = again.get([b"key"])
    again.close()

    assert found is not None and found[0].tobytes() == np.array([0.1, 0.2], dtype=np.float32).tobytes()


def test_processes_share_a_folder(tmp_path: Path, disk: DiskCache) -> None:
    others = [start_writer(tmp_path, name, rounds=10) for name in ("a", "b")]
    for number in range(10):
        write(disk, **{f"mine {number}": b"x" * 100})
    assert [process.wait() for process in others] == [0, 0]
    for process in others:
        assert process.stdout is not None
        process.stdout.close()

    keys = [b"%s %d %d" % (name, number, part) for name in (b"a", b"b") for number in range(10) for part in range(20)]

    assert len(disk.get(keys)) == 400
    assert len(disk.get([b"mine %d" % number for number in range(10)])) == 10
    assert disk.num_corrupted == disk.num_dropped == 0


def test_a_process_killed_while_writing_leaves_only_complete_entries(tmp_path: Path) -> None:
    process = start_writer(tmp_path, "k", rounds=100_000)
    assert process.stdout is not None
    for _ in range(15):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()

    disk = DiskCache(tmp_path, 64 * MIB)
    rounds = [disk.get([b"k %d %d" % (number, part) for part in range(20)]) for number in range(30)]
    disk.close()

    assert all(len(found) == 20 for found in rounds[:15])
    assert all(len(found) in (0, 20) for found in rounds)  # transactions are atomic
    assert all(value == b"%d" % number * 100 for number, found in enumerate(rounds) for value in found.values())
    assert disk.num_corrupted == 0


def test_an_entry_with_a_flipped_bit_is_not_served_and_can_be_replaced(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path, MIB)
    write(disk, good=b"G" * 300, bad=b"B" * 300)
    disk.close()
    raw = disk.path.read_bytes()
    disk.path.write_bytes(raw.replace(b"B" * 300, b"B" * 299 + b"C"))

    disk = DiskCache(tmp_path, MIB)
    assert disk.get([b"good", b"bad"]) == {b"good": b"G" * 300}
    assert disk.num_corrupted == 1
    write(disk, bad=b"B" * 300)

    assert disk.get([b"bad"]) == {b"bad": b"B" * 300}
    disk.close()


@pytest.mark.parametrize("damage", ["no database", "half a file", "garbage inside"])
def test_a_corrupted_file_is_recreated(damage: str, tmp_path: Path) -> None:
    disk = DiskCache(tmp_path, MIB)
    write(disk, **{f"key {number}": bytes([number]) * 3000 for number in range(100)})
    disk.close()
    raw = disk.path.read_bytes()
    broken = {
        "no database": b"something else" * 1000,
        "half a file": raw[: len(raw) // 2],
        "garbage inside": raw[:4096] + b"\xff" * 16384 + raw[20480:],
    }
    disk.path.write_bytes(broken[damage])

    disk = DiskCache(tmp_path, MIB)
    for _ in range(2):  # some corruption is detected only when the damaged page is used
        found = disk.get([b"key %d" % number for number in range(100)])
        assert all(value == bytes([int(key.split()[1])]) * 3000 for key, value in found.items())
        write(disk, **{f"new {number}": b"n" * 2000 for number in range(50)})

    assert disk.get([b"new 7"]) == {b"new 7": b"n" * 2000}
    disk.close()


def test_another_process_may_replace_a_corrupted_file(tmp_path: Path, disk: DiskCache) -> None:
    write(disk, old=b"1")
    for file in tmp_path.glob("results.sqlite3*"):
        file.unlink()
    other = DiskCache(tmp_path, MIB)
    write(other, theirs=b"2")

    write(disk, mine=b"3")

    assert disk.get([b"old", b"theirs", b"mine"]) == {b"theirs": b"2", b"mine": b"3"}
    assert other.get([b"mine"]) == {b"mine": b"3"}
    other.close()


def test_the_file_stays_within_its_limit_and_the_oldest_entries_are_evicted_first(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path, MIB)
    for number in range(40):
        disk.put([(b"%d %d" % (number, part), os.urandom(2000)) for part in range(40)])
        disk.flush()

    assert disk.num_bytes <= MIB
    assert disk.path.stat().st_size < 1.5 * MIB
    assert disk.num_evicted > 1000
    assert len(disk.get([b"39 %d" % part for part in range(40)])) == 40
    assert not disk.get([b"0 %d" % part for part in range(40)])
    disk.close()


def test_a_tenant_that_fills_the_file_evicts_its_own_entries(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path, MIB)
    disk.put([(b"mine %d" % number, os.urandom(2000)) for number in range(100)], "small")
    for number in range(30):
        disk.put([(b"%d %d" % (number, part), os.urandom(2000)) for part in range(40)], "large")
        disk.flush()

    assert disk.num_bytes <= MIB and disk.num_evicted > 500
    assert len(disk.get([b"mine %d" % number for number in range(100)])) == 100
    assert len(disk.get([b"29 %d" % part for part in range(40)])) == 40
    disk.close()


def test_entries_of_inactive_tenants_are_evicted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskCache(tmp_path, MIB)
    for tenant in ("gone", "here"):
        disk.put([(b"%s %d" % (tenant.encode(), part), os.urandom(2000)) for part in range(200)], tenant)
        disk.flush()
        monkeypatch.setattr(disk_cache, "ACTIVE_S", 0.05)
        time.sleep(0.1)
    for number in range(5):
        disk.put([(b"new %d %d" % (number, part), os.urandom(2000)) for part in range(20)], "here")
        disk.flush()

    assert len(disk.get([b"here %d" % part for part in range(200)])) == 200
    assert 20 < len(disk.get([b"gone %d" % part for part in range(200)])) < 170
    disk.close()


def test_a_folder_that_cannot_be_used_stops_the_cache_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite_file, "RETRY_S", 0.0)
    folder = tmp_path / "cache"
    folder.write_text("a file")
    disk = DiskCache(folder, MIB)
    write(disk, a=b"1")
    assert disk.get([b"a"]) == {} and disk.num_dropped == 1
    assert caplog.text.count("nothing is cached there until it works") == 1

    folder.unlink()
    write(disk, b=b"2")
    assert disk.get([b"b"]) == {b"b": b"2"}
    shutil.rmtree(folder)
    folder.write_text("a file again")
    assert disk.get([b"b"]) == {}
    folder.unlink()
    write(disk, c=b"3")
    assert disk.get([b"c"]) == {b"c": b"3"}
    disk.close()


def test_a_full_disk_without_a_cache_yet_is_a_warning(tmp_path: Path) -> None:
    code = f"""
import resource, signal
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
from cenote.cache.disk_cache import DiskCache
from cenote.cache import sqlite_file
sqlite_file.RETRY_S = 0.0
disk = DiskCache(Path({str(tmp_path)!r}), {MIB})
disk.put([(b"a", b"1")])
disk.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
disk.put([(b"b", b"2")])
disk.flush()
print(disk.num_dropped, disk.get([b"a", b"b"]))
"""
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout == "1 {b'b': b'2'}\n", done.stderr


def test_a_slow_disk_is_not_read_for_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 0.1, 0.2, 2.0, 2.2, 2.21])  # A query begins and ends, two come during the pause, one after it.
    disk = DiskCache(tmp_path, MIB, clock=lambda: next(times))
    write(disk, a=b"1")

    found = [disk.get([b"a"]) for _ in range(4)]
    disk.close()

    assert found == [{b"a": b"1"}, {}, {}, {b"a": b"1"}]
    assert caplog.text.count("is slow: a query took 0.10 s; nothing is read from it for 2.0 s") == 1


def test_a_damaged_index_is_recognised_and_the_file_recreated(tmp_path: Path) -> None:
    path = tmp_path / disk_cache.FILE_NAME
    DiskCache(tmp_path, MIB).close()
    columns = "type, name, tbl_name, rootpage, sql"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        index = connection.execute(f"SELECT {columns} FROM sqlite_master WHERE name = 'entries_by_tenant'").fetchone()
        connection.execute("DELETE FROM sqlite_master WHERE name = 'entries_by_tenant'")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:  # a row that the index does not have
        connection.execute("INSERT INTO entries (tenant, key, value) VALUES ('', x'61', x'00')")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(f"INSERT INTO sqlite_master ({columns}) VALUES (?, ?, ?, ?, ?)", index)

    disk = DiskCache(tmp_path, MIB)
    write(disk, a=b"1")
    write(disk, a=b"2")
    found = disk.get([b"a"])
    disk.close()

    assert disk.num_corrupted == 1
    assert found == {b"a": b"2"}


def test_a_process_that_is_stopped_with_the_lock_stops_the_cache_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(sqlite_file, "RETRY_S", 0.0)
    with lock_file(tmp_path / f"{disk_cache.FILE_NAME}.lock", 1):
        disk = DiskCache(tmp_path, MIB)
        assert disk.get([b"a"]) == {}

    write(disk, a=b"1")
    assert disk.get([b"a"]) == {b"a": b"1"}
    disk.close()
