"""Immutable maps in key order, cheap to change a little: sorted chunks, shared between versions.

`ById` keeps the newest changes in a dictionary beside its chunks until somebody asks for the order: a replay, which
only looks items up, never sorts.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from events.ids import MemoryId, MemoryOrder, memory_order

T = TypeVar("T")

#: a chunk is split above this; a change costs one chunk and one pointer per chunk
_CHUNK = 32
#: so many changes wait for their chunks at most: each version copies them
_WAITING = 256


class _Chunk(Generic[T]):
    __slots__ = ("_joined", "keys", "values")

    def __init__(self, keys: tuple[MemoryOrder, ...], values: tuple[T, ...]) -> None:
        self.keys, self.values = keys, values
        self._joined: bytes | None = None

    def joined(self, of: Callable[[T], bytes]) -> bytes:
        if self._joined is None:
            self._joined = b"".join(map(of, self.values))
        return self._joined


@dataclass(frozen=True, slots=True, eq=False)
class Chunks(Generic[T]):
    """Values by key, iterated in key order."""

    _chunks: tuple[_Chunk[T], ...] = ()
    #: first key of each chunk
    _firsts: tuple[MemoryOrder, ...] = ()
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk.values

    def get(self, key: MemoryOrder) -> T | None:
        """The value at `key`, or None."""
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        chunk = self._chunks[at]
        inside = bisect_left(chunk.keys, key)
        return chunk.values[inside] if inside < len(chunk.keys) and chunk.keys[inside] == key else None

    def joined(self, of: Callable[[T], bytes]) -> bytes:
        """`of` each value, joined in key order. Kept per chunk: always ask with the same function."""
        return b"".join([chunk.joined(of) for chunk in self._chunks])

    def updated(self, changes: Mapping[MemoryOrder, T | None]) -> "Chunks[T]":
        """These values with `changes` put in; None removes a key."""
        by_chunk: dict[int, dict[MemoryOrder, T | None]] = {}
        for key, value in changes.items():
            by_chunk.setdefault(max(0, bisect_right(self._firsts, key) - 1), {})[key] = value
        chunks: list[_Chunk[T]] = []
        firsts: list[MemoryOrder] = []
        length, start = self._length, 0
        for at in sorted(by_chunk):
            chunks.extend(self._chunks[start:at])
            firsts.extend(self._firsts[start:at])
            old = self._chunks[at] if self._chunks else _Chunk[T]((), ())
            new = _changed(old, by_chunk[at])
            length -= len(old.keys)
            for chunk in new:
                length += len(chunk.keys)
                chunks.append(chunk)
                firsts.append(chunk.keys[0])
            start = at + 1
        chunks.extend(self._chunks[start:])
        firsts.extend(self._firsts[start:])
        return Chunks(tuple(chunks), tuple(firsts), length)


def _changed(chunk: _Chunk[T], changes: Mapping[MemoryOrder, T | None]) -> list[_Chunk[T]]:
    values = list(chunk.values)
    missing = dict[MemoryOrder, T | None]()
    for key, value in changes.items():
        at = bisect_left(chunk.keys, key)
        if value is not None and at < len(chunk.keys) and chunk.keys[at] == key:
            values[at] = value
        else:
            missing[key] = value
    if not missing:
        return [_Chunk(chunk.keys, tuple(values))]
    keys = list(chunk.keys)
    for key, value in missing.items():
        at = bisect_left(keys, key)
        there = at < len(keys) and keys[at] == key
        if value is None:
            if there:
                del keys[at], values[at]
        else:
            keys.insert(at, key)
            values.insert(at, value)
    # Ids mostly arrive in ascending order: full chunks stay full, the rest is the last one.
    return [
        _Chunk(tuple(keys[start : start + _CHUNK]), tuple(values[start : start + _CHUNK]))
        for start in range(0, len(keys), _CHUNK)
    ]


class ById(Generic[T]):
    """Values by memory id, iterated in id order."""

    __slots__ = ("_sorted", "_waiting")

    def __init__(self, ordered: Chunks[T], waiting: dict[MemoryId, T | None]) -> None:
        self._sorted, self._waiting = ordered, waiting

    def __len__(self) -> int:
        return len(self._settled())

    def __iter__(self) -> Iterator[T]:
        return iter(self._settled())

    def get(self, memory: MemoryId) -> T | None:
        """The value at `memory`, or None.

        Raises:
            BadInput: not a memory id.
        """
        waiting = self._waiting
        return waiting[memory] if memory in waiting else self._sorted.get(memory_order(memory))

    def joined(self, of: Callable[[T], bytes]) -> bytes:
        """As `Chunks.joined`."""
        return self._settled().joined(of)

    def updated(self, changes: dict[MemoryId, T | None]) -> "ById[T]":
        """These values with `changes` put in; None removes an id."""
        ordered, waiting = self._sorted, self._waiting | changes
        return ById(ordered, waiting) if len(waiting) <= _WAITING else ById(_settled(ordered, waiting), {})

    def _settled(self) -> Chunks[T]:
        if self._waiting:
            # In this order: whoever looks something up meanwhile, from another thread, finds it in either.
            self._sorted = _settled(self._sorted, self._waiting)
            self._waiting = {}
        return self._sorted


def _settled(ordered: Chunks[T], waiting: Mapping[MemoryId, T | None]) -> Chunks[T]:
    return ordered.updated({memory_order(memory): value for memory, value in waiting.items()})
