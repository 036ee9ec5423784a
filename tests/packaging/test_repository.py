"""Makefile, workflows, pre-commit configuration and contributor documentation are consistent."""

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


def make_targets() -> set[str]:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    return set(phony.split())


def read_jobs(workflow: Path) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = yaml.safe_load(workflow.read_text())["jobs"]
    return jobs


def read_commands(workflow: Path) -> list[list[str]]:
    """Return every command line of a workflow, split into words."""
    steps = [step for job in read_jobs(workflow).values() for step in job["steps"]]
    return [shlex.split(line) for step in steps for line in step.get("run", "").splitlines()]


def test_make_help_describes_every_target() -> None:
    output = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)

    described = dict(re.findall(r"^  make ([\w-]+) +(.+)$", output.stdout, re.MULTILINE))
    assert described.keys() == make_targets()
    assert {"serve", "test", "dist"} <= described.keys()


def list_recipe(target: str, *variables: str) -> list[str]:
    """Return the commands that a target runs on a fresh clone."""
    command = ["make", "--no-print-directory", "--dry-run", "--always-make", target, *variables]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_make_test_says_first_how_long_it_takes_and_ends_with_one_line() -> None:
    commands = list_recipe("test")

    assert commands[0].startswith("echo ") and "8 to 12 minutes on two cores" in commands[0]
    assert any("pip install" in command for command in commands[1:])
    assert "-m pytest" in commands[-2] and commands[-1].startswith('echo "== passed')


def test_make_serve_installs_torch_for_those_who_ask_for_it_and_on_machines_where_nothing_else_computes() -> None:
    command = "pip install --quiet --no-compile --constraint constraints.txt torch"
    light, full = (list_recipe("serve", f"TORCH={asked}") for asked in (0, 1))

    assert not [line for line in light if line.endswith(command)]
    assert [line for line in full if line.endswith(command)]
    assert "TORCH ?= $(if $(wildcard /dev/nvidiactl /proc/driver/nvidia),1)\n" in MAKEFILE
    assert 'test "0" = 0 || ls cenote/kernels/*.so' in "\n".join(light)  # no C library was built


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_only_targets_and_scripts_that_exist(workflow: Path) -> None:
    for program, *arguments in read_commands(workflow):
        if program == "make":
            assert set(arguments) <= make_targets()
        elif program == "bash":
            assert (ROOT / arguments[0]).is_file()
        else:
            assert program == "python" and arguments[0] == "-m"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_the_actions_of_others_at_the_commit_of_a_release_that_nobody_can_move(workflow: Path) -> None:
    actions = re.findall(r"uses: (.*)", workflow.read_text())

    assert actions
    assert not [action for action in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action)]


def test_an_action_has_one_commit_in_all_workflows() -> None:
    actions = set(re.findall(r"uses: (.*)", "".join(path.read_text() for path in WORKFLOWS)))

    assert len(actions) == len({action.partition("@")[0] for action in actions})


def test_both_architectures_are_tested_and_get_a_wheel() -> None:
    runners = ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "nightly.yml", "wheels.yml"]

    jobs = {path.name: read_jobs(path) for path in WORKFLOWS}
    for job in (jobs["ci.yml"]["test"], jobs["nightly.yml"]["fuzz"], jobs["wheels.yml"]["wheel"]):
        assert job["strategy"]["matrix"]["os"] == runners
    assert read_commands(WORKFLOWS[0]) == [["bash", ".ci/run"]]
    assert read_commands(WORKFLOWS[1]) == [["make", "fuzz"]]
    assert ["make", "dist"] in read_commands(WORKFLOWS[2])


def test_a_release_is_audited_and_says_what_it_was_built_from() -> None:
    jobs = read_jobs(ROOT / ".github/workflows/wheels.yml")
    steps = [step.get("uses", "").partition("@")[0] for step in jobs["provenance"]["steps"]]

    assert jobs["audit"]["steps"][-2]["run"] == "make audit"
    assert jobs["provenance"]["needs"] == ["wheel", "sdist", "audit"]
    assert {"actions/attest-build-provenance", "actions/attest-sbom"} <= set(steps)
    assert jobs["provenance"]["permissions"] == {"contents": "read", "id-token": "write", "attestations": "write"}


def test_pre_commit_runs_the_commands_of_make_check() -> None:
    checks = [line for line in list_recipe("check") if re.match(r"\.venv/bin/(?!python)", line)]
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]

    assert [hook["entry"] for hook in local["hooks"]] == checks
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in local["hooks"])


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_the_pages_for_contributors_name_files_and_targets_that_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    names = re.findall(r"`((?:cenote|lab|tests|docs|examples)/[\w./*]*)`", text)

    assert not [link for link in links if not (ROOT / link).exists()]
    assert not [name for name in names if not list(ROOT.glob(name.rstrip("/")))]
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= make_targets()


def test_the_page_for_contributors_names_what_ci_runs() -> None:
    targets = re.findall(r"^make (test\S*)", (ROOT / ".ci/run").read_text(), re.MULTILINE)

    names = " and ".join(f"`make {target}`" for target in targets)
    assert f"`bash .ci/run`, which is {names}," in (ROOT / "CONTRIBUTING.md").read_text()
