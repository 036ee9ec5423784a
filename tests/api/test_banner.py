"""The startup banner names the kernels that a model runs with."""

from __future__ import annotations

from dataclasses import replace

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
