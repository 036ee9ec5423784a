"""The table of models: entries of files and command lines, names, and shared engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cenote.config.model_table import ModelTable, change_entry, check_same
from cenote.errors import BadRequest


def read(tmp_path: Path, text: str, **options: Any) -> ModelTable:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    return ModelTable.from_file(str(file), options)


def test_a_file_describes_each_model(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        """
        - name: small
          source: org/small
          aliases: [text-embedding-3-small]
          options: {dtype: float32, pooler_config: {pooling_type: MEAN}}
          pinned: true
          keep_alive_s: 60
          load: demand
        - source: org/large
        - org/third
        """,
        max_model_len=128,
    )

    small, large, third = table.entries
    assert small.names == ("small", "text-embedding-3-small") and small.source == "org/small"
    assert (small.config.dtype, small.config.max_model_len, small.config.served_model_name) == ("float32", 128, "small")
    assert small.config.pooler_config.pooling_type == "MEAN"
    assert (small.pinned, small.keep_alive_s, small.load) == (True, 60, "demand")
    assert (large.name, large.load, large.pinned, large.config.max_model_len) == ("org/large", "start", False, 128)
    assert third.name == third.source == "org/third"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {name: a, sauce: b}", "model 1: unknown keys: sauce; expected some of: name, source, aliases"),
        ("- {name: a, options: {dtyp: float32}}", "unknown option 'dtyp'; did you mean 'dtype'?"),
        ("- {name: a, options: {dtype: int3}}", "invalid dtype='int3'"),
        ("- {name: a, pinned: 3}", "pinned must be true or false, got 3"),
        ("- {name: a, keep_alive_s: -1}", "keep_alive_s must be a number of seconds above 0, got -1"),
        ("- {name: a, load: later}", "load must be one of start, demand, got 'later'"),
        ("- {name: a, replicas: 0}", "replicas must be a number of 1 or more, got 0"),
        ("- {aliases: [b]}", "source is missing"),
        (f"- {{name: {'a' * 1001}, source: x}}", "name has 1001 characters, limit 1000"),
        ('- {name: "a\\nb", source: x}', r"name 'a\nb' has a character that cannot be printed"),
        ('- {name: a, source: x, aliases: ["\\u200b"]}', r"aliases '\u200b' has a character that cannot be printed"),
        ("- 7", "expected a mapping"),
        ("{}", "expected a list of models"),
        ("- {name: a, source: x}\n- {name: b, source: y, aliases: [a]}", "the name 'a' is given to x and y"),
    ],
)
def test_an_invalid_file_is_refused_with_the_place_and_what_is_valid(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as caught:
        read(tmp_path, text)
    assert words in caught.value.message


def test_models_with_the_same_source_and_options_share_engines(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    table = read(
        tmp_path,
        f"""
        - {{name: a, source: {folder}}}
        - {{name: b, source: {tmp_path}/link/}}
        - {{name: c, source: {folder}, options: {{max_model_len: 16}}}}
        """,
    )

    a, b, c = table.entries
    assert a.shares_engines(b) and not a.shares_engines(c)


def test_a_change_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, "- {name: a, source: x, aliases: [b], options: {dtype: float32}}").entries

    swapped = change_entry(entry, {"source": "y"}, {})
    assert (swapped.source, swapped.names, swapped.config.dtype) == ("y", ("a", "b"), "float32")
    assert change_entry(entry, {"options": {"max_model_len": 9}}, {}).config.max_model_len == 9
    check_same(entry, {"source": "x", "options": {"dtype": "float32"}}, {})
    with pytest.raises(BadRequest, match="exists with another source"):
        check_same(entry, {"source": "y"}, {})


def test_folders_of_one_name_are_named_by_the_parts_that_differ(tmp_path: Path) -> None:
    for owner in ("one", "two"):
        (tmp_path / owner / "model").mkdir(parents=True)

    table = ModelTable.from_sources([str(tmp_path / "one" / "model"), f"{tmp_path}/two/model/", "org/model"], {})

    assert [entry.name for entry in table.entries] == ["one/model", "two/model", "org/model"]


def test_a_model_in_the_cache_of_the_hub_has_its_hub_name(tmp_path: Path) -> None:
    (folder := tmp_path / "models--org--model" / "snapshots" / "0a1b").mkdir(parents=True)

    assert ModelTable.from_sources([str(folder)], {}).entries[0].name == "org/model"
    assert ModelTable.from_sources(["s3://bucket/models/mine"], {}).entries[0].name == "mine"
