"""Files of the pages: headers, caching, compression, sizes, hashes of vendored libraries, and --disable-ui."""

from __future__ import annotations

import json
import logging
import re
import tomllib
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.static_files import CONTENT_SECURITY_POLICY, read_files
from tests.api.app_client import make_client
from tools.vendor_ui import MANIFEST, find_changed

ROOT = Path(__file__).parents[2]
BROWSER = {"accept": "text/html,application/xhtml+xml"}
MAX_BYTES = 300_000  # of the playground


def test_browsers_get_the_playground_at_the_root_and_other_clients_do_not(client: TestClient) -> None:
    page = client.get("/", headers=BROWSER)

    assert page.status_code == 200 and "<title>Cenote playground</title>" in page.text
    assert client.head("/", headers=BROWSER).status_code == 200
    assert client.get("/", headers={"accept": "*/*"}).headers["content-type"].startswith("text/plain")
    assert client.post("/", json={"inputs": "the cat"}, headers=BROWSER).status_code == 200


def test_the_policy_allows_nothing_inline_no_other_host_and_no_frame(client: TestClient) -> None:
    for path in ("/", "/ui/app.js", "/docs", "/docs/docs.js"):
        headers = client.get(path, headers=BROWSER).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    policy = dict(part.strip().split(" ", 1) for part in CONTENT_SECURITY_POLICY.split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_files_are_cached_by_etag_and_compressed(client: TestClient) -> None:
    first = client.get("/ui/app.js", headers={"accept-encoding": "gzip"})
    etag = first.headers["etag"]

    assert first.headers["content-encoding"] == "gzip" and first.headers["cache-control"] == "no-cache"
    for known in (etag, f"W/{etag}", f'"other", {etag}'):
        again = client.get("/ui/app.js", headers={"if-none-match": known})
        assert again.status_code == 304 and not again.content and again.headers["etag"] == etag
    assert client.get("/ui/app.js", headers={"if-none-match": '"other"'}).status_code == 200


def test_every_file_that_a_file_names_exists(client: TestClient) -> None:
    files = {path: file.content.decode() for path, file in read_files("playground").items()}

    for path, text in files.items():
        if path.startswith("vendor/"):
            continue
        folder = path.rpartition("/")[0]
        names = re.findall(r'(?:from|import)\(? ?"(\.[^"]+)"', text) if path.endswith(".js") else []
        for name in names:
            assert (ROOT / "cenote/ui/playground" / folder / name).resolve().is_file(), (path, name)
        for name in re.findall(r'(?:href|src)="ui/([^"]+)"', text):
            assert client.get(f"/ui/{name}").status_code == 200, name


def test_the_playground_is_small_and_names_no_other_host() -> None:
    files = read_files("playground")

    assert sum(len(file.content) for path, file in files.items() if "LICENSE" not in path) <= MAX_BYTES
    for path, file in files.items():
        if not path.startswith("vendor/") and not path.endswith(".svg"):
            assert "://" not in file.content.decode(), path


def test_vendored_libraries_are_those_of_the_manifest_and_have_licences() -> None:
    manifest = json.loads(MANIFEST.read_text())

    assert find_changed(manifest) == []
    vendored = {*(ROOT / "cenote/ui/playground/vendor").iterdir(), *(ROOT / "cenote/ui/docs").glob("*swagger*")}
    assert vendored <= {ROOT / name for name in manifest["sha256"]}
    for package in manifest["packages"]:
        assert any("LICENSE" in source for source in package["files"]), package["name"]


def test_a_changed_library_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = json.loads(MANIFEST.read_text())
    name = next(iter(manifest["sha256"]))

    assert find_changed({"sha256": manifest["sha256"] | {name: "0" * 64, "cenote/ui/missing.js": "0" * 64}}) == [
        name,
        "cenote/ui/missing.js",
    ]


def test_the_wheel_is_told_to_contain_the_pages() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["cenote"]

    packed = {path for pattern in settings for path in (ROOT / "cenote").glob(pattern) if path.is_file()}
    assert {path for path in (ROOT / "cenote/ui").rglob("*") if path.is_file()} <= packed


def test_pages_need_no_key_and_what_they_show_does(llm: LLM) -> None:
    client = make_client(llm, api_key=("secret",))

    for path in ("/", "/ui/app.js", "/docs", "/docs/docs.js"):
        assert client.get(path, headers=BROWSER).status_code == 200
    for path in ("/v1/models", "/metrics", "/openapi.json", "/admin/models"):
        assert client.get(path, headers=BROWSER).status_code == 401
    assert client.get("/", headers={"accept": "*/*"}).status_code == 401
    for method, path in (("POST", "/ui/app.js"), ("GET", "/ui/unknown.js"), ("POST", "/")):
        assert client.request(method, path, headers=BROWSER).status_code == 401


def test_the_playground_can_be_disabled(llm: LLM) -> None:
    client = make_client(llm, disable_ui=True)

    assert client.get("/", headers=BROWSER).headers["content-type"].startswith("text/plain")
    assert client.get("/ui/app.js").status_code == 404
    assert client.get("/docs").status_code == 200


def test_the_access_log_has_pages_and_not_their_files(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cenote.access"):
        for path in ("/", "/ui/app.js", "/docs/docs.js"):
            assert client.get(path, headers=BROWSER).status_code == 200

    assert [record.fields["path"] for record in caplog.records] == ["/"]  # type: ignore[attr-defined]


def test_cards_of_models_say_what_they_can_do(client: TestClient) -> None:
    (card,) = client.get("/v1/models").json()["data"]

    assert card["tasks"] == ["embed", "token_embed"] and card["score_types"][0] == "bi-encoder"
    assert (card["embedding_size"], card["pooling"], card["labels"]) == (384, "MEAN", None)
    assert (card["supports_images"], card["supports_entities"], card["prompts"]) == (False, False, [])
