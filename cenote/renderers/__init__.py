"""The renderer object of plugins, under its name in `vllm.renderers`."""

from cenote.engine.tasks.io_processor import PluginRenderer as BaseRenderer

__all__ = ["BaseRenderer"]
