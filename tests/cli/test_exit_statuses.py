"""Exit statuses of the commands are those of the documentation.

Those of a server that starts are in `tests/serving/`, those of interrupts in `test_main.py`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cenote.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
NO_SERVER = "http://127.0.0.1:9"
STATUSES = {
    "embed --input none.csv": 1,
    "embed --input pairs.csv --column none": 1,
    "embed hello --output pairs.csv --format jsonl": 1,
    "embed --input pairs.csv --output out.xyz": 2,
    "embed --none": 2,
    "embed --max-num-seqs 0 hello": 2,
    """embed --pooler-config '{"none": 1}' hello""": 2,
    "embed --model folder hello": 78,
    "embed --model nested hello": 78,
    "embed --device tpu hello": 78,
    "embed --chat-template none.jinja hello": 78,
    "serve --none": 2,
    "serve --port 99999": 2,
    "serve --root-path x": 2,
    "serve --max-queue-tokens 0": 2,
    "serve --max-num-seqs 0": 2,
    "serve --config none.yaml": 2,
    "serve --models none.yaml": 2,
    f"doctor {NO_SERVER}": 2,
    "doctor --none": 2,
    f"ps --url {NO_SERVER}": 1,
    "load": 2,
    "pull folder/none": 78,
    "inspect folder": 78,
    "inspect nested": 78,
    "inspect --max-num-seqs 0": 2,
    "explain --max-num-seqs 0": 2,
    "models --check folder": 78,
    "models --max-size none": 2,
    "models none": 1,
    "run-batch -i none.jsonl -o out.jsonl": 1,
    "run-batch -i pairs.csv -o out.jsonl --max-num-seqs 0": 2,
    "none": 2,
    "--version": 0,
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.csv").write_text("text\nhello\n")
    Path("folder").mkdir()
    Path("nested").mkdir()
    Path("nested/config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    monkeypatch.setattr("cenote.api.log_config.configure_logging", lambda settings: None)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("line", STATUSES)
def test_a_command_ends_with_its_status_and_a_reason(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(shlex.split(line))

    errors = capsys.readouterr().err.splitlines()
    assert status == STATUSES[line], errors
    assert not errors or errors[-1].startswith("cenote: ")


@pytest.mark.parametrize("line", ["bench", "bench none", "bench quality", "bench quality --none"])
def test_wrong_arguments_of_a_benchmark_end_with_2(line: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(shlex.split(line))

    assert end.value.code == 2


def test_the_documentation_names_the_statuses_that_are_tested() -> None:
    table = (DOCS / "files.md").read_text().partition("| exit status | |")[2].partition("\n\n")[0]
    sentence = (DOCS / "serving.md").read_text().partition("Exit status: ")[2].partition(".\n")[0]

    assert {int(status) for status in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {0, 1, 2, 78, 130, 141}
    assert {int(status) for status in re.findall(r"(?:^|, | and )(\d+)", sentence)} == {0, 1, 2, 78, 130, 143}
