"""The files around the code agree with each other: Makefile, workflows, pre-commit, contributor documentation."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()


def targets() -> set[str]:
    (declared,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    return set(declared.split())


def jobs(workflow: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(workflow.read_text())["jobs"]
    return found


def commands(workflow: Path) -> list[list[str]]:
    """The words of every line that a workflow runs."""
    steps = [step for job in jobs(workflow).values() for step in job["steps"]]
    return [shlex.split(line) for step in steps for line in step.get("run", "").splitlines()]


def test_help_explains_every_target() -> None:
    shown = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)

    explained = dict(re.findall(r"^  make (\w+) +(.+)$", shown.stdout, re.MULTILINE))
    assert explained.keys() == targets()
    assert {"serve", "test", "dist"} <= explained.keys()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_only_what_is_there(workflow: Path) -> None:
    for program, *arguments in commands(workflow):
        if program == "make":
            assert set(arguments) <= targets()
        elif program == "bash":
            assert (ROOT / arguments[0]).is_file()
        else:
            assert program == "python" and arguments[0] == "-m"


def test_both_architectures_are_tested_and_get_a_wheel() -> None:
    both = ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "wheels.yml"]

    ci, wheels = (jobs(path) for path in WORKFLOWS)
    assert ci["test"]["strategy"]["matrix"]["os"] == wheels["wheel"]["strategy"]["matrix"]["os"] == both
    assert commands(WORKFLOWS[0]) == [["bash", ".ci/run"]]
    assert ["make", "dist"] in commands(WORKFLOWS[1])


def test_pre_commit_runs_the_commands_of_make_check() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--always-make", "check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    checks = [line for line in done.stdout.splitlines() if re.match(r"\.venv/bin/(?!python)", line)]
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]

    assert [hook["entry"] for hook in local["hooks"]] == checks
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in local["hooks"])


@pytest.mark.skipif(not (ROOT / "cenote/models/registry.py").exists(), reason="the pages have the names of issue 12")
@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_the_pages_for_contributors_name_files_and_targets_that_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    named = re.findall(r"`((?:cenote|tests|docs|examples)/[\w./*]*)`", text)

    assert not [link for link in links if not (ROOT / link).exists()]
    assert not [name for name in named if not list(ROOT.glob(name.rstrip("/")))]
    assert set(re.findall(r"`make ([a-z]+)`", text)) <= targets()
