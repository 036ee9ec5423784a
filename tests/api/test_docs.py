"""Documentation page: lists all routes, escapes model names, and its script works."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.dialects import DIALECTS
from tests.api.app_client import make_client
from tests.tiny import tiny_bert

MALICIOUS_NAME = "</title><script>alert('&\"`)</script>"

# minimal browser environment for the page's script: submits every form once and prints what the page shows
BROWSER = """
const [page, status] = [JSON.parse(require("fs").readFileSync(0, "utf8")), Number(process.argv[1])];
const requests = [];
globalThis.fetch = async (address, options) => {
  requests.push({address, ...options});
  if (!status) throw new TypeError("unreachable");
  return {status, headers: {get: () => "queue;dur=1"}, text: async () => page.reply};
};
const forms = page.forms.map(form => {
  const parts = {span: {}, pre: {hidden: true}, textarea: {value: form.body},
    button: {addEventListener: (type, listener) => { parts.click = listener; }}};
  return {dataset: {path: form.path}, querySelector: name => parts[name], parts};
});
globalThis.document = {
  documentElement: {dataset: {root: page.root}},
  querySelectorAll: () => forms,
  getElementById: () => page.key === null ? null : {value: page.key},
};
eval(page.script);
(async () => {
  for (const form of forms) await form.parts.click();
  const shown = forms.map(({parts}) => ({status: parts.span.textContent, text: parts.pre.textContent}));
  console.log(JSON.stringify({requests, shown}));
})();
"""


class Page(HTMLParser):
    """Parsed page: all tags, the forms with their paths, and the script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.forms: list[dict[str, str]] = []
        self.script = self.text = ""
        self.current_tag = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.current_tag = tag
        self.tags.append((tag, dict(attrs)))
        if tag == "details":
            self.forms.append({"path": dict(attrs)["data-path"] or "", "body": ""})

    def handle_endtag(self, tag: str) -> None:
        self.current_tag = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.current_tag == "script":
            self.script += data
        elif self.current_tag == "textarea":
            self.forms[-1]["body"] += data


def get_page(client: TestClient, **headers: str) -> Page:
    return Page(client.get("/docs", headers=headers).text)


def run_in_browser(found: Page, status: int, reply: str = "", *, root: str = "", key: str | None = None) -> Any:
    """Return the requests of the script and what it shows when every form is submitted."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    page_data = {"script": found.script, "forms": found.forms, "root": root, "key": key, "reply": reply}
    process = subprocess.run(
        [node, "--eval", BROWSER, str(status)], input=json.dumps(page_data), capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_every_supported_route_has_a_form_with_a_working_example(llm: LLM) -> None:
    client = make_client(llm)
    found = get_page(client)

    paths = client.get("/openapi.json").json()["paths"]
    assert [form["path"] for form in found.forms] == [
        path
        for path in paths
        if "requestBody" in paths[path].get("post", {}) and not path.startswith("/admin/") and "{" not in path
    ]
    assert "/classify" not in [form["path"] for form in found.forms]
    for form in found.forms:
        reply = client.post(form["path"], content=form["body"], headers={"content-type": "application/json"})
        assert reply.status_code == 200, reply.text
    for path, entry in paths.items():
        if "get" in entry:
            assert f"GET {path}" in found.text
    assert "Truncate inputs to this many tokens; -1 for the model maximum." in found.text


def test_the_page_loads_no_external_resources(llm: LLM) -> None:
    text = make_client(llm).get("/docs").text

    assert "http:" not in text and "https:" not in text and "//" not in text.replace("</", "")
    for tag, attributes in Page(text).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "form", "base")
        assert not {"src", "style", "onclick", "onload", "srcset", "action"} & attributes.keys()


def test_the_content_security_policy_allows_only_the_page_script(llm: LLM) -> None:
    client = make_client(llm)
    replies = [client.get("/docs") for _ in range(2)]

    nonces = set()
    for reply in replies:
        policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["connect-src"] == "'self'"
        found = re.fullmatch("'nonce-([A-Za-z0-9_-]{20,})'", policy["script-src"])
        assert found and policy["style-src"] == policy["script-src"]
        tag_nonces = [attributes["nonce"] for tag, attributes in Page(reply.text).tags if tag in ("script", "style")]
        assert tag_nonces == [found[1]] * 2
        nonces.add(found[1])
    assert len(nonces) == 2


def test_the_model_name_is_escaped(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    with LLM(str(tmp_path), dtype="float32", device="cpu", served_model_name=MALICIOUS_NAME) as llm:
        found = get_page(make_client(llm))

    assert MALICIOUS_NAME in found.text
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert MALICIOUS_NAME not in found.script


def test_the_script_sends_every_form_and_shows_the_response(llm: LLM) -> None:
    found = get_page(make_client(llm))

    result = run_in_browser(found, 200, '{"data":[1]}')

    assert [request["address"] for request in result["requests"]] == [form["path"] for form in found.forms]
    for request, form in zip(result["requests"], found.forms, strict=True):
        assert request["method"] == "POST" and request["headers"] == {"Content-Type": "application/json"}
        assert request["body"] == form["body"]
    assert result["shown"] == [{"status": "200  queue;dur=1", "text": '{\n "data": [\n  1\n ]\n}'}] * len(found.forms)


def test_the_script_shows_plain_text_replies_and_connection_errors(llm: LLM) -> None:
    found = get_page(make_client(llm))

    assert run_in_browser(found, 502, "<p>gone")["shown"][0] == {"status": "502  queue;dur=1", "text": "<p>gone"}
    assert run_in_browser(found, 0)["shown"][0] == {"status": "request failed: unreachable"}


def test_the_script_uses_the_root_path_and_the_api_key(llm: LLM) -> None:
    root = "/a'\"b<"
    client = make_client(llm, root_path=root, api_key=("secret",))
    found = get_page(client, authorization="Bearer secret")

    (data_root,) = [attributes["data-root"] for tag, attributes in found.tags if tag == "html"]
    assert data_root == root and ("a", {"href": f"{root}/openapi.json"}) in found.tags
    assert [attributes["type"] for tag, attributes in found.tags if tag == "input"] == ["password"]
    requests = run_in_browser(found, 200, root=root, key="secret")["requests"]
    assert requests[0]["address"] == f"{root}{found.forms[0]['path']}"
    assert requests[0]["headers"]["Authorization"] == "Bearer secret"


def test_every_route_has_an_example() -> None:
    for route in (route for dialect in DIALECTS for route in dialect.routes):
        assert route.example, route.paths
