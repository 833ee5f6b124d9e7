"""Append-only rows of unit vectors that all versions of a bank share.

A `Rows` is a view: its first `length` rows, less the dead ones. Appending to the newest view writes behind it and
returns a longer view; appending to an older one branches, which copies one block at most. Where most rows are dead,
`compacted` moves the live ones into rows of their own: what no version holds any more is freed.
"""

import hashlib
from collections.abc import Sequence

from msgspec import Struct
from typing_extensions import override

from events.errors import NotAUnitVector
from events.ids import MemoryId
from events.late import np, npt
from events.vectors import Vector, of_raw, unit

#: rows of one block; 8 MiB at 1024 dimensions, untouched until written
_BLOCK = 1024
#: so many dead rows are kept before it is worth moving the others
_SPARE = 256


class _Store:
    """The rows themselves: blocks of shape (_BLOCK, d), float64 holding components x 2^24 exactly.

    The newest rows wait as the bytes that they came in until somebody searches: a replay never does.
    """

    __slots__ = ("_hashes", "_waiting", "blocks", "dimension", "owners")

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.blocks: list[npt.NDArray[np.float64]] = []
        self.owners: list[MemoryId] = []
        #: little-endian int32 of the rows that no block holds yet
        self._waiting: list[bytes] = []
        #: row -> hex SHA-256 of its int32 bytes, where somebody has asked
        self._hashes: dict[int, str] = {}

    @property
    def length(self) -> int:
        return len(self.owners)

    def append(self, raw: bytes, owner: MemoryId) -> None:
        self._waiting.append(raw)
        self.owners.append(owner)

    def build(self) -> None:
        """Every row into its block."""
        if not self._waiting:
            return
        built = self.length - len(self._waiting)
        waiting = np.frombuffer(b"".join(self._waiting), dtype="<i4").reshape(-1, self.dimension)
        while built < self.length:
            block, at = divmod(built, _BLOCK)
            if block == len(self.blocks):
                self.blocks.append(np.empty((_BLOCK, self.dimension)))
            count = min(_BLOCK - at, len(waiting))
            self.blocks[block][at : at + count] = waiting[:count]
            waiting, built = waiting[count:], built + count
        self._waiting.clear()

    def raw(self, row: int) -> bytes:
        """The row's little-endian int32."""
        waiting = row - (self.length - len(self._waiting))
        if waiting >= 0:
            return self._waiting[waiting]
        block, at = divmod(row, _BLOCK)
        raw: bytes = self.blocks[block][at].astype("<i4").tobytes()
        return raw

    def sha256(self, row: int) -> str:
        known = self._hashes.get(row)
        if known is None:
            known = self._hashes[row] = hashlib.sha256(self.raw(row)).hexdigest()
        return known

    def only(self, rows: Sequence[int]) -> "_Store":
        """A store of those rows alone."""
        found = _Store(self.dimension)
        found._waiting = [self.raw(row) for row in rows]
        found.owners = [self.owners[row] for row in rows]
        found._hashes = {at: known for at, row in enumerate(rows) if (known := self._hashes.get(row))}
        return found

    def branch(self, length: int) -> "_Store":
        self.build()
        branch = _Store(self.dimension)
        full, rest = divmod(length, _BLOCK)
        branch.blocks = self.blocks[:full]
        if rest:
            block = np.empty((_BLOCK, self.dimension))
            block[:rest] = self.blocks[full][:rest]
            branch.blocks.append(block)
        branch.owners = self.owners[:length]
        return branch


class _Hashes(_Store):
    """Rows of which nothing is kept but owner and hash: for banks that are read, not searched."""

    __slots__ = ()

    @override
    def append(self, raw: bytes, owner: MemoryId) -> None:
        self._hashes[self.length] = hashlib.sha256(raw).hexdigest()
        self.owners.append(owner)

    @override
    def build(self) -> None:
        raise LookupError("a light bank keeps no vectors")

    @override
    def raw(self, row: int) -> bytes:
        raise LookupError(f"row {row}: a light bank keeps no vectors")

    @override
    def only(self, rows: Sequence[int]) -> "_Hashes":
        return self.of(self, rows)

    @override
    def branch(self, length: int) -> "_Hashes":
        return self.of(self, range(length))

    @classmethod
    def of(cls, store: _Store, rows: Sequence[int]) -> "_Hashes":
        """Owners and hashes of those rows alone."""
        found = cls(store.dimension)
        found.owners = [store.owners[row] for row in rows]
        found._hashes = {at: store.sha256(row) for at, row in enumerate(rows)}
        return found


