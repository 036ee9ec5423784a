"""The services of the gRPC server: a handler for every method of the .proto files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from cenote.api.app_state import AppState
from cenote.api.dialects.dialect import Route
from cenote.api.dialects.tei import TEI
from cenote.api.grpc import health_pb2, tei_handlers, tei_pb2
from cenote.api.grpc.calls import CallRunner, Handler, encode_metadata
from cenote.api.grpc.health import HealthService
from cenote.api.grpc.messages import MessageParser
from cenote.api.grpc.receiver import Receiver

ROUTES = {path: route for route in TEI.routes for path in route.paths}
ANY_MODEL = ROUTES["/decode"]  # a route that every model supports

# method -> the HTTP route that needs the same task, and the handler
TEI_METHODS: dict[str, tuple[Route, Handler]] = {
    "Info.Info": (ANY_MODEL, tei_handlers.info),
    "Embed.Embed": (ROUTES["/embed"], tei_handlers.embed),
    "Embed.EmbedStream": (ROUTES["/embed"], tei_handlers.embed),
    "Embed.EmbedSparse": (ROUTES["/embed_sparse"], tei_handlers.embed_sparse),
    "Embed.EmbedSparseStream": (ROUTES["/embed_sparse"], tei_handlers.embed_sparse),
    "Embed.EmbedAll": (ROUTES["/embed_all"], tei_handlers.embed_all),
    "Embed.EmbedAllStream": (ROUTES["/embed_all"], tei_handlers.embed_all),
    "Predict.Predict": (ROUTES["/predict"], tei_handlers.predict),
    "Predict.PredictPair": (ROUTES["/predict"], tei_handlers.predict_pair),
    "Predict.PredictStream": (ROUTES["/predict"], tei_handlers.predict),
    "Predict.PredictPairStream": (ROUTES["/predict"], tei_handlers.predict_pair),
    "Rerank.Rerank": (ROUTES["/rerank"], tei_handlers.rerank),
    "Rerank.RerankStream": (ROUTES["/rerank"], tei_handlers.rerank_stream),
    "Tokenize.Tokenize": (ANY_MODEL, tei_handlers.tokenize),
    "Tokenize.TokenizeStream": (ANY_MODEL, tei_handlers.tokenize),
    "Tokenize.Decode": (ANY_MODEL, tei_handlers.decode),
    "Tokenize.DecodeStream": (ANY_MODEL, tei_handlers.decode),
}


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """Refuse calls without a valid API key before their messages are received; health needs no key."""

    def __init__(self, app_state: AppState, runners: Mapping[str, CallRunner]) -> None:
        """`runners`: of the methods that need a key, by path."""
        self.api_keys = app_state.api_keys
        self.runners = runners

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        runner = self.runners.get(call.method)
        if runner is None or self.api_keys.find(encode_metadata(call.invocation_metadata).items()) is not None:
            return await continuation(call)
        return grpc.stream_stream_rpc_method_handler(runner.refuse)  # a stream is not read unless its handler does so


def make_services(app_state: AppState) -> tuple[list[Any], dict[str, CallRunner]]:
    """Return the handlers of all services, for grpc.aio.Server, and what runs the calls of each path but health."""
    services: dict[str, list[Route]] = {}
    settings = app_state.settings
    receiver = Receiver(settings.max_inflight_bytes // 2 // settings.api_server_count)
    handlers, runners = [], {}
    for service in tei_pb2.DESCRIPTOR.services_by_name.values():
        methods = {}
        for method in service.methods:
            route, handler = TEI_METHODS[f"{service.name}.{method.name}"]
            services.setdefault(service.full_name, []).append(route)
            path = f"/{service.full_name}/{method.name}"
            parser = MessageParser(method.input_type, settings.max_request_items)
            runners[path] = CallRunner(path, route, handler, parser, app_state, receiver)
            methods[method.name] = make_method_handler(method, runners[path])
        handlers.append(grpc.method_handlers_generic_handler(service.full_name, methods))
    return [*handlers, make_health_handler(HealthService(app_state, services))], runners


def make_method_handler(method: Any, runner: CallRunner) -> Any:
    """Return the handler of a method, of which `method` is the descriptor.

    gRPC receives the message of a unary call before its handler runs, and sends the response when it has returned. To
    it every call is a stream, so that the handler decides when to receive, and knows when the response was sent.
    """
    run = runner.run_stream
    if not method.server_streaming:
        run = runner.run_client_stream if method.client_streaming else runner.run_unary
    serialize = GetMessageClass(method.output_type).SerializeToString
    return grpc.stream_stream_rpc_method_handler(run, response_serializer=serialize)


def make_health_handler(health: HealthService) -> Any:
    codecs = {
        "request_deserializer": health_pb2.HealthCheckRequest.FromString,
        "response_serializer": health_pb2.HealthCheckResponse.SerializeToString,
    }
    methods = {
        "Check": grpc.unary_unary_rpc_method_handler(health.check, **codecs),
        "Watch": grpc.unary_stream_rpc_method_handler(health.watch, **codecs),
    }
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)
