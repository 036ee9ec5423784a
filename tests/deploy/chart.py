"""Render the Helm chart with Helm, or with the template engine and functions that Helm uses."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "cenote"
RENDERER = Path(__file__).with_name("chart_renderer.go")
RELEASE = {"Name": "cenote", "Namespace": "default", "Service": "Helm"}
GO_LIBRARIES = "/usr/share/gocode"  # where Debian installs sprig


# a random key is different each time: the manifests name a secret that kubectl creates
MANIFEST_VALUES = {"apiKey": {"existingSecret": "cenote-keys"}}


def render_chart(
    values: Mapping[str, Any], folder: Path = CHART, cluster: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the manifests for a cluster with these objects; skip the test without both Helm and Go with sprig."""
    check_values(merge_values(read_yaml(folder / "values.yaml"), values))
    texts = render_texts(values, folder, cluster)
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def render_texts(
    values: Mapping[str, Any], folder: Path = CHART, cluster: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    if (helm := shutil.which("helm")) is not None and not cluster:  # Helm asks a real cluster only
        command = [helm, "template", RELEASE["Name"], str(folder), "--namespace", RELEASE["Namespace"], "--values", "-"]
        done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return [done.stdout]
    templates = [path for path in sorted((folder / "templates").iterdir()) if path.suffix in (".tpl", ".yaml")]
    chart = {name[0].upper() + name[1:]: value for name, value in read_yaml(folder / "Chart.yaml").items()}
    request = {
        "Files": {path.name: path.read_text() for path in templates},
        "Values": merge_values(read_yaml(folder / "values.yaml"), values),
        "Release": RELEASE,
        "Chart": chart,
        "Cluster": list(cluster),
    }
    command = [str(build_renderer())]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [text for _, text in sorted(json.loads(done.stdout).items())]


@functools.cache
def build_renderer() -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("neither helm nor go is installed; apt-get install golang-go golang-github-masterminds-sprig-dev")
    folder = Path(tempfile.gettempdir()) / f"cenote-chart-renderer-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    binary = folder / f"renderer-{RENDERER.stat().st_mtime_ns}"
    if not binary.exists():
        environment = {"GOPATH": GO_LIBRARIES, **os.environ, "GO111MODULE": "off", "GOCACHE": str(folder / "cache")}
        command = [go, "build", "-o", f"{binary}.new", str(RENDERER)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
        if done.returncode != 0:
            missing = "golang-github-masterminds-sprig-dev and golang-github-ghodss-yaml-dev"
            pytest.skip(f"the chart renderer cannot be built, it needs {missing}: {done.stderr[-300:]}")
        os.replace(f"{binary}.new", binary)
    return binary


def merge_values(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as Helm merges them: objects by key, lists as a whole."""
    merged = dict(defaults)
    for name, value in values.items():
        previous = merged.get(name)
        both_objects = isinstance(previous, dict) and isinstance(value, dict)
        merged[name] = merge_values(previous, value) if both_objects and previous is not None else value
    return merged


def check_values(values: Mapping[str, Any]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(values)


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def read_all_yaml(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def main() -> None:
    """Write the manifests of the default values, with the secret of another command: python -m tests.deploy.chart."""
    header = (
        "# The Helm chart with its default values and apiKey.existingSecret; written by python -m tests.deploy.chart\n"
        '# First: kubectl create secret generic cenote-keys --from-literal=api-key="$(openssl rand -hex 32)"\n'
    )
    documents = [yaml.safe_dump(document, sort_keys=False, width=120) for document in render_chart(MANIFEST_VALUES)]
    (DEPLOY / "kubernetes" / "cenote.yaml").write_text(header + "---\n".join(documents))


if __name__ == "__main__":
    main()
