"""The vision examples, with a tiny model of known colour behaviour, so that the expected results are known."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cenote import LLM
from tests.factories import LLMFactory

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module", autouse=True)
def examples() -> Iterator[None]:
    """Put the folder of the examples first on sys.path, as Python does for a script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield
    for name in ("pages", "tiny_colqwen3", "visual_rerank", "late_interaction_heat_map"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def llm(examples: None, tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder = import_module("tiny_colqwen3").write_checkpoint(tmp_path_factory.mktemp("tiny"))
    return open_llm(folder)


@pytest.mark.parametrize(
    ("question", "best", "worst"),
    [
        ("Where is the red bar, and where is the text?", "a chart", "leaves"),
        ("the yellow sun over the blue sea", "the sea", "a page of text"),
        ("something green", "leaves", "a page of text"),
    ],
)
def test_pages_are_ranked_by_what_is_on_them(llm: LLM, question: str, best: str, worst: str) -> None:
    pages = {name: draw() for name, draw in import_module("pages").PAGES.items()}

    scores = {name: score for score, name in import_module("visual_rerank").rank_pages(llm, question, pages)}

    assert max(scores, key=scores.__getitem__) == best
    assert scores[worst] == min(scores.values())


def test_the_documentation_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs/vision.md").read_text()
    line, *expected = page.partition("```\n$ python examples/visual_rerank.py ")[2].partition("\n```")[0].splitlines()

    import_module("visual_rerank").main(shlex.split(line))

    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(expected) == 5 and printed[0] == expected[0]
    for row, expected_row in zip(printed[1:], expected[1:], strict=True):
        (number, score, *name), (expected_number, expected_score, *expected_name) = row.split(), expected_row.split()
        assert (number, name) == (expected_number, expected_name)
        assert float(score) == pytest.approx(float(expected_score), abs=0.002)


def test_files_are_ranked_as_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("red", "blue"):
        Image.new("RGB", (64, 64), name).save(tmp_path / f"{name}.png")
    files = [str(tmp_path / "red.png"), str(tmp_path / "blue.png")]

    import_module("visual_rerank").main(["--question", "blue", *files])

    question, first, second = capsys.readouterr().out.splitlines()
    assert question == "blue"
    assert first.startswith("1.  ") and first.endswith("blue.png")
    assert second.startswith("2.  ") and second.endswith("red.png")


def test_the_heat_map_is_highest_where_the_page_shows_the_word(llm: LLM) -> None:
    page: Image.Image = import_module("pages").draw_chart_page()

    heat_maps: list[Any] = import_module("late_interaction_heat_map").compute_heat_maps(
        llm, "a red and a blue bar", page
    )

    assert [heat.word for heat in heat_maps] == ["a", "red", "and", "a", "blue", "bar"]
    for heat, channel in ((heat_maps[1], 0), (heat_maps[4], 2)):
        rows, columns = heat.grid.shape
        assert rows / columns == page.height / page.width
        row, column = divmod(int(heat.grid.argmax()), columns)
        colour = page.getpixel((int((column + 0.5) * page.width / columns), int((row + 0.5) * page.height / rows)))
        assert isinstance(colour, tuple) and max(colour) == colour[channel] > 180 > 2 * min(colour)


def test_the_heat_map_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "heat.png"

    import_module("late_interaction_heat_map").main(["--output", str(output), "--panels", "1"])

    image = Image.open(output)
    assert image.width == 24 + 2 * (300 + 24)
    colours = image.convert("RGB").getcolors(maxcolors=1 << 20)
    assert colours is not None and len(colours) > 1000, "expected a colour scale, not a blank page"
    assert "red" in capsys.readouterr().out


def test_the_help_of_the_tiny_model_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(SystemExit) as caught:
            import_module("tiny_colqwen3").main(["--help"])

    assert caught.value.code == 0
    assert "FOLDER" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_tiny_model_is_written_where_the_command_line_says(tmp_path: Path) -> None:
    import_module("tiny_colqwen3").main([str(tmp_path / "tiny")])

    assert (tmp_path / "tiny" / "config.json").is_file()


@pytest.mark.parametrize("name", ["late_interaction_heat_map", "tiny_colqwen3", "visual_rerank"])
def test_no_example_writes_a_file_when_asked_for_help(name: str, tmp_path: Path) -> None:
    script = EXAMPLES / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(script), "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
