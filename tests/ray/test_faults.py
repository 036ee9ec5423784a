"""Killed actors and killed nodes: jobs finish, no row is lost, none comes twice."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import ray

import cenote.ray
from cenote import LLM
from cenote.config.ray import RayConfig
from cenote.files.result_table import make_columns
from cenote.files.sources import InputRow
from cenote.ray.row_pool import RowPool
from cenote.ray.row_task import SCHEMAS, RowTask
from tests.ray.checks import check_embeddings
from tests.ray.conftest import IS_FULL, find_workers
from tests.ray.rows import make_rows

NUM_ROWS = 20_000 if IS_FULL else 600


class Killer(threading.Thread):
    """Kill an actor when some rows are done, and a node when more are."""

    def __init__(self, cluster: Any, title: str, count_rows: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self.cluster, self.title, self.count_rows = cluster, title, count_rows
        self.killed: list[str] = []
        self.is_over = threading.Event()

    def wait_for(self, num_rows: int) -> bool:
        while self.count_rows() < num_rows and not self.is_over.is_set():
            time.sleep(0.1)
        return not self.is_over.is_set()

    def run(self) -> None:
        if self.wait_for(NUM_ROWS // 10):
            os.kill(find_workers(self.cluster, self.title)[0], signal.SIGKILL)
            self.killed.append("actor")
        if self.wait_for(NUM_ROWS // 3):
            (node, *_) = self.cluster.worker_nodes
            self.cluster.remove_node(node, allow_graceful=False)  # kills the raylet and with it the actors of the node
            self.killed.append("node")


@pytest.mark.skipif(not IS_FULL, reason="RAY_TESTS=full: a job on files runs on the same actors of Ray Data")
def test_a_dataset_outlives_a_killed_actor_and_a_killed_node(two_nodes: Any, default_folder: Path, llm: LLM) -> None:
    rows = make_rows(NUM_ROWS)
    tables: list[Any] = []
    killer = Killer(two_nodes, "MapWorker", lambda: sum(map(len, tables)))
    dataset = ray.data.from_items(rows, override_num_blocks=NUM_ROWS // 50)
    options = {"model": str(default_folder), "dtype": "float32"}
    done = cenote.ray.embed(dataset, concurrency=2, num_cpus=0.9, batch_size=50, **options)
    killer.start()

    for table in done.iter_batches(batch_format="pyarrow", batch_size=None):
        tables.append(table)

    killer.is_over.set()
    killer.join()
    assert killer.killed == ["actor", "node"]
    check_embeddings(pyarrow.concat_tables(tables), rows, llm)


def test_a_job_on_files_outlives_them_too(two_nodes: Any, tmp_path: Path, default_folder: Path, llm: LLM) -> None:
    rows = make_rows(NUM_ROWS)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "in/empty.jsonl").write_text("")
    num_done = 0

    def on_part(summary: Any) -> None:
        nonlocal num_done
        num_done += summary.num_rows

    killer = Killer(two_nodes, "MapWorker", lambda: num_done)
    killer.start()

    summary = cenote.ray.run_files(
        str(tmp_path / "in"),
        str(tmp_path / "out"),
        model=str(default_folder),
        dtype="float32",
        id_column="id",
        part_rows=50,
        ray_config=RayConfig(engine="ray", max_replicas=2, num_cpus=0.9),
        on_part=on_part,
    )

    killer.is_over.set()
    killer.join()
    assert killer.killed == ["actor", "node"]
    assert summary.num_rows == NUM_ROWS
    check_embeddings(pyarrow.parquet.read_table(tmp_path / "out"), rows, llm)


def test_a_command_with_one_output_file_outlives_them_too(two_nodes: Any, default_folder: Path, llm: LLM) -> None:
    rows = [row for row in make_rows(NUM_ROWS) if row["text"] is not None]
    config = RayConfig(engine="ray", max_replicas=2, num_cpus=0.9)
    pool = RowPool(config, RowTask("embed"), SCHEMAS["embed"], {"model": str(default_folder), "dtype": "float32"})
    tables: list[Any] = []
    killer = Killer(two_nodes, "RowActor", lambda: sum(map(len, tables)))
    killer.start()

    for some in pool.map((InputRow(row["id"], (row["text"],)) for row in rows), 50):
        ids = pyarrow.array([row.index for row in some.rows])
        tables.append(pyarrow.table({"id": ids, **make_columns(some, SCHEMAS["embed"])}))

    killer.is_over.set()
    killer.join()
    pool.close()
    assert killer.killed == ["actor", "node"]
    check_embeddings(pyarrow.concat_tables(tables), rows, llm)
