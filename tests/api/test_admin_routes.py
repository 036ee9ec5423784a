"""Who may use admin routes of a server without API keys."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import make_client

ADMIN_ROUTES = [
    ("GET", "/admin/models"),
    ("POST", "/admin/models/load"),
    ("POST", "/admin/models/unload"),
    ("POST", "/admin/models/reload"),
    ("POST", "/admin/shutdown"),
]


def on_this_machine(client: TestClient) -> TestClient:
    return TestClient(client.app, base_url="http://127.0.0.1:8000", client=("127.0.0.1", 1))


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
def test_they_are_off_by_default_also_for_this_machine(llm: LLM, method: str, path: str) -> None:
    """A plain proxy on the same machine, which sets no header, makes every client look like one of this machine."""
    client = on_this_machine(make_client(llm))

    reply = client.request(method, path, json={"name": "model"})

    assert reply.status_code == 403
    assert "admin routes are off: set --admin-api-key or" in reply.json()["message"]
    assert "--allow-local-admin" in reply.json()["message"]


def test_an_option_opens_them_to_this_machine_only(llm: LLM) -> None:
    client = make_client(llm, allow_local_admin=True)

    assert on_this_machine(client).get("/admin/models").status_code == 200
    assert client.get("/admin/models").status_code == 403
    own_page = {"origin": "http://127.0.0.1:8000"}
    assert on_this_machine(client).get("/admin/models", headers=own_page).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-for": "10.0.0.9"},  # of a proxy
        {"origin": "https://pages.example"},
        {"origin": "null"},
        {"host": "pages.example:8000"},  # which resolves to this machine
    ],
    ids=str,
)
def test_the_option_opens_nothing_to_clients_of_a_proxy_and_to_pages_of_other_sites(
    llm: LLM, headers: dict[str, str]
) -> None:
    client = on_this_machine(make_client(llm, allow_local_admin=True))

    for method, path in ADMIN_ROUTES:
        assert client.request(method, path, headers=headers).status_code == 403


def test_the_option_opens_nothing_on_a_server_with_keys(llm: LLM) -> None:
    client = on_this_machine(make_client(llm, allow_local_admin=True, api_key=("key",)))

    assert client.get("/admin/models").status_code == 401
    assert client.get("/admin/models", headers={"Authorization": "Bearer key"}).status_code == 403
