"""Files are split into parts that together have every row once, with the positions of the whole file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from cenote.errors import BadRequest
from cenote.files.columns import ColumnOptions
from cenote.files.file_parts import list_files, split_files
from cenote.files.sources import FileSource, InputRow

NO_COLUMNS = ColumnOptions()


def write_file(folder: Path, name: str, num_rows: int) -> str:
    path = folder / name
    texts = [f"text {index}\tx" for index in range(num_rows)]
    if name.endswith(".txt"):
        path.write_text("\ufeff" + "".join(f"{text}\n" for text in texts))
    elif name.endswith((".jsonl", ".jsonl.gz")):
        lines = [
            json.dumps({"other": "o", "text": text}) + "\n" + "\n" * (index % 3) for index, text in enumerate(texts)
        ]
        content = "".join(lines).encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    elif name.endswith(".csv"):
        path.write_text("text,n\n" + "".join(f'"{text}\nsecond line",{index}\n' for index, text in enumerate(texts)))
    elif name.endswith(".json"):
        path.write_text(json.dumps(texts))
    else:
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pa.table({"text": texts}), path, row_group_size=7)
    return str(path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.csv", "a.json", "a.parquet"])
@pytest.mark.parametrize("part_rows", [10, None])
def test_the_parts_of_a_file_have_the_rows_of_the_file(tmp_path: Path, name: str, part_rows: int | None) -> None:
    path = write_file(tmp_path, name, 1000)

    parts = split_files([path], NO_COLUMNS, part_rows=part_rows)

    rows = [row for part in parts for row in part.rows()]
    assert rows == list(FileSource(path, NO_COLUMNS).rows())
    assert len(rows) == 1000
    assert len(parts) > 3 if part_rows is None else len(parts) > 60


def test_parts_of_long_lines_are_bounded_by_bytes(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(("x" * 1024**2 + "\n") * 10)

    parts = split_files([str(path)], NO_COLUMNS)

    assert [part.num_records for part in parts] == [3, 3, 3, 1]


def test_every_part_reads_the_columns_that_the_file_starts_with(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "a", "n": 1}\n{"text": "b", "body": 2}\n')

    first, second = split_files([str(path)], NO_COLUMNS, part_rows=1)

    assert list(first.rows()) == [InputRow(0, ("a",))]
    assert list(second.rows()) == [InputRow(1, error="column 'body' holds int 2, not a string")]


def test_an_empty_file_has_no_parts_and_a_folder_is_read_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.txt", "ignored.bin"):
        (tmp_path / name).write_text("" if name == "b.jsonl" else "x\n")

    paths = list_files(str(tmp_path))

    assert [Path(path).name for path in paths] == ["a.txt", "b.jsonl"]
    assert [part.path for part in split_files(paths, NO_COLUMNS)] == [str(tmp_path / "a.txt")]
    assert list_files(str(tmp_path / "*.txt")) == [str(tmp_path / "a.txt")]
    with pytest.raises(BadRequest, match="no input files in"):
        list_files(str(tmp_path / "*.csv"))
