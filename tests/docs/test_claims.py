"""Figures that pages repeat are those of the table or the data that they come from."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from cenote.models.catalog import read_checked_models
from cenote.models.recommended_models import read_recommended_models

ROOT = Path(__file__).parents[2]
PERFORMANCE = (ROOT / "docs/performance.md").read_text()
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
WITHDRAWN = {
    r"\bSTS-?B\b": "only two genres of the STS benchmark were measured",
    r"/docs`? (?:shows|documents) every route": "routes of tasks that no model supports are left out",
    r"return_exceptions": "no dialect sets it",
    r"unknown fields are ignored\. ": "misspelt ones are refused",
    r"logged at `--log-level debug`": "options of vLLM without effect are named in a warning",
    r"protocolVersions: \[v[12]": "the server has none of the inference protocols of KServe",
    r"for x86-64 some gigabytes smaller|those of x86-64 on the default": "torch contains CUDA on aarch64 as well",
}
PAIRS = "375 pairs of two genres of the STS benchmark"


def read_words(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def read_table(first_cell: str) -> list[list[str]]:
    """Return the rows of the table of performance.md whose header begins with this cell."""
    lines = PERFORMANCE[PERFORMANCE.index(f"| {first_cell} |") :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def read_numbers(pattern: str, page: str) -> list[float]:
    match = re.search(pattern, read_words(page))
    assert match is not None, f"{page} has no {pattern}"
    return [float(number.replace(",", "")) for number in match.groups()]


def test_figures_over_http_are_those_of_the_table() -> None:
    rows = {
        tuple(row[:4]): (float(row[4].partition(" ")[0].replace(",", "")), float(row[5]))
        for row in read_table("tokens per text")
        if row[5]
    }
    single, short, long = (
        rows[key] for key in (("48", "1", "256", "4"), ("48", "32", "384", "4"), ("480", "32", "32", "4"))
    )

    readme = read_numbers(
        r"front-end processes ([\d.]+) M at 480, ([\d.]+) M at 48, and ([\d,]+) requests/s of one", "README.md"
    )
    sizing = read_numbers(
        r"HTTP \| ([\d.]+) M \|.* connections \| ([\d.]+) M \(([\d,]+) requests/s\)", "docs/sizing.md"
    )

    assert readme == pytest.approx([long[1], short[1], single[0]], rel=0.02)
    assert sizing == pytest.approx([long[1], single[1], single[0]], rel=0.02)


def test_figures_of_batches_are_those_of_the_table() -> None:
    executor, llm = [row for row in read_table("shape") if row[0] == "BERT-base bfloat16"]
    expected = [float(row[column].partition(" ")[0]) for row in (executor, llm) for column in (5, 3)]

    found = read_numbers(
        r"host: ([\d.]+) M tokens/s at 512 tokens per text, ([\d.]+) M at 50; "
        r"through `LLM.embed` ([\d.]+) M and ([\d.]+) M;",
        "README.md",
    )

    assert (executor[1], llm[1]) == ("executor", "LLM")
    assert found == pytest.approx(expected, rel=0.02)


def test_the_quality_of_the_default_model_is_that_of_the_table() -> None:
    (retrieval, pairs) = next(
        row[1:] for row in read_table("MiniLM-L6, `cenote bench quality --retrieval FOLDER --pairs FILE.tsv`")
    )

    found = read_numbers(
        rf"nDCG@10 ([\d.]+) \(Sentence Transformers ([\d.]+)\); Spearman ([\d.]+) \(([\d.]+)\) on {PAIRS}", "README.md"
    )

    assert found == [float(retrieval), float(retrieval), float(pairs), float(pairs)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_figure_reads_as_one_of_the_whole_benchmark(page: Path) -> None:
    text = page.read_text()

    assert "0.907" not in text or PAIRS in " ".join(text.split())


def test_the_constraints_accept_the_cpu_build_of_torch_that_the_page_names() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (torch,) = (found for line in lines if line[:1].isalpha() and (found := Requirement(line)).name == "torch")
    (build,) = re.findall(r"pip prefers (\S+\+cpu) to", read_words("docs/sizing.md"))

    assert torch.specifier.contains(build)
    assert Version(build) > Version(build.removesuffix("+cpu"))


@pytest.mark.parametrize("claim", WITHDRAWN)
def test_no_page_repeats_a_claim_that_was_withdrawn(claim: str) -> None:
    sources = [*PAGES, *(path for path in ROOT.glob("deploy/**/*") if path.is_file())]

    assert [path.name for path in sources if re.search(claim, " ".join(path.read_text().split()))] == []


def test_the_numbers_of_checked_models_are_those_of_the_table() -> None:
    models = read_checked_models()
    files, checks = Counter(model.files for model in models), Counter(model.check for model in models)
    with_random_weights = checks["true layout"] + checks["architecture only"]
    counts = [len(models), checks["real weights"], with_random_weights, checks["refused"]]

    readme = read_numbers(
        r"Of the (\d+) published models in its table, (\d+) were run with their published weights, (\d+) were checked "
        r"with tiny random weights, and (\d+) are refused; their files come from public sources \((\d+)\), from those "
        r"of a similar model \((\d+)\) or partly from memory \((\d+)\)",
        "README.md",
    )

    assert readme == [*counts, files["public sources"], files["a similar model"], files["memory"]]
    assert sum(files.values()) == sum(checks.values()) == len(models)


def test_the_page_of_models_to_begin_with_tells_how_many_have_run_with_their_weights() -> None:
    with_weights = {model.name for model in read_checked_models() if model.check == "real weights"}

    found = read_numbers(r"checked with tiny random weights, (\d+) of them with their own", "docs/choosing.md")

    assert found == [sum(model.name in with_weights for model in read_recommended_models())]


def test_the_page_on_runtimes_has_every_reason_for_torch() -> None:
    table = (ROOT / "docs/runtimes.md").read_text().partition("## What needs torch")[2]
    kinds = {
        kind for path in ROOT.glob("cenote/models/*.py") for kind in re.findall(r'@makes\("(.+?)"', path.read_text())
    }
    sources = [(ROOT / name).read_text() for name in ("cenote/loading/runtime.py", "cenote/native/backbone.py")]
    reasons = {
        reason for text in sources for reason in re.findall(r'^ +(?:yield|return) "([^"]+)"$', text, re.MULTILINE)
    }

    assert len(kinds) > 12 and len(reasons) > 9
    assert not {reason for reason in kinds | reasons if reason not in table}


def test_an_environment_without_torch_is_as_small_as_pages_say() -> None:
    sizes = (ROOT / "docs/sizing.md").read_text()
    (measured,) = re.findall(r"^\| `make serve` \| .* \| (\d+) \|$", sizes, re.MULTILINE)

    assert round(int(measured), -1) == 240
    for page in ("README.md", "docs/quickstart.md", "CHANGELOG.md", "Makefile"):
        assert "250 MB" in (ROOT / page).read_text()
