"""Export lines read without parsing what stands in `data`, and lines of other kinds passed over by their last fields.

An `export_line` begins with `at`, `attempt` and `cause`, and everything behind `data` is short and of a fixed form:
what a line costs hardly depends on its length. A line that looks otherwise goes to the JSON parser.
"""

import re
from collections.abc import Callable

from events.ids import Position, RunId, StreamId, Version
from events.log import Recorded

_PLAIN = rb'"([ !#-\[\]-~]*)"'
_NUMBER = rb"[1-9][0-9]{0,17}"
_HEAD = re.compile(rb'\{"at":%b,"attempt":(%b),"cause":(?:null|%b),"data":' % (_PLAIN, _NUMBER, _PLAIN))
_BEHIND = b',"id":"'
#: stream, version, kind, position, schema
_TAIL = (
    rb',"id":"%b/(run|projector|episode-(?:0|%b))/(%b)","kind":"([a-z_]+)","position":(%b),"run":"%b",'
    rb'"schema":(%b),"stream":"\1","version":\2\}'
)


class Skim:
    """Reads lines of `run` and of `kinds`; None = of every kind.

    Args:
        run: whose lines they are.
        kinds: which to read.
        parse: reads a line of another look, or raises; it is given its bytes and the position it should be at.
    """

    def __init__(self, run: RunId, kinds: frozenset[str] | None, parse: Callable[[bytes, int], Recorded]) -> None:
        name = run.encode()
        self._run, self._kinds, self._parse = run, kinds, parse
        self._tail = re.compile(_TAIL % (name, _NUMBER, _NUMBER, _NUMBER, name, _NUMBER))
        self._wanted = None if kinds is None else frozenset(kind.encode() for kind in kinds)

    def event(self, lines: bytes, start: int, end: int, position: int) -> Recorded | None:
        """The event of the line `lines[start:end]` (without its line feed), which is to be at `position`.

        None for one of another kind, whose `data` and first fields go unread. What is wrong inside `data` is found by
        whoever decodes it.

        Raises:
            As `parse`.
        """
        behind = lines.rfind(_BEHIND, start, end)
        tail = self._tail.fullmatch(lines, behind, end) if behind > start else None
        if tail is None:
            return self._parsed(lines[start:end], position)
        stream, version, kind, at, schema = tail.groups()
        if int(at) != position:
            return self._parsed(lines[start:end], position)
        if self._wanted is not None and kind not in self._wanted:
            return None
        head = _HEAD.match(lines, start, behind)
        if head is None:
            return self._parsed(lines[start:end], position)
        time, attempt, cause = head.groups()
        return Recorded(
            run=self._run,
            stream=StreamId(stream.decode()),
            version=Version(int(version)),
            position=Position(position),
            kind=kind.decode(),
            schema=int(schema),
            at=time.decode(),
            cause=None if cause is None else cause.decode(),
            attempt=int(attempt),
            data=lines[head.end() : behind],
        )

    def _parsed(self, line: bytes, position: int) -> Recorded | None:
        one = self._parse(line, position)
        return one if self._kinds is None or one.kind in self._kinds else None
