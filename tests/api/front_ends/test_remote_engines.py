"""RemoteEngines: what a front-end takes from engines that become ready after it."""

from __future__ import annotations

import asyncio

from cenote import LLM
from cenote.api.app_state import AppState
from cenote.api.front_ends.remote_engines import RemoteEngines
from cenote.api.wire.control_messages import ModelState, ModelStates
from cenote.api.wire.messages import Message
from cenote.config.server import ServerConfig
from tests.api.front_ends.remote_link import attach_engine


class NoReports:
    def report(self, message: Message) -> None: ...


def make_loading_state(engine_id: int) -> ModelState:
    return ModelState("mini", (), "mini", True, "loading", "", True, True, (engine_id,), 0, b"")


async def test_a_request_that_outlives_the_unloading_of_its_model_ends_without_an_error(llm: LLM) -> None:
    """The supervisor waits for some minutes, and gives up then."""

    app_state = AppState(ServerConfig())
    engines = RemoteEngines(app_state, NoReports())
    engines.set_models(ModelStates([make_loading_state(1)]))
    link = await attach_engine(engines.engines[1], llm.engine)
    use = app_state.models.first.use
    assert use is not None
    use.num_users += 1  # a request
    engines.set_models(ModelStates([]))
    released = asyncio.get_running_loop().create_future()
    engines.release(1, released)
    assert not released.done()
    released.cancel()

    use.release()

    is_closed = not engines.engines
    link.channel.close()
    await asyncio.sleep(0.01)

    assert is_closed
