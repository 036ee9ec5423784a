"""The routes of all dialects by path; of a path with several routes, the keys of the body select one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

import msgspec

from cenote.api.auth import KnownPaths
from cenote.api.dialects.dialect import BodyKeys, Dialect, Route
from cenote.api.field_names import add_known_fields
from cenote.api.plain_route import PlainRoute
from cenote.api.replies import ErrorEncoder, encode_default_error
from cenote.api.request_body import NULL_JSON, decode, invalid_json_error, parse_body, read_type
from cenote.errors import InvalidBody, LoadError
from cenote.utils.lazy_property import lazy_property

MODEL_PARAMETER = "{model}"


class DialectRoute(NamedTuple):
    """A route and the dialect whose errors it returns."""

    dialect: Dialect
    route: Route

    @property
    def name(self) -> str:
        return f"{self.dialect.name}.{getattr(self.route.handler, '__name__', 'handler')}"


class PathRoutes:
    """The routes of one path, in the order in which they are tried: those with `body_keys` first."""

    def __init__(self, path: str, entries: Sequence[DialectRoute]) -> None:
        self.path = path
        self.entries = sorted(entries, key=lambda entry: entry.route.body_keys is None)
        for index, entry in enumerate(self.entries):
            for later in self.entries[index + 1 :]:
                check_reachable(path, entry, later)
        self.sole = self.entries[0] if len(self.entries) == 1 else None
        self.default = self.entries[-1]  # of errors before the body is known

    @lazy_property
    def key_type(self) -> Any:
        """The type of the keys that select a route."""
        names = sorted({name for entry in self.entries for name in entry.route.body_keys or ()})
        return msgspec.defstruct("Keys", [(name, msgspec.Raw, NULL_JSON) for name in names])

    @lazy_property
    def key_decoder(self) -> Any:
        return msgspec.json.Decoder(self.key_type)

    def select(self, raw: bytes) -> DialectRoute:
        """Return the route for a body, of several."""
        try:
            keys = decode(self.key_decoder, raw)
        except msgspec.ValidationError:  # not an object
            keys = self.key_type()
        except msgspec.DecodeError:
            parse_body(self.default.route.body_type, raw)  # raises; a Raw body is not parsed
            raise invalid_json_error("the body is not valid JSON") from None
        except RecursionError:
            raise invalid_json_error("the body is nested too deeply") from None
        for entry in self.entries:
            if matches(keys, entry.route.body_keys):
                return entry
        expected = [" + ".join(entry.route.body_keys or ()) for entry in self.entries]
        raise InvalidBody(
            f"the body has none of the keys by which {self.path} selects a format: {', or '.join(expected)}",
            param="body",
        )


class RouteTable(KnownPaths):
    """All paths of the dialects, and of the server itself."""

    def __init__(self, dialects: Sequence[Dialect], plain_routes: Sequence[PlainRoute] = ()) -> None:
        entries: dict[str, list[DialectRoute]] = {}
        for dialect in dialects:
            for route in dialect.routes:
                for path in route.paths:
                    entries.setdefault(path, []).append(DialectRoute(dialect, route))
        for route in (entry.route for routes in entries.values() for entry in routes):
            add_known_fields(list_body_fields(route.body_type))
            add_known_fields(list_body_fields(route.documented_body_type))
        self.dialects = dialects
        self.by_path = {path: PathRoutes(path, routes) for path, routes in entries.items()}
        self.routes: list[Route] = [route for dialect in dialects for route in dialect.routes]
        self.plain_routes: list[tuple[PlainRoute, Dialect | None]] = [
            *((route, None) for route in plain_routes),
            *((route, dialect) for dialect in dialects for route in dialect.plain_routes),
        ]
        super().__init__([route for route, _ in self.plain_routes])
        self.generation_paths = {path: dialect for dialect in dialects for path in dialect.generation_paths}
        self._patterns = [(compile_path(path), path) for path in self.by_path if MODEL_PARAMETER in path]
        self._generation_patterns = [
            (compile_path(path), path) for path in self.generation_paths if MODEL_PARAMETER in path
        ]
        self._encoders_by_other_path = {
            path: dialect.encode_error
            for route, dialect in self.plain_routes
            if dialect is not None
            for path in route.paths
        } | {path: dialect.encode_error for path, dialect in self.generation_paths.items()}

    def match(self, path: str) -> tuple[str, str] | None:
        """Return the path of the table that matches and the name of the model in it; None for other paths."""
        for pattern, known in self._patterns:
            if match := pattern.fullmatch(path):
                return known, match["model"]
        return None

    def find_error_encoder(self, path: str) -> ErrorEncoder:
        """Return the encoder for errors before the body is known; the default one for unknown paths."""
        if path not in self.by_path and (found := self.match(path)) is not None:
            path = found[0]
        for pattern, known in self._generation_patterns:
            if pattern.fullmatch(path):
                path = known
        if (routes := self.by_path.get(path)) is not None:
            return routes.default.dialect.encode_error
        return self._encoders_by_other_path.get(path, encode_default_error)


def list_body_fields(body_type: Any) -> Iterator[str]:
    """Yield the fields of a body type, or of each type of a union."""
    for part in get_args(body_type) or (body_type,):
        yield from getattr(part, "__struct_encode_fields__", ())


def compile_path(path: str) -> re.Pattern[str]:
    """Return the pattern of a path with a model name, which may contain slashes."""
    before, _, after = path.partition(MODEL_PARAMETER)
    return re.compile(f"{re.escape(before)}(?P<model>.+){re.escape(after)}")


def matches(keys: object, body_keys: BodyKeys | None) -> bool:
    return all(read_type(getattr(keys, name)) in types for name, types in (body_keys or {}).items())


def check_reachable(path: str, entry: DialectRoute, later: DialectRoute) -> None:
    """Raise if every body of the later route would go to the first one."""
    first, second = entry.route.body_keys or {}, later.route.body_keys or {}
    if all(name in second and second[name] <= types for name, types in first.items()):
        raise LoadError(
            f"{path} belongs to the routes {entry.name} and {later.name}, and no key of the body tells them apart; set "
            "body_keys of one of them to keys that only its bodies have"
        )
