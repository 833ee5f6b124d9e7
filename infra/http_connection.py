"""One request at a time over a connection that is used again only after an exchange in which nothing was odd."""

import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
import h11

from infra.http_route import Broken, Route, Stream, connected

#: a head, or the size line of a chunk, is not read beyond this, bytes
_LONGEST_HEAD: Final = 65536
#: responses before the response
_MOST_INFORMATIONAL: Final = 20

#: how long nothing may come over a connection before it is used again, seconds. HTTP/1.1 does not say which request a
#: response answers: one that came twice or too late would be taken for the next one's.
REST_S: Final = 0.25
#: how long an idle connection is kept, seconds: many servers close theirs after 5, and the next request would hit that
IDLE_S: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What comes before an answer's body."""

    status: int
    #: names in lower case; of those that come twice the last
    headers: Mapping[str, str]


class Connection:
    """To one server.

    Args:
        stream: to it; closed with the connection.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LONGEST_HEAD)
        self._is_odd = False

    async def ask(self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes) -> Head:
        """Send one request; the head of its answer.

        Raises:
            Broken: there is none.
        """
        try:
            if self._parser.our_state is h11.DONE:
                self._parser.start_next_cycle()
            sent = self._parser.send(h11.Request(method=method, target=target, headers=list(headers))) or b""
            sent += (self._parser.send(h11.Data(data=body)) or b"") if body else b""
            sent += self._parser.send(h11.EndOfMessage()) or b""
        except h11.ProtocolError as error:
            raise Broken(str(error)) from error
        try:
            await self._stream.send(sent)
        except Broken:
            # A server may refuse, and close, before it has read everything: what it says is worth reading.
            self._is_odd = True
        for _ in range(_MOST_INFORMATIONAL):
            event = await self._event()
            if isinstance(event, h11.Response):
                headers_ = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                return Head(status=event.status_code, headers=headers_)
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                break
        raise Broken("no response comes")

    async def more(self) -> bytes | None:
        """The next part of the answer's body; None after the last one.

        Raises:
            Broken: the connection ends, or errs, before the body does.
        """
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    def distrust(self) -> None:
        """Something was odd: not to be used again."""
        self._is_odd = True

    @property
    def is_at_rest(self) -> bool:
        """Whether an exchange is over, whole, and neither side wants to close or has said more than it should."""
        over = self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE
        return over and not self._is_odd and not self._parser.trailing_data[0] and self._stream.is_silent()

    def close(self) -> None:
        """At once, in any state."""
        self._stream.close()

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError as error:
                raise Broken(str(error)) from error
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]  # what is left of the union
            data = await self._stream.receive()
            if not data and self._parser.their_state is h11.SEND_RESPONSE:
                raise Broken("the server has closed the connection without an answer")
            self._parser.receive_data(data)


class Connections:
    """To one server: those that rest, the longest at rest first."""

    def __init__(self, route: Route, context: Callable[[], ssl.SSLContext], rest_s: float = REST_S) -> None:
        """Nothing is connected yet.

        Args:
            route: to the server.
            context: what its certificate is checked with.
            rest_s: as `REST_S`.
        """
        self._route, self._context, self._rest_s = route, context, rest_s
        self._resting: deque[tuple[float, Connection]] = deque()

    async def take(self, connect_s: float) -> Connection:
        """One that has rested, else a new one.

        Raises:
            NoConnection: there is none within `connect_s`.
        """
        now = anyio.current_time()
        while self._resting:
            since, connection = self._resting.popleft()
            if self._rest_s <= now - since <= IDLE_S and connection.is_at_rest:
                return connection
            # In the place of one that has not rested long enough: a server may keep a thread for each.
            connection.close()
            if now - since < self._rest_s:
                break
        return Connection(await connected(self._route, self._context, connect_s))

    def give_back(self, connection: Connection) -> None:
        """Keep it where nothing was odd, close it else."""
        if connection.is_at_rest:
            self._resting.append((anyio.current_time(), connection))
        else:
            connection.close()

    @property
    def idle(self) -> int:
        """How many are kept."""
        return len(self._resting)

    def close(self) -> None:
        """Those that rest."""
        while self._resting:
            self._resting.popleft()[1].close()
