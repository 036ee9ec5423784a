"""Read the Router of a Sentence Transformers model: different modules for queries and documents."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.protocol.params import Role

ROUTER_KINDS = ("Router", "Asym")
ROUTER_FILES = ("router_config.json", "config.json")  # the second is that of Asym, its former name
ROLES: tuple[Role, ...] = ("query", "document")


@dataclass(frozen=True, slots=True)
class ModuleRoute:
    """A route of a Router and the roles of the inputs that take it."""

    name: str
    modules: tuple[tuple[str, str], ...]  # type and folder
    roles: tuple[Role, ...]
    file: str = ROUTER_FILES[0]  # that defines it


@dataclass(frozen=True, slots=True)
class Router:
    routes: tuple[ModuleRoute, ...]  # the default, for inputs without a role, first
    file: str
    source: str

    def select(self, name: str | None) -> ModuleRoute:
        """Return a route by name; None: the default."""
        return self.routes[0] if name is None else next(route for route in self.routes if route.name == name)


def read_router(checkpoint: Checkpoint, folder: str) -> Router:
    file = next(
        (str(path) for name in ROUTER_FILES if checkpoint.find_file(str(path := PurePosixPath(folder) / name))), None
    )
    if file is None:
        raise LoadError(f"{checkpoint.folder / folder / ROUTER_FILES[0]} is missing; download the model again")
    values, source = checkpoint.read_json_object(file), (checkpoint.folder / file).as_posix()
    types, structure, parameters = (values.get(key) for key in ("types", "structure", "parameters"))
    if not isinstance(types, dict) or not isinstance(structure, dict) or not structure:
        raise LoadError(f"{source}: types and structure must be mappings; download the model again")
    parameters = parameters if isinstance(parameters, dict) else {}
    targets = {role: _resolve_route(role, structure, parameters, source) for role in (None, *ROLES)}
    names = dict.fromkeys(targets.values())
    if unused := [name for name in structure if name not in names]:
        raise LoadError(
            f"{source}: route {unused[0]!r} is not supported; expected routes for the tasks query and document"
        )
    routes = tuple(
        ModuleRoute(name, _read_modules(name, structure, types, folder, source), _roles_of(name, targets))
        for name in names
    )
    return Router(routes, PurePosixPath(file).name, source)


def _roles_of(name: str, targets: Mapping[Role | None, str]) -> tuple[Role, ...]:
    return tuple(role for role in ROLES if targets[role] == name)


def _read_modules(
    name: str, structure: dict[str, Any], types: dict[str, Any], folder: str, source: str
) -> tuple[tuple[str, str], ...]:
    modules = structure[name]
    if not isinstance(modules, list) or not modules or not all(isinstance(types.get(item), str) for item in modules):
        raise LoadError(f"{source}: route {name!r} is {modules!r}; expected a list of modules in types")
    # the module "" is in the root
    return tuple((types[item], str(PurePosixPath(folder) / item) if folder or item else "") for item in modules)


def _resolve_route(role: Role | None, structure: dict[str, Any], parameters: dict[str, Any], source: str) -> str:
    """Return the route of texts of a role: by route_mappings, else of that name; without a role, the default."""
    mappings = _read_mappings(parameters.get("route_mappings") or {}, source)
    for key in ((role, "text"), (role, None), (None, "text"), (None, None)):
        if key in mappings:
            return _check_route(mappings[key], structure, source)
    if role in structure:
        return role
    if "text" in structure:
        return "text"
    if role is not None:
        raise LoadError(f"{source} has no route for the task {role!r}; it has: {', '.join(structure)}")
    default = parameters.get("default_route")
    if default is None and parameters.get("allow_empty_key", True):
        default = next(iter(structure))
    if default is None:
        raise LoadError(f"{source} has no default_route for texts without a task; add one of: {', '.join(structure)}")
    return _check_route(default, structure, source)


def _check_route(name: Any, structure: dict[str, Any], source: str) -> str:
    if name not in structure:
        raise LoadError(f"{source}: unknown route {name!r}; expected one of: {', '.join(structure)}")
    return str(name)


def _read_mappings(mappings: Any, source: str) -> dict[tuple[str | None, Any], Any]:
    """Return route_mappings, whose keys are written as Python tuples of task and modality."""
    try:
        return {ast.literal_eval(key): value for key, value in mappings.items()}
    except (AttributeError, ValueError, SyntaxError, TypeError):
        raise LoadError(
            f"{source}: route_mappings is {mappings!r}; expected names by tuples of task and modality"
        ) from None