class Rows(Struct, frozen=True, eq=False):
    """The first `length` rows of a store, less the dead ones."""

    _store: _Store | None = None
    length: int = 0
    #: the rows that versions so far have dropped, in that order; the first `_fallen` of them are dead here
    _dead: list[int] = []
    _fallen: int = 0

    @property
    def live(self) -> int:
        return self.length - self._fallen

    @property
    def sparse(self) -> bool:
        """Whether most rows are dead, and more than it takes to be worth a `compacted`."""
        return self._fallen > max(_SPARE, self.live)

    def owner(self, row: int) -> MemoryId:
        """The item that the row belongs to."""
        assert self._store is not None  # noqa: S101 - a row exists
        return self._store.owners[row]

    def owners(self, rows: Sequence[int]) -> list[MemoryId]:
        """The items that the rows belong to."""
        assert self._store is not None or not rows  # noqa: S101 - rows exist
        owners = self._store.owners if self._store is not None else []
        return [owners[row] for row in rows]

    def vector(self, row: int) -> Vector:
        """The row as recorded."""
        assert self._store is not None  # noqa: S101 - a row exists
        return of_raw(self._store.raw(row))

    def raw(self, row: int) -> bytes:
        """The row's d little-endian int32."""
        assert self._store is not None  # noqa: S101 - a row exists
        return self._store.raw(row)

    def sha256(self, row: int) -> str:
        """Hex SHA-256 of the row's int32 bytes; computed once."""
        assert self._store is not None  # noqa: S101 - a row exists
        return self._store.sha256(row)

    def appended(self, vector: Vector, owner: MemoryId) -> tuple["Rows", int]:
        """These rows and one more; the number of the new one.

        Raises:
            NotAUnitVector: not of unit length, or not of these rows' dimension.
        """
        raw = vector.q24
        unit(raw)
        store = self._store or _Store(vector.dim)
        if not store.length and not store.dimension:
            store.dimension = vector.dim
        if store.dimension != vector.dim:
            raise NotAUnitVector(f"a vector of {vector.dim} dimensions in a bank of {store.dimension}")
        if store.length != self.length:
            store = store.branch(self.length)
        store.append(raw, owner)
        return Rows(store, self.length + 1, self._dead, self._fallen), self.length

    def without(self, rows: Sequence[int]) -> "Rows":
        """These rows with `rows` dead."""
        # The list is everybody's: whoever knows all of it goes on with it, an older view or an empty one begins anew.
        dead = self._dead if self._fallen and self._fallen == len(self._dead) else self._dead[: self._fallen]
        dead.extend(rows)
        return Rows(self._store, self.length, dead, len(dead))

    def light(self) -> "Rows":
        """These rows without their vectors: what is appended to them later is hashed and forgotten too.

        Looking for a vector in them is a LookupError, or finds nothing where there is none yet.
        """
        store = _Hashes.of(self._store, range(self.length)) if self._store is not None else _Hashes(0)
        return Rows(store, self.length, self._dead[: self._fallen], self._fallen)

    def compacted(self) -> tuple["Rows", dict[int, int]]:
        """The live rows alone, in their order, and old number -> new number."""
        if self._store is None:
            return self, {}
        gone = set(self._dead[: self._fallen])
        kept = [row for row in range(self.length) if row not in gone]
        return Rows(self._store.only(kept), len(kept)), {row: at for at, row in enumerate(kept)}

    def dots(self, query: "npt.NDArray[np.float64]", without: Sequence[int] = ()) -> "npt.NDArray[np.float64]":
        """Q . row in units of 2^-48 for every row, exact integers as float64, shape (length,); -inf for dead ones.

        Args:
            query: `Vector.exact()`, shape (d,).
            without: further rows that count as dead.

        Raises:
            NotAUnitVector: the query has another dimension.
        """
        if self._store is None or self.length == 0:
            return np.empty(0)
        if query.shape != (self._store.dimension,):
            raise NotAUnitVector(f"a query of {query.size} dimensions for a bank of {self._store.dimension}")
        self._store.build()
        out = np.empty(self.length)
        for start in range(0, self.length, _BLOCK):
            stop = min(start + _BLOCK, self.length)
            np.matmul(self._store.blocks[start // _BLOCK][: stop - start], query, out=out[start:stop])
        for gone in (self._dead[: self._fallen], without):
            if gone:
                out[list(gone)] = -np.inf
        return out

    def largest(self, query: "npt.NDArray[np.float64]", without: Sequence[int] = ()) -> tuple[int, list[int]]:
        """The largest dot and every live row that has it; (0, []) where no row is live."""
        dots = self.dots(query, without)
        top = dots.max(initial=-np.inf)
        if not np.isfinite(top):
            return 0, []
        return int(top), np.flatnonzero(dots == top).tolist()
