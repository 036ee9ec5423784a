"""The response header Server-Timing: milliseconds of a request in each stage."""

from __future__ import annotations

from cenote.protocol.requests import Timing

# the stages in the order of a request, then the sum that clients of earlier versions read
SERVER_TIMING_NAMES = ("parse", "tokenize", "wire", "queue", "pack", "device", "deliver", "encode", "inference")
SERVER_TIMING_FORMAT = ", ".join(f"{name};dur=%.3f" for name in SERVER_TIMING_NAMES).encode()


def format_server_timing(timing: Timing) -> bytes:
    """Return the value of the header Server-Timing, in milliseconds."""
    return SERVER_TIMING_FORMAT % (
        timing.parse_s * 1000,
        timing.tokenize_s * 1000,
        timing.wire_s * 1000,
        timing.queue_s * 1000,
        timing.pack_s * 1000,
        timing.device_s * 1000,
        timing.deliver_s * 1000,
        timing.encode_s * 1000,
        timing.inference_s * 1000,
    )
