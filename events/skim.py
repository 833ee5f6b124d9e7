"""Export lines read without parsing what stands in `data`, and lines of other kinds passed over by their last fields.

An `export_line` begins with `at`, `attempt` and `cause`, and everything behind `data` is short and of a fixed form:
what a line costs hardly depends on its length. A line that looks otherwise goes to the JSON parser.
"""

import re
from collections.abc import Callable, Iterator

from events.ids import RunId
from events.log import Recorded

_PLAIN = rb'"([ !#-\[\]-~]*)"'
_NUMBER = rb"[1-9][0-9]{0,17}"
_HEAD = re.compile(rb'\{"at":%b,"attempt":(%b),"cause":(?:null|%b),"data":' % (_PLAIN, _NUMBER, _PLAIN))
_BEHIND = b',"id":"'
#: stream, version, kind, position, schema
_TAIL = (
    rb',"id":"%b/(episode-(?:%b|0)|projector|run)/(%b)","kind":"([a-z_]+)","position":(%b),"run":"%b",'
    rb'"schema":(%b),"stream":"\1","version":\2\}'
)
#: without the names of its types, each of which is a call: three of them cost a third of what making one does
_recorded: Callable[..., Recorded] = Recorded


class Skim:
    """Reads lines of `run` and of `kinds`; None = of every kind.

    Args:
        run: whose lines they are.
        kinds: which to read.
        parse: reads a line of another look, or raises; it is given its bytes and the position it should be at.
        first: where the first line is to be.
        after: lines up to that position are passed over.
    """

    def __init__(
        self,
        run: RunId,
        kinds: frozenset[str] | None,
        parse: Callable[[bytes, int], Recorded],
        first: int,
        after: int,
    ) -> None:
        name = run.encode()
        self._run, self._kinds, self._parse = run, kinds, parse
        self._tail = re.compile(_TAIL % (name, _NUMBER, _NUMBER, _NUMBER, name, _NUMBER))
        self._wanted = None if kinds is None else frozenset(kind.encode() for kind in kinds)
        self._last, self._after = first - 1, after

    def events(self, lines: bytes, start: int) -> Iterator[Recorded]:
        """The events of the next lines: those that begin at `start` or behind it and end within `lines`.

        Of a line of another kind `data` and the first fields go unread. What is wrong inside `data` is found by whoever
        decodes it.

        Raises:
            As `parse`.
        """
        # Without a call for each line: most are passed over, and calls are half of what that costs.
        find, rfind, last_fields, wanted = lines.find, lines.rfind, self._tail.fullmatch, self._wanted
        position, after = self._last, self._after
        while (end := find(b"\n", start)) >= 0:
            position += 1
            if position > after:
                behind = rfind(_BEHIND, start, end)
                tail = last_fields(lines, behind, end) if behind > start else None
                if tail is None or int(tail[4]) != position:
                    one = self._parse(lines[start:end], position)
                    if self._kinds is None or one.kind in self._kinds:
                        yield one
                elif wanted is None or tail[3] in wanted:
                    yield self._event(lines, start, end, tail, position)
            start = end + 1
        self._last = position

    def _event(self, lines: bytes, start: int, end: int, tail: re.Match[bytes], position: int) -> Recorded:
        """The event of the line `lines[start:end]`, whose last fields are known."""
        stream, version, kind, schema = tail.group(1, 2, 3, 5)
        head = _HEAD.match(lines, start, behind := tail.start())
        if head is None:
            return self._parse(lines[start:end], position)
        time, attempt, cause = head.groups()
        return _recorded(
            run=self._run,
            stream=stream.decode(),
            version=int(version),
            position=position,
            kind=kind.decode(),
            schema=int(schema),
            at=time.decode(),
            cause=None if cause is None else cause.decode(),
            attempt=int(attempt),
            data=lines[head.end() : behind],
        )
