"""FlexibleArgumentParser: flags with underscores, dotted JSON flags, YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cenote.utils import FlexibleArgumentParser
from cenote.utils.argparse_utils import MultiValue
from cenote.utils.arguments import parse_json_object


@pytest.fixture
def parser() -> FlexibleArgumentParser:
    parser = FlexibleArgumentParser(description="a program")
    parser.add_argument("--max-model-len", type=int, default=8)
    parser.add_argument("--data_file", default="data.tif")
    parser.add_argument("--hf-overrides", type=parse_json_object, default={"a": 1})
    parser.add_argument("--older-overrides", dest="hf_overrides", type=parse_json_object, default={"a": 1})
    parser.add_argument("--words", nargs="+", default=[])
    parser.add_argument("--names", nargs="+", action=MultiValue, default=("first",))
    parser.add_argument("--fast", action="store_true")
    return parser


@pytest.mark.parametrize("flag", ["--max-model-len", "--max_model_len", "--max_model-len"])
def test_flags_take_dashes_and_underscores(parser: FlexibleArgumentParser, flag: str) -> None:
    assert parser.parse_args([flag, "16"]).max_model_len == 16
    assert parser.parse_args([f"{flag}=16"]).max_model_len == 16


def test_a_flag_that_a_program_declares_with_an_underscore_is_found(parser: FlexibleArgumentParser) -> None:
    assert parser.parse_args(["--data_file", "other.tif"]).data_file == "other.tif"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--hf-overrides.b", "2"], {"b": 2}),
        (["--hf_overrides.b.c", "text", "--hf-overrides.b.d=true"], {"b": {"c": "text", "d": True}}),
        (["--hf-overrides.list+", "x", "--hf-overrides.list+=y,z"], {"list": ["x", "y", "z"]}),
        (["--hf-overrides", '{"b": 2}'], {"b": 2}),
        (["--hf-overrides", '{"b": 2}', "--hf-overrides.c", "3"], {"b": 2, "c": 3}),
        (
            ["--hf-overrides.b=3", '--hf_overrides={"b": 2, "c": {"d": 1}}', "--hf-overrides.c.e=2"],
            {"b": 3, "c": {"d": 1, "e": 2}},
        ),
        (["--hf-overrides", '{"b": 2}', "--hf-overrides", '{"c": 3}'], {"c": 3}),
        (["--older-overrides", '{"b": 2}', "--hf-overrides.c", "3"], {"b": 2, "c": 3}),
        ([], {"a": 1}),
    ],
    ids=str,
)
def test_dotted_flags_set_fields_of_a_json_option(
    parser: FlexibleArgumentParser, argv: list[str], expected: dict[str, Any]
) -> None:
    assert parser.parse_args(argv).hf_overrides == expected


def test_values_of_a_flag_with_several_replace_its_default(parser: FlexibleArgumentParser) -> None:
    assert parser.parse_args([]).names == ("first",)
    assert parser.parse_args(["--names", "a", "b", "--names", "c"]).names == ("a", "b", "c")


def test_a_file_of_options_is_overridden_by_the_command_line(parser: FlexibleArgumentParser, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("max_model_len: 16\nfast: true\nnames: [a, b]\nhf-overrides:\n  b: {c: 2}\ndata_file:\n")

    from_file = parser.parse_args(["--config", str(file)])
    both = parser.parse_args([f"--config={file}", "--max-model-len", "32"])

    assert (from_file.max_model_len, from_file.fast, from_file.names) == (16, True, ("a", "b"))
    assert from_file.hf_overrides == {"b": {"c": 2}}
    assert from_file.data_file == "data.tif"
    assert both.max_model_len == 32


def test_words_after_a_double_dash_are_no_flags(parser: FlexibleArgumentParser) -> None:
    parser.add_argument("text", nargs="*")

    args = parser.parse_args(["--hf-overrides.b", "2", "--", "--config", "--hf-overrides.c"])

    assert (args.hf_overrides, args.text) == ({"b": 2}, ["--config", "--hf-overrides.c"])


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], {"b": 1, "c": 2, "d": {"e": 3}}),
        (["--hf-overrides.c", "4"], {"b": 1, "c": 4, "d": {"e": 3}}),
        (["--hf-overrides", '{"d": 5}', "--hf-overrides.f=6"], {"b": 1, "c": 2, "d": 5, "f": 6}),
    ],
    ids=str,
)
@pytest.mark.parametrize("text", ["hf_overrides: {b: 1, c: 2}", 'hf-overrides: \'{"b": 1, "c": 2}\''])
def test_fields_of_a_json_option_may_come_from_the_file_and_the_command_line(
    parser: FlexibleArgumentParser, text: str, argv: list[str], expected: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(f"{text}\nhf_overrides.d.e: 3\n")

    assert parser.parse_args([*argv, "--config", str(file)]).hf_overrides == expected


def test_lists_in_a_file_are_several_values_and_are_replaced_by_the_command_line(
    parser: FlexibleArgumentParser, tmp_path: Path
) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("words: [c, d]\nnames: [a, b]\n")

    from_file = parser.parse_args(["--config", str(file)])
    both = parser.parse_args(["--names", "e", "--config", str(file), "--words", "f"])

    assert (from_file.words, from_file.names) == (["c", "d"], ("a", "b"))
    assert (both.words, both.names) == (["f"], ("e",))


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--config", "FILE", "--max-model-len", "32"],
        ["run", "--max-model-len=32", "--config=FILE"],
        ["--name", "run", "run", "--config", "FILE", "--max_model_len", "32"],
    ],
    ids=str,
)
def test_a_file_after_a_subcommand_has_the_options_of_the_subcommand(argv: list[str], tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("max_model_len: 16\nfast: true\nhf_overrides: {b: 1}\n")
    parser = FlexibleArgumentParser()
    parser.add_argument("--name")
    run = parser.add_subparsers(dest="command").add_parser("run")
    run.add_argument("--max-model-len", type=int)
    run.add_argument("--data_file")
    run.add_argument("--fast", action="store_true")
    run.add_argument("--hf-overrides", type=parse_json_object)

    args = parser.parse_args(
        [word.replace("FILE", str(file)) for word in [*argv, "--hf-overrides.c=2", "--data_file=d"]]
    )

    assert (args.command, args.max_model_len, args.fast, args.data_file) == ("run", 32, True, "d")
    assert args.hf_overrides == {"b": 1, "c": 2}


def test_a_file_before_a_subcommand_has_the_options_of_the_program(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("name: n\nhf_overrides: {b: 1}\n")
    parser = FlexibleArgumentParser()
    parser.add_argument("--name")
    parser.add_argument("--hf-overrides", type=parse_json_object)
    parser.add_subparsers(dest="command").add_parser("run")

    args = parser.parse_args(["--hf-overrides.c", "2", "--config", str(file), "run"])

    assert (args.command, args.name, args.hf_overrides) == ("run", "n", {"b": 1, "c": 2})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--config"], "--config needs a file"),
        (["--config", "no-such-file.yaml"], "No such file"),
        (["--config", "a.yaml", "--config", "b.yaml"], "only one file"),
        (["--hf-overrides.b"], "--hf-overrides.b needs a value"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_wrong_command_line_ends_the_program_with_status_2(
    parser: FlexibleArgumentParser, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(argv)

    assert message in capsys.readouterr().err


def test_the_command_line_of_the_program_is_parsed_by_default(
    parser: FlexibleArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["program", "--max_model_len", "3"])

    assert parser.parse_args().max_model_len == 3
