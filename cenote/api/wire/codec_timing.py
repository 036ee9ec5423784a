"""Encode and decode the times of a request of a plugin, which the engine process answers as a whole."""

from __future__ import annotations

import time

from cenote.api.wire.messages import TimingTuple
from cenote.protocol.requests import Timing


def encode_timing(timing: Timing) -> TimingTuple:
    """Return the times of a request in the engine process, which ends here."""
    now = timing.mark_delivered()
    return (
        timing.queue_s,
        timing.tokenize_s,
        timing.inference_s,
        timing.pack_s,
        timing.device_s,
        timing.deliver_s,
        now - timing.received_at if timing.received_at else 0.0,
    )


def set_timing(timing: Timing, seconds: TimingTuple, sent_at: float) -> None:
    """Set the times of a request in the front-end, which sent it at `sent_at` and now has the response."""
    timing.queue_s, timing.tokenize_s, timing.inference_s, timing.pack_s, timing.device_s, timing.deliver_s, total_s = (
        seconds
    )
    timing.answered_at = time.monotonic()
    timing.wire_s = max(0.0, timing.answered_at - sent_at - total_s)
