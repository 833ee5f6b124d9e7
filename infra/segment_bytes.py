"""The bytes of an exported log's file, compressed or not, in bounded pieces however much a few bytes may unpack to."""

from collections.abc import Iterator
from typing import BinaryIO, cast

import zstandard

#: what a compressed file begins with
ZSTD = b"\x28\xb5\x2f\xfd"
#: bytes read, or unpacked, at a time: few enough to be still in the processor's cache when their lines are looked at
_CHUNK = 1 << 17


class Damaged(Exception):
    """Bytes that are not what they should be; the caller says whose."""


class _Marked:
    """A file of frames, and behind its end one frame more: whoever unpacks that one has had all of the others.

    A frame that is cut short ends without an error otherwise.
    """

    MARK = b"the end of the file, unpacked: every frame before was whole"

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.ended = False

    def read(self, size: int) -> bytes:
        """The next bytes; the mark alone, and then none."""
        if data := self._file.read(size):
            return data
        ended, self.ended = self.ended, True
        return b"" if ended else zstandard.ZstdCompressor().compress(self.MARK)


def unpacked(file: BinaryIO) -> Iterator[bytes]:
    """The contents of a file, compressed or not, in bounded pieces however much a few bytes may unpack to.

    Raises:
        Damaged: cut short, or not readable from here on.
    """
    packed = file.read(len(ZSTD)) == ZSTD
    file.seek(0)
    if not packed:
        while chunk := file.read(_CHUNK):
            yield chunk
        return
    source, held = _Marked(file), b""
    reader = zstandard.ZstdDecompressor().stream_reader(cast("BinaryIO", source), read_across_frames=True)
    try:
        while chunk := reader.read(_CHUNK):
            # As much as the mark has stays behind until more has come.
            held += chunk
            if len(held) > len(_Marked.MARK):
                yield held[: -len(_Marked.MARK)]
                held = held[-len(_Marked.MARK) :]
    except zstandard.ZstdError as error:
        raise Damaged("it is cut short" if source.ended else str(error)) from error
    if held != _Marked.MARK:
        raise Damaged("it is cut short")
