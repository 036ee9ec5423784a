"""Documentation page: Swagger UI from this server only, and an example for every route."""

from __future__ import annotations

import re

from cenote import LLM
from cenote.api.dialects import DIALECTS
from tests.api.app_client import make_client


def test_the_page_and_its_files_come_from_this_server_without_inline_scripts(llm: LLM) -> None:
    client = make_client(llm, root_path="/p", api_key=("secret",))
    reply = client.get("/p/docs")

    assert reply.status_code == 200 and reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "style=" not in reply.text and "<script>" not in reply.text and "//" not in reply.text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', reply.text)
    assert "docs/swagger-ui-bundle.js" in addresses
    for address in addresses:
        assert client.get(f"/p/{address}").status_code == 200, address
    assert client.get("/p/openapi.json").status_code == 401


def test_large_files_are_stored_and_sent_compressed(llm: LLM) -> None:
    client = make_client(llm)
    compressed = client.get("/docs/swagger-ui-bundle.js", headers={"accept-encoding": "gzip"})
    plain = client.get("/docs/swagger-ui-bundle.js", headers={"accept-encoding": "identity"})

    assert compressed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert int(compressed.headers["content-length"]) < 500_000 < int(plain.headers["content-length"])
    assert compressed.content == plain.content and compressed.headers["content-type"].startswith("text/javascript")


def test_every_route_has_an_example() -> None:
    for route in (route for dialect in DIALECTS for route in dialect.routes):
        assert route.example, route.paths
