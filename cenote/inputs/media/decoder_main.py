"""The process that decodes what strangers sent: a little memory, a little time, no files, no network."""

from __future__ import annotations

import io
import os
import resource
import select
import sys
import warnings
from importlib import import_module

from PIL import Image, WebPImagePlugin

from cenote.inputs.media import decoder_protocol
from cenote.inputs.media.pixels import rgb, upright

LINE = 0  # both directions; 1 and 2 lead nowhere
CPU_S = 10  # for one image
LOOK_S = 10.0  # how often to look whether the parent still lives: a fork of it may hold the line open
NICENESS = 10


class FrugalWebP(WebPImagePlugin.WebPImageFile):
    """A WebP that lets go of its decoder, two whole canvases, before the image gets memory of its own."""

    def load_prepare(self) -> None:
        self.__dict__.pop("_decoder", None)
        super().load_prepare()


def main(parent: int, address_space: int) -> None:
    _import_the_rest()
    _shut_the_door(address_space)
    _write(decoder_protocol.READY)
    with open(LINE, "rb", closefd=False) as line:
        while _asked(parent):
            head = line.read(decoder_protocol.QUESTION.size)
            if len(head) < decoder_protocol.QUESTION.size:
                return
            place, width, height, num_bytes = decoder_protocol.QUESTION.unpack(head)
            _limit(resource.RLIMIT_CPU, int(_time_used()) + CPU_S + 1, for_good=False)
            _answer(decoder_protocol.FORMATS[place], (width, height), line.read(num_bytes))


def _answer(kind: str, size: tuple[int, int], content: bytes) -> None:
    try:
        image = _decoded(kind, size, content)
        rgb(image.crop((0, 0, 1, 1)))  # what cannot be shown is refused before anything is promised
    except MemoryError:
        _write(decoder_protocol.ANSWER.pack(decoder_protocol.TOO_LARGE, 0, 0))
    except Exception:  # of any kind: plugins raise what they like, and the pixels are not to be had
        _write(decoder_protocol.ANSWER.pack(decoder_protocol.BROKEN, 0, 0))
    else:
        _write(decoder_protocol.ANSWER.pack(decoder_protocol.DECODED, *image.size))
        for box in decoder_protocol.tiles(*image.size):
            _write(rgb(image.crop(box)).tobytes())


def _decoded(kind: str, size: tuple[int, int], content: bytes) -> Image.Image:
    Image.MAX_IMAGE_PIXELS = size[0] * size[1]  # it is no larger than its header said
    image = Image.open(io.BytesIO(content), formats=(kind,))
    if image.size != size:
        raise ValueError("another size than the header's")
    image.load()
    return upright(image)


def _asked(parent: int) -> bool:
    """Wait for a question, or for the end of the one who asks."""
    poll = select.poll()
    poll.register(LINE, select.POLLIN)
    while not poll.poll(LOOK_S * 1000):
        if os.getppid() != parent:
            return False
    return True


def _import_the_rest() -> None:
    """Let Pillow import what it imports on first use: later it cannot open a file."""
    for plugin in ("MpoImagePlugin", "TiffImagePlugin"):  # several images in a JPEG, and EXIF
        import_module(f"PIL.{plugin}")
    Image.register_open("WEBP", FrugalWebP, WebPImagePlugin._accept)
    for kind in decoder_protocol.FORMATS:
        file = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (2, 1)).save(file, kind, exif=exif)
        rgb(_decoded(kind, (2, 1), file.getvalue()))
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def _shut_the_door(address_space: int) -> None:
    os.nice(NICENESS)
    _limit(resource.RLIMIT_AS, address_space)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, 3)  # those three are open already, and nothing else will be


def _limit(what: int, most: int, *, for_good: bool = True) -> None:
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most if for_good else hard))


def _time_used() -> float:
    times = os.times()
    return times.user + times.system


def _write(content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(LINE, rest) :]


if __name__ == "__main__":
    try:
        main(parent=int(sys.argv[1]), address_space=int(sys.argv[2]))
    except OSError:
        sys.exit(1)  # nobody listens any more
