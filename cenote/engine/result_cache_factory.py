"""Create the result cache of an engine from its options, and register its metrics."""

from __future__ import annotations

from pathlib import Path

from cenote.cache.result_cache import ResultCache
from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.cache_key import compute_cache_key
from cenote.loading.model_description import ModelDescription
from cenote.utils.metrics import MetricsRegistry


def make_result_cache(
    description: ModelDescription, config: EngineConfig, metrics: MetricsRegistry
) -> ResultCache | None:
    """Return the result cache; None if it is disabled."""
    if not config.result_cache_bytes and config.result_cache_dir is None:
        return None
    folder = None if config.result_cache_dir is None else Path(config.result_cache_dir).expanduser()
    try:
        cache = ResultCache(
            compute_cache_key(description, config),
            memory_bytes=config.result_cache_bytes,
            folder=folder,
            disk_bytes=config.result_cache_disk_bytes,
            is_shared=config.result_cache_shared,
        )
    except Exception as error:  # folder missing or not writable, Python without SQLite
        raise LoadError(f"result_cache_dir {folder} cannot be used: {error}") from error
    _register_metrics(cache, metrics)
    return cache


def _register_metrics(cache: ResultCache, metrics: MetricsRegistry) -> None:
    metrics.gauge("cenote_cache_hits_total", "Inputs found in the result cache.", lambda: cache.num_hits, "counter")
    metrics.gauge(
        "cenote_cache_misses_total", "Inputs not found in the result cache.", lambda: cache.num_misses, "counter"
    )
    metrics.gauge(
        "cenote_cache_evictions_total", "Results evicted from the cache.", lambda: cache.num_evicted, "counter"
    )
    metrics.gauge("cenote_cache_memory_bytes", "Memory used by the result cache.", lambda: cache.num_bytes[0])
    metrics.gauge("cenote_cache_disk_bytes", "Disk space used by the result cache.", lambda: cache.num_bytes[1])
    metrics.gauge(
        "cenote_cache_broken_total",
        "Corrupted entries found in the result cache on disk.",
        lambda: 0 if cache.disk is None else cache.disk.num_corrupted,
        "counter",
    )
