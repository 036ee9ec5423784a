"""SelectedModel: the model that a request uses, and the engine of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cenote.api.admission.request_admission import RequestAdmission
from cenote.api.handler_thread import TO_LOOP, TO_THREAD
from cenote.api.served_models import EngineUse, Selection, ServedModel
from cenote.errors import NotOffered, PoolingError, RouteNotFound
from cenote.protocol.engine import Engine
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import Role

if TYPE_CHECKING:
    from cenote.api.app_state import AppState


class ModelRoute(Protocol):
    """What a route says of the models that it serves."""

    is_absent_if_unsupported: bool

    @property
    def api_name(self) -> str: ...

    def is_supported(self, model_info: ModelInfo) -> bool: ...


class SelectedModel:
    engine: Engine  # of the model that `select_model` has selected
    model: str  # its name in responses, whichever the request used
    is_in_thread = False  # the handler runs outside of the event loop now: see `handle_in_thread`

    def __init__(
        self,
        app_state: AppState,
        route: ModelRoute,
        admission: RequestAdmission,
        header_model: bytes | None,
        path_model: str | None,
    ) -> None:
        self.models, self.settings = app_state.models, app_state.settings
        self.route = route
        self.admission = admission
        self.header_model = header_model
        self.path_model = path_model
        self.is_model_chosen = False  # of several, by the route, as the request names none
        self.adapter: str | None = None  # adapter that the request names as its model
        self.role: Role | None = None  # whose prompt is used, by the name of the model
        self._load = app_state.load_model
        self._use: EngineUse | None = None

    @property
    def model_info(self) -> ModelInfo:
        return self.engine.model_info

    async def select_model(
        self, name: str | None, *, param: str | None = None, is_able: Callable[[ModelInfo], bool] = bool
    ) -> None:
        """Select the model that a request names, for all that follows; without a name, the one that supports the route.

        Waits until it is loaded. The name of an adapter selects its model, and the adapter for all inputs. `is_able`:
        whether a model can do what the body asks for, besides supporting the route.
        """
        if self.path_model is not None:
            name = self._resolve_path_model(self.path_model)
        elif name is None:
            name = None if self.header_model is None else self.header_model.decode("latin-1")
        if moves := self.is_in_thread:
            await TO_LOOP
        model = self.models.by_name.get(name)
        if model is None:
            model, self.adapter, self.role = self._find(name, param, is_able)
        use, is_checked = model.use, self.models.sole is not None  # that of a single model, before the body is read
        if use is None or not use.is_ready:
            use = await model.wait(self._load, self.admission.deadline_at, self.settings.replay_timeout_s)
            is_checked = False
        if use is not self._use:
            self.release()
            use.num_users += 1
            self._use, self.engine, self.admission.controller = use, use.engine, use.admission
        self.model = model.name
        if not is_checked and not self.route.is_supported(use.engine.model_info):
            raise self._make_unsupported_error(model)
        if moves:
            await TO_THREAD

    def _resolve_path_model(self, name: str) -> str:
        """Return the name; with a slash before it if it is a folder, whose slash was merged with that of the path."""
        return name if self.models.find(name) is not None or self.models.find(f"/{name}") is None else f"/{name}"

    def _find(self, name: str | None, param: str | None, is_able: Callable[[ModelInfo], bool]) -> Selection:
        if name is None or (self.settings.skip_model_name_validation and self.models.find(name) is None):
            self.is_model_chosen = True
            return Selection(self.models.choose(self.route.is_supported, is_able))
        return self.models.require(name, param)

    def _make_unsupported_error(self, model: ServedModel) -> PoolingError:
        others = [other.name for other in self.models.list_supporting(self.route.is_supported) if other is not model]
        advice = f"models of this server that do: {', '.join(others)}" if others else "no model of this server does"
        return make_unsupported_error(self.route, self.engine.model_info, advice)

    def release(self) -> None:
        """The request does not use its engine any more."""
        if self._use is not None:
            self._use.release()
            self._use = None


def make_unsupported_error(route: ModelRoute, model_info: ModelInfo, advice: str) -> PoolingError:
    error_type = RouteNotFound if route.is_absent_if_unsupported else NotOffered
    return error_type(
        f"The model does not support {route.api_name} API. {model_info.name} ({model_info.architecture}) "
        f"supports the tasks {', '.join(model_info.tasks)}; {advice}"
    )
