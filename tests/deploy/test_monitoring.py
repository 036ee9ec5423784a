"""Dashboard and alerts: they use metrics and labels that a server exports, and every alert has a runbook."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.chart import DEPLOY, read_yaml
from tests.serving.server_process import ServerProcess

MONITORING = DEPLOY / "monitoring"
OPERATIONS = DEPLOY.parent / "docs" / "operations.md"
RUNBOOKS = "{{ with $externalLabels.runbooks }}{{ . }}{{ else }}docs/operations.md{{ end }}"
# of Prometheus and Kubernetes, not of the server
TARGET_LABELS = {"job", "instance", "namespace", "service"}
# words of PromQL that look like names of metrics
GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right) ?\(([^)]*)\)")
SELECTOR = re.compile(r"([a-z][a-z_:]*[a-z])(?:\{([^}]*)\})?(?=[\[\s)]|$)")
FUNCTIONS = {"and", "or", "unless", "by", "on", "sum", "max", "min", "rate", "increase", "histogram_quantile"}


@pytest.fixture(scope="module")
def exported(default_folder: Path) -> Iterator[dict[str, set[str]]]:
    """Labels of every series of a server with a request behind it, by name."""
    server = ServerProcess().wait_until_ready()
    with server.client() as client:
        assert client.post("/v1/embeddings", json={"input": "hello"}).status_code == 200
        text = client.get("/metrics").text
    server.stop()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        names = {sample.name for sample in family.samples} or {family.name}
        for name in names:
            labels[name] = {label for sample in family.samples if sample.name == name for label in sample.labels}
    yield labels


def find_panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def read_expressions() -> dict[str, str]:
    """Return every query of the dashboard and of the alerts, by its place."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    queries = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in find_panels(dashboard)
        for target in panel["targets"]
    }
    variables = [each["definition"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    queries |= {query: re.sub(r"^label_values\((.*), \w+\)$", r"\1", query) for query in variables}
    return queries | {rule["alert"]: rule["expr"] for rule in read_rules()}


def read_rules() -> list[dict[str, Any]]:
    return [rule for group in read_yaml(MONITORING / "alerts.yaml")["groups"] for rule in group["rules"]]


def find_selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Return the metrics of a query with the labels that they are selected by."""
    text = GROUPING.sub("", expression)
    return [
        (name, set(re.findall(r"(\w+)\s*[=!]~?", labels)))
        for name, labels in SELECTOR.findall(text)
        if name not in FUNCTIONS
    ]


@pytest.mark.parametrize("place, expression", read_expressions().items(), ids=list(read_expressions()))
def test_a_query_uses_metrics_and_labels_that_the_server_exports(
    place: str, expression: str, exported: dict[str, set[str]]
) -> None:
    selectors = find_selectors(expression)
    groupings = {name.strip() for names in GROUPING.findall(expression) for name in names.split(",")}

    assert selectors, expression
    for name, labels in selectors:
        if name == "up":  # of Prometheus
            continue
        assert name in exported, f"{name} is not exported"
        assert labels <= exported[name] | TARGET_LABELS, f"{name} has the labels {exported[name]}"
    known = set().union(*(exported.get(name, set()) for name, _ in selectors)) | TARGET_LABELS
    assert groupings <= known, groupings - known


def test_a_metric_that_does_not_exist_would_be_noticed() -> None:
    found = find_selectors('sum by (lane) (rate(cenote_no_such_total{lane="a", x=~"b"}[5m])) / up')

    assert found == [("cenote_no_such_total", {"lane", "x"}), ("up", set())]


def test_the_dashboard_has_the_structure_that_grafana_loads() -> None:
    target = {"type": "object", "required": ["refId", "expr", "datasource", "legendFormat"]}
    position = {"type": "object", "required": ["h", "w", "x", "y"], "additionalProperties": {"type": "integer"}}
    panel = {
        "type": "object",
        "required": ["id", "type", "title", "gridPos"],
        "properties": {
            "type": {"enum": ["row", "timeseries"]},
            "gridPos": position,
            "targets": {"type": "array", "minItems": 1, "items": target},
        },
    }
    schema = {
        "type": "object",
        "required": ["uid", "title", "schemaVersion", "panels", "templating", "time"],
        "properties": {"schemaVersion": {"minimum": 36}, "panels": {"type": "array", "items": panel}},
    }
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())

    jsonschema.Draft202012Validator(schema).validate(dashboard)
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(numbers) == len(set(numbers))
    cells = [cell for panel in dashboard["panels"] for cell in list_cells(panel["gridPos"])]
    assert len(cells) == len(set(cells))  # no panel covers another one


def list_cells(position: dict[str, int]) -> list[tuple[int, int]]:
    columns = range(position["x"], position["x"] + position["w"])
    assert columns.stop <= 24
    return [(x, y) for x in columns for y in range(position["y"], position["y"] + position["h"])]


@pytest.mark.parametrize(
    "command",
    [
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts_test.yaml"],
        ["check", "config", "--syntax-only", "prometheus.yaml"],
    ],
)
def test_promtool_accepts_rules_tests_and_settings(promtool: str, command: list[str]) -> None:
    done = subprocess.run([promtool, *command], cwd=MONITORING, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_has_a_runbook() -> None:
    tests = read_yaml(MONITORING / "alerts_test.yaml")["tests"]
    expected = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case.get("exp_alerts")}
    headings = re.findall(r"^#+ (\w+)$", OPERATIONS.read_text(), re.MULTILINE)

    for rule in read_rules():
        assert rule["alert"] in expected, "no test in which it fires"
        assert rule["alert"] in headings
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS}#{rule['alert'].lower()}"
    assert not {name for name in headings if name.startswith("Cenote")} - {rule["alert"] for rule in read_rules()}


def test_prometheus_scrapes_the_service_of_the_compose_file() -> None:
    (job,) = read_yaml(MONITORING / "prometheus.yaml")["scrape_configs"]
    services = read_yaml(DEPLOY / "compose.yaml")["services"]

    assert job["static_configs"] == [{"targets": ["cenote:8000"]}] and "cenote" in services
    assert httpx.URL(read_yaml(MONITORING / "grafana-provisioning.yaml")["datasources"][0]["url"]).host in services
