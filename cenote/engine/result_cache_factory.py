"""Create the result cache of an engine from its options, and register its metrics."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from cenote.cache.result_cache import ResultCache
from cenote.config.engine import EngineConfig
from cenote.loading.cache_key import compute_cache_key
from cenote.loading.model_description import ModelDescription
from cenote.utils.metrics import MetricsRegistry

logger = logging.getLogger("cenote")


def make_result_cache(
    description: ModelDescription, config: EngineConfig, metrics: MetricsRegistry
) -> ResultCache | None:
    """Return the result cache; None if it is disabled."""
    if not config.result_cache_bytes and config.result_cache_dir is None:
        return None
    make_cache = partial(
        ResultCache,
        compute_cache_key(description, config),
        memory_bytes=config.result_cache_bytes,
        is_shared=config.result_cache_shared,
    )
    folder = config.result_cache_dir
    try:
        cache = make_cache(
            folder=None if folder is None else Path(folder).expanduser(), disk_bytes=config.result_cache_disk_bytes
        )
    except (RuntimeError, ImportError) as error:  # a home of nobody, Python without SQLite
        logger.warning("result_cache_dir %s cannot be used: %s; results are not cached on disk", folder, error)
        if not config.result_cache_bytes:
            return None
        cache = make_cache()
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
