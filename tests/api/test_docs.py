"""The page of routes: complete, harmless whatever the model is called, and with a script that works."""

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

# enough of a browser for the page's own script: every form is sent once, and what the page then shows is printed
BROWSER = """
const [page, status] = [JSON.parse(require("fs").readFileSync(0, "utf8")), Number(process.argv[1])];
const asked = [];
globalThis.fetch = async (address, options) => {
  asked.push({address, ...options});
  if (!status) throw new TypeError("unreachable");
  return {status, headers: {get: () => "queue;dur=1"}, text: async () => page.reply};
};
const places = page.places.map(place => {
  const parts = {span: {}, pre: {hidden: true}, textarea: {value: place.body},
    button: {addEventListener: (kind, then) => { parts.click = then; }}};
  return {dataset: {path: place.path}, querySelector: name => parts[name], parts};
});
globalThis.document = {
  documentElement: {dataset: {root: page.root}},
  querySelectorAll: () => places,
  getElementById: () => page.key === null ? null : {value: page.key},
};
eval(page.script);
(async () => {
  for (const place of places) await place.parts.click();
  const shown = places.map(({parts}) => ({note: parts.span.textContent, text: parts.pre.textContent}));
  console.log(JSON.stringify({asked, shown}));
})();
"""


class Page(HTMLParser):
    """What is on the page: all tags, the forms by their paths, the script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.places: list[dict[str, str]] = []
        self.script = self.text = ""
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.tags.append((tag, dict(attrs)))
        if tag == "details":
            self.places.append({"path": dict(attrs)["data-path"] or "", "body": ""})

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.inside == "script":
            self.script += data
        elif self.inside == "textarea":
            self.places[-1]["body"] += data


def page(client: TestClient, **headers: str) -> Page:
    return Page(client.get("/docs", headers=headers).text)


def run_in_browser(found: Page, status: int, reply: str = "", *, root: str = "", key: str | None = None) -> Any:
    """What the script asks for and shows when every form is sent."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    given = {"script": found.script, "places": found.places, "root": root, "key": key, "reply": reply}
    done = subprocess.run(
        [node, "--eval", BROWSER, str(status)], input=json.dumps(given), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_route_that_is_offered_has_a_form_with_an_example_that_works(llm: LLM) -> None:
    client = make_client(llm)
    found = page(client)

    told = client.get("/openapi.json").json()["paths"]
    assert [place["path"] for place in found.places] == [
        path for path in told if "requestBody" in told[path].get("post", {})
    ]
    assert "/classify" not in [place["path"] for place in found.places]
    for place in found.places:
        reply = client.post(place["path"], content=place["body"], headers={"content-type": "application/json"})
        assert reply.status_code == 200, reply.text
    for path, entry in told.items():
        if "get" in entry:
            assert f"GET {path}" in found.text
    assert "cut longer inputs; -1: to what the model reads" in found.text


def test_the_page_needs_nothing_from_elsewhere(llm: LLM) -> None:
    text = make_client(llm).get("/docs").text

    assert "http:" not in text and "https:" not in text and "//" not in text.replace("</", "")
    for tag, attributes in Page(text).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "form", "base")
        assert not {"src", "style", "onclick", "onload", "srcset", "action"} & attributes.keys()


def test_the_browser_is_told_to_run_nothing_but_the_script_of_this_page(llm: LLM) -> None:
    client = make_client(llm)
    replies = [client.get("/docs") for _ in range(2)]

    nonces = set()
    for reply in replies:
        policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["connect-src"] == "'self'"
        found = re.fullmatch("'nonce-([A-Za-z0-9_-]{20,})'", policy["script-src"])
        assert found and policy["style-src"] == policy["script-src"]
        own = [attributes["nonce"] for tag, attributes in Page(reply.text).tags if tag in ("script", "style")]
        assert own == [found[1]] * 2
        nonces.add(found[1])
    assert len(nonces) == 2


def test_the_name_of_a_model_is_text_and_nothing_else(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    with LLM(str(tmp_path), dtype="float32", device="cpu", served_model_name=MALICIOUS_NAME) as llm:
        found = page(make_client(llm))

    assert MALICIOUS_NAME in found.text
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert MALICIOUS_NAME not in found.script


def test_the_script_sends_every_form_and_shows_the_answer(llm: LLM) -> None:
    found = page(make_client(llm))

    happened = run_in_browser(found, 200, '{"data":[1]}')

    assert [each["address"] for each in happened["asked"]] == [place["path"] for place in found.places]
    for each, place in zip(happened["asked"], found.places, strict=True):
        assert each["method"] == "POST" and each["headers"] == {"Content-Type": "application/json"}
        assert each["body"] == place["body"]
    assert happened["shown"] == [{"note": "200  queue;dur=1", "text": '{\n "data": [\n  1\n ]\n}'}] * len(found.places)


def test_the_script_shows_plain_text_replies_and_connection_errors(llm: LLM) -> None:
    found = page(make_client(llm))

    assert run_in_browser(found, 502, "<p>gone")["shown"][0] == {"note": "502  queue;dur=1", "text": "<p>gone"}
    assert run_in_browser(found, 0)["shown"][0] == {"note": "no answer: unreachable"}


def test_behind_a_proxy_and_with_keys_the_script_asks_where_and_as_it_must(llm: LLM) -> None:
    root = "/a'\"b<"
    client = make_client(llm, root_path=root, api_key=("secret",))
    found = page(client, authorization="Bearer secret")

    (told,) = [attributes["data-root"] for tag, attributes in found.tags if tag == "html"]
    assert told == root and ("a", {"href": f"{root}/openapi.json"}) in found.tags
    assert [attributes["type"] for tag, attributes in found.tags if tag == "input"] == ["password"]
    asked = run_in_browser(found, 200, root=root, key="secret")["asked"]
    assert asked[0]["address"] == f"{root}{found.places[0]['path']}"
    assert asked[0]["headers"]["Authorization"] == "Bearer secret"


def test_every_route_has_an_example_to_show() -> None:
    for route in (route for dialect in DIALECTS for route in dialect.routes):
        assert route.example, route.paths
