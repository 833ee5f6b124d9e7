"""The root of every error, and the five families that a caller acts on.

ChimeError
├── BadInput                    what was asked cannot be meant: usage, configuration, an unknown name       (exit 2)
│   ├── UnknownName             a name that is not in the list; says what the list holds
│   ├── UnreadableEvent         bytes that are not an event of this format
│   │   ├── UnknownKind         a kind this code does not know
│   │   ├── NewerSchema         a schema number above the ones this code knows
│   │   └── EventTooLarge       over the size cap
│   ├── UnwritableEvent         an event that whoever reads it would refuse; it goes into no log
│   ├── NestedTooDeep           lists and objects inside each other beyond the bound
│   └── NotAUnitVector          a vector whose length is not 1 (in units of 2^-24) or of another dimension
├── Unreachable                 something we depend on does not answer                                      (exit 3)
├── Mismatch                    two things that must be equal are not: a digest, a hash, an operation       (exit 4)
│   ├── FoldMismatch            a recorded operation or digest is not what the fold gives
│   └── VersionGap              an append or a log that skips a version or position
└── BudgetSpent                 a limit the user set is reached                                             (exit 5)

Layers above add their own leaves under these families; the exit codes live in `workers.__main__`.
"""

from collections.abc import Iterable


class ChimeError(Exception):
    """The root: everything Chime raises on purpose descends from it."""


class BadInput(ChimeError):
    """What was asked cannot be meant; asking again unchanged fails again."""


class Unreachable(ChimeError):
    """A service or program we depend on does not answer."""


class Mismatch(ChimeError):
    """Two things that must be equal are not."""


class BudgetSpent(ChimeError):
    """A limit the user set is reached."""


class UnknownName(BadInput):
    """`name` is not a known `what`."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        self.what, self.name, self.known = what, name, sorted(known)
        super().__init__(f"unknown {what} {name!r}; known: {', '.join(self.known) or 'none'}")


class UnreadableEvent(BadInput):
    """Bytes that do not hold an event; `where` says which."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"cannot read {where}: {reason}")


class UnknownKind(UnreadableEvent):
    """An event of a kind that this code does not know."""

    def __init__(self, where: str, kind: str, schema: int) -> None:
        self.kind, self.schema = kind, schema
        super().__init__(where, f"unknown kind {kind!r} (schema {schema}); a newer chime may know it")


class NewerSchema(UnreadableEvent):
    """An event of a known kind whose schema number is above the newest this code reads."""

    def __init__(self, where: str, kind: str, schema: int, newest: int) -> None:
        self.kind, self.schema, self.newest = kind, schema, newest
        super().__init__(where, f"{kind!r} has schema {schema}, this chime reads up to {newest}; use a newer chime")


class EventTooLarge(UnreadableEvent):
    """An event's data is over the size cap."""

    def __init__(self, kind: str, size: int, cap: int) -> None:
        self.kind, self.size, self.cap = kind, size, cap
        super().__init__(f"a {kind!r} event", f"{size} bytes of data, the cap is {cap}; put large bodies into blobs")


class UnwritableEvent(BadInput):
    """An event of ours that a reader would refuse: what made it is at fault."""

    def __init__(self, kind: str, reason: str) -> None:
        self.kind, self.reason = kind, reason
        super().__init__(f"cannot write a {kind!r} event: {reason}")


class NestedTooDeep(BadInput):
    """More than `deepest` levels of lists and objects inside each other."""

    def __init__(self, deepest: int) -> None:
        self.deepest = deepest
        super().__init__(f"more than {deepest} lists and objects inside each other")


class NotAUnitVector(BadInput):
    """A vector that is not of unit length (components x 2^24) or not of the bank's dimension."""


class FoldMismatch(Mismatch):
    """A recorded operation, digest or recall is not what the fold gives at that place."""

    def __init__(self, where: str, what: str, recorded: object, computed: object) -> None:
        self.where, self.what, self.recorded, self.computed = where, what, recorded, computed
        super().__init__(f"{where}: {what} differs: recorded {recorded!r}, computed {computed!r}")


class VersionGap(Mismatch):
    """An event that is not the next of its stream or log."""

    def __init__(self, where: str, expected: int, got: int) -> None:
        self.where, self.expected, self.got = where, expected, got
        super().__init__(f"{where}: expected {expected}, got {got}")
