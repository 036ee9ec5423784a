"""Input files: every format, detection of columns, and invalid rows that fail alone."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .conftest import CommandResult, FakeEngine, vector

Command = Callable[..., CommandResult]
TEXTS = ["first, text", 'with "quotes"', "dritter Satz über\u2028Höhlen"]


def write_texts(folder: Path, name: str) -> Path:
    """Write the three texts in the format of the suffix."""
    path = folder / name
    kind = name.removesuffix(".gz").rpartition(".")[2]
    objects = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(objects), path)
        return path
    if kind in ("csv", "tsv"):
        with open(path, "w", newline="") as stream:
            writer = csv.writer(stream, delimiter="\t" if kind == "tsv" else ",")
            writer.writerows([["id", "text"], *([row["id"], row["text"]] for row in objects)])
        content = path.read_bytes()
    elif kind == "json":
        content = json.dumps(objects).encode()
    elif kind in ("jsonl", "ndjson"):
        content = b"\n".join(json.dumps(row).encode() for row in objects) + b"\n\n"
    else:
        content = "\r\n".join(TEXTS).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


NAMES = ["a.txt", "a.text", "a.jsonl", "a.ndjson", "a.json", "a.csv", "a.tsv", "a.parquet"]
GZIP_NAMES = ["a.txt.gz", "a.jsonl.gz", "a.json.gz", "a.csv.gz"]


@pytest.mark.parametrize("name", NAMES + GZIP_NAMES)
def test_a_file_is_read_by_its_extension(name: str, cenote_command: Command, tmp_path: Path) -> None:
    result = cenote_command("embed", "--input", write_texts(tmp_path, name))

    assert (result.status, result.err) == (0, "")
    assert [row["index"] for row in result.rows] == [0, 1, 2]
    assert [row["embedding"] for row in result.rows] == [pytest.approx(vector(text)) for text in TEXTS]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_ids_are_copied(name: str, cenote_command: Command, tmp_path: Path) -> None:
    result = cenote_command("embed", "--input", write_texts(tmp_path, name), "--id-column", "id")

    assert [str(row["id"]) for row in result.rows] == ["0", "1", "2"]


def test_standard_input_has_one_text_per_line(
    cenote_command: Command, engine: FakeEngine, pipe: Callable[[bytes], None]
) -> None:
    pipe(b"\xef\xbb\xbfone\ntwo\n\nfour")

    assert len(cenote_command("embed").rows) == 4
    assert engine.requests[0].inputs == ["one", "two", "", "four"]


def test_standard_input_may_be_named_and_have_another_format(
    cenote_command: Command, engine: FakeEngine, pipe: Callable[[bytes], None]
) -> None:
    pipe(b'{"text": "one"}\n')

    assert cenote_command("embed", "--input", "-", "--input-format", "jsonl").status == 0
    assert engine.requests[0].inputs == ["one"]


def test_an_unknown_extension_is_refused_with_the_known_ones(cenote_command: Command, tmp_path: Path) -> None:
    result = cenote_command("embed", "--input", tmp_path / "texts.docx")

    assert result.status == 1
    assert "--input-format or one of the endings .txt, .text, .jsonl" in result.err


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"title": "t", "text": "x"}, "x"),
        ({"prompt": "p", "input": "x"}, "x"),
        ({"sentence": "x", "other": "y"}, "x"),
        ({"number": 3, "body": "x"}, "x"),
    ],
)
def test_the_text_column_is_detected_by_name_or_because_it_is_the_only_one(
    row: dict[str, object], expected: str, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")

    for name in ("a.jsonl", "a.parquet"):
        assert cenote_command("embed", "--input", tmp_path / name).status == 0
    assert [request.inputs for request in engine.requests] == [[expected], [expected]]


def test_the_id_column_is_not_taken_for_the_text(cenote_command: Command, engine: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("key,body\nk1,hello\n")

    assert cenote_command("embed", "--input", tmp_path / "a.csv", "--id-column", "key").rows[0]["id"] == "k1"
    assert engine.requests[0].inputs == ["hello"]


@pytest.mark.parametrize("content", ["title,body\na,b\n", "title,body\n"])
def test_an_ambiguous_text_column_is_refused_with_the_list_of_columns(
    content: str, cenote_command: Command, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(content)

    result = cenote_command("embed", "--input", tmp_path / "a.csv")

    assert result.status == 1
    assert result.err.endswith("use --column NAME; available: title, body\n")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_column_missing_in_the_header_fails_the_file(name: str, cenote_command: Command, tmp_path: Path) -> None:
    result = cenote_command("embed", "--input", write_texts(tmp_path, name), "--column", "body")

    assert (result.status, result.err) == (1, "cenote: unknown column 'body'; available: id, text\n")


def test_invalid_rows_fail_alone(cenote_command: Command, engine: FakeEngine, tmp_path: Path) -> None:
    lines = [
        b'{"id": 1, "text": "good"}',
        b'{"id": 2, "text": ',
        b'{"id": 3, "txt": "elsewhere"}',
        b'{"id": 4, "text": 12}',
        b'{"id": 5, "text": null}',
        b"[1, 2]",
        b'{"id": 7, "text": "\\ud800"}',
        b'{"id": 8, "text": "\xff"}',
        b'{"id": 9, "text": "too long"}',
        b'{"text": "no id"}',
        b'{"id": 11, "text": "good too"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))

    result = cenote_command("embed", "--input", tmp_path / "a.jsonl", "--id-column", "id")

    assert result.status == 1
    assert result.err == "cenote: 9 of 11 rows failed; see their error\n"
    assert engine.requests[0].inputs == ["good", "too long", "good too"]
    assert [row["index"] for row in result.rows] == list(range(11))
    errors = {row["index"]: row["error"] for row in result.rows if "error" in row}
    assert errors[1].startswith("the line is not valid JSON: ")
    assert errors[2] == "unknown column 'text'; available: id, txt"
    assert errors[3] == "column 'text' holds int 12, not a string"
    assert errors[4] == "column 'text' holds null, not a string"
    assert errors[5] == "a JSON list; expected an object or a string"
    assert errors[6] == "the text is not valid UTF-8 at character 0"
    assert errors[7].startswith("the line is not valid UTF-8 at byte ")
    assert errors[8].startswith("input has 900 tokens")
    assert errors[9] == "unknown column 'id'; available: text"
    assert [row["id"] for row in result.rows if row["index"] in (0, 2, 8, 10)] == [1, 3, 9, 11]


def test_a_csv_row_with_too_many_fields_fails_alone(cenote_command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,hello, world\n2,fine\n3,b\xffd\n")

    result = cenote_command("embed", "--input", tmp_path / "a.csv")

    assert result.status == 1
    assert result.rows[0]["error"].startswith("3 fields, the header has 2; quote")
    assert "embedding" in result.rows[1]
    assert result.rows[2]["error"] == "the text is not valid UTF-8 at character 1"


def test_null_and_missing_texts_in_parquet_fail_alone(cenote_command: Command, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None, "c"], "vector": [[1.0], [2.0], [3.0]]}), tmp_path / "a.parquet")

    result = cenote_command("embed", "--input", tmp_path / "a.parquet")

    assert [row.get("error") for row in result.rows] == [None, "column 'text' holds null, not a string", None]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'{"text": "x"}', "not an array; name files with one object per line .jsonl"),
        ("a.json", b"[1,", "not valid JSON"),
        ("a.txt.gz", b"plain", "is not a complete gzip file"),
        ("a.txt.gz", gzip.compress(b"x" * 9999, mtime=0)[:-9], "is not a complete gzip file"),
        ("a.parquet", b"nothing of the kind", "not a parquet file"),
    ],
)
def test_a_broken_file_is_one_line(
    name: str, content: bytes, message: str, cenote_command: Command, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)

    result = cenote_command("embed", "--input", tmp_path / name)

    assert result.status == 1
    assert message in result.err
    assert result.err.count("\n") == 1


def test_files_are_read_in_slices(cenote_command: Command, engine: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"text {number}\n" for number in range(10)))

    cenote_command("embed", "--input", tmp_path / "a.txt", "--batch-rows", "4")

    assert [len(request.inputs) for request in engine.requests] == [4, 4, 2]


@pytest.mark.parametrize(
    ("header", "flags"),
    [("text_1,text_2", []), ("document,id,query", []), ("left,right", []), ("x,b,a", ["--columns", "a,b"])],
)
def test_columns_of_pairs_are_detected_by_name(
    header: str, flags: list[str], cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    names = header.split(",")
    values = {"text_1": "q", "query": "q", "left": "q", "a": "q", "id": "7", "x": "?"}
    (tmp_path / "pairs.csv").write_text(header + "\n" + ",".join(values.get(name, "d") for name in names) + "\n")

    assert cenote_command("score", "--input", tmp_path / "pairs.csv", *flags).status == 0
    assert (engine.requests[0].queries, engine.requests[0].documents) == (["q"], ["d"])


def test_text_files_have_neither_pairs_nor_columns(cenote_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")

    assert "one text per line; pairs need jsonl" in cenote_command("score", "--input", path).err
    assert "one text per line; columns need jsonl" in cenote_command("embed", "--input", path, "--column", "x").err


def test_parquet_without_pyarrow_names_the_command(
    cenote_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_texts(tmp_path, "a.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)

    result = cenote_command("embed", "--input", path)

    assert (result.status, result.err) == (1, "cenote: parquet files need pyarrow: pip install 'pyarrow>=15'\n")
