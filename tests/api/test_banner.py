"""The startup banner names the kernels that a model runs with."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cenote import LLM
from cenote.api.app_state import AppState
from cenote.api.banner import BannerModel, describe_model, make_banner_rows
from cenote.config.server import ServerConfig

PRODUCTS = "int8 products, amx kernels, cosine 0.999926 with bfloat16"


def test_the_kernels_of_the_only_model_are_named(llm: LLM) -> None:
    info = replace(llm.engine.model_info, products=PRODUCTS)

    assert f"({PRODUCTS})" in make_banner_rows(AppState(ServerConfig()), "http://localhost", info)["runs"]


def test_the_kernels_of_each_of_several_models_are_named(llm: LLM) -> None:
    info = replace(llm.engine.model_info, products=PRODUCTS)

    assert f"on cpu ({PRODUCTS});" in describe_model(BannerModel(["a"], "ready", info))
    assert "on cpu;" in describe_model(BannerModel(["a"], "ready", replace(info, products=None)))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "not loaded at runtime, which needs an admin key (--admin-api-key)"),
        ({"admin_api_key": ("a",)}, "loaded and unloaded at runtime with an admin key"),
    ],
)
def test_the_banner_says_whether_adapters_can_be_loaded(settings: dict[str, Any], text: str, llm: LLM) -> None:
    allowed = AppState(ServerConfig(allow_runtime_lora_updating=True, **settings))
    plain = AppState(ServerConfig(**settings))

    assert make_banner_rows(allowed, "http://localhost", llm.engine.model_info)["adapters"] == text
    assert "adapters" not in make_banner_rows(plain, "http://localhost", llm.engine.model_info)


LOCKED = "all routes except health checks and pages"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "none: the API is open to every client that can connect, /admin to nobody (--admin-api-key)"),
        (
            {"allow_local_admin": True},
            "none: the API is open to every client that can connect, /admin to this machine (--allow-local-admin)",
        ),
        ({"api_key": ("a", "b")}, f"2 for {LOCKED}; none for /admin (--admin-api-key)"),
        ({"admin_api_key": ("a",)}, f"1 admin, required by {LOCKED}; add --api-key for clients that are no admins"),
        ({"api_key": ("a",), "admin_api_key": ("b",)}, f"1 for {LOCKED}, 1 admin for these and for /admin"),
    ],
)
def test_the_banner_says_which_key_opens_what(settings: dict[str, Any], text: str, llm: LLM) -> None:
    app_state = AppState(ServerConfig(**settings))

    assert make_banner_rows(app_state, "http://localhost", llm.engine.model_info)["API keys"] == text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "this machine only, as neither --host nor an API key is set; --host 0.0.0.0 opens it to others"),
        ({"api_key": ("a",)}, "other machines too, as API keys are set; --host 127.0.0.1 closes it to them"),
        ({"host": "10.0.0.1"}, "clients that reach 10.0.0.1 (--host)"),
        ({"host": ""}, "clients that reach any address of this machine (--host)"),
    ],
)
def test_the_banner_says_who_can_connect_and_why(settings: dict[str, Any], text: str, llm: LLM) -> None:
    app_state = AppState(ServerConfig(**settings))

    assert make_banner_rows(app_state, "http://localhost", llm.engine.model_info)["open to"] == text
