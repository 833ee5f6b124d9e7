"""Lines from hostile hands: refused with an error of ours or read, whatever is in them, at a bounded cost."""

import tracemalloc
from random import Random

import msgspec
import pytest
from chaos_budget import limit_s, rounds, told
from hostile import TOKENS, golden_logs, hostile_line

from events.codec import canonical, decode, draft, export_line, parse_line
from events.errors import BadInput, ChimeError, EventTooLarge, UnreadableEvent, UnwritableEvent
from events.fold import replay
from events.log import Recorded
from events.verify import verify

LOGS = golden_logs()
LINES = [line for log in LOGS for line in log]
#: what the search may take of the minutes of `make chaos`
SHARE = 1.0


def read(line: bytes) -> Recorded | None:
    """The event of a line that can be read; it can be written again, and read again as itself."""
    try:
        one = parse_line(line, "line 7")
        event = decode(one)
    except UnreadableEvent as error:
        assert error.where  # noqa: PT017 - every refusal says of what
        str(error).encode()
        return None
    except BadInput as error:
        str(error).encode("utf-8", "surrogatepass")
        return None
    try:
        again = draft(event)
    except (EventTooLarge, UnwritableEvent):
        return one  # over the cap, a number that JSON has not, or a vector that is none, which its use finds
    assert canonical(event) == again.data
    parse_line(export_line(one), "line 7")
    return one


def folded(log: list[bytes], at: int, line: bytes) -> None:
    """A log with that line in it goes through replay and verification, or is refused."""
    events: list[Recorded] = []
    for place, one in enumerate(log):
        try:
            events.append(parse_line(line if place == at else one, f"line {place + 1}"))
        except ChimeError:
            return
    for reader in (replay, verify):
        try:
            reader(events)
        except ChimeError as error:
            str(error).encode("utf-8", "surrogatepass")


@pytest.mark.chaos
@pytest.mark.timeout(limit_s(300, SHARE))
def test_whatever_the_bytes_only_our_errors_come_out() -> None:
    """Spoiled lines alone, and in their log: decoded, replayed and verified, or refused by a ChimeError."""
    for one in rounds(SHARE):
        dice = Random(one)  # noqa: S311 - chance, no secret
        with told(one):
            for _ in range(400):
                log = dice.choice(LOGS)
                at = dice.randrange(len(log))
                line = hostile_line(log[at], dice)
                try:
                    if read(line) is not None:
                        folded(log, at, line)
                except BaseException as error:
                    error.add_note(f"the line: {line[:2000]!r}")
                    raise


@pytest.mark.parametrize("kind", sorted({line.split(b'"kind":"')[1].split(b'"')[0].decode() for line in LINES}))
def test_every_hostile_value_in_every_kind(kind: str) -> None:
    """Each token in place of the data, and of the last value in them."""
    line = next(line for line in LINES if f'"kind":"{kind}"'.encode() in line)
    data = line.index(b'"data":') + len(b'"data":')
    end = line.index(b',"id":')
    last = line.rindex(b":", data, end) + 1
    for token in TOKENS:
        read(line[:data] + token + line[end:])
        read(line[:last] + token + line[end - 1 :])


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"e' + b"[" * 100_000, b"[" * 70 + b"\xff" + b"]" * 70, b"{" * 65])
def test_brackets_without_end_in_data_are_refused(data: bytes) -> None:
    """Data of a record that did not come through a line: nothing but brackets, or in a field that nobody knows."""
    one = parse_line(LINES[1], "line 2")
    for hostile in (data, one.data[:-1] + b',"unknown":' + data + b"}"):
        with pytest.raises(UnreadableEvent):
            decode(msgspec.structs.replace(one, data=hostile))


@pytest.mark.parametrize("value", [b"\xff", b"["], ids=["not utf-8", "nested"])
def test_what_hides_behind_many_brackets_is_refused(value: bytes) -> None:
    """A text that is none, in a field that nobody knows, of data with more brackets than an event may nest."""
    one = parse_line(LINES[1], "line 2")
    hostile = one.data[:-1] + b',"unknown":["' + b"[" * 70 + value + b'",1e999]}'
    with pytest.raises(UnreadableEvent):
        decode(msgspec.structs.replace(one, data=hostile))


@pytest.mark.parametrize("token", TOKENS, ids=lambda token: f"{token[:24]!r}-{len(token)}")
def test_a_hostile_value_costs_what_its_bytes_cost(token: bytes) -> None:
    """Reading takes memory in proportion to the line: no number or name in it is a size."""
    line = next(line for line in LINES if b'"kind":"diagnosed"' in line and b'"q24":' in line)
    start = line.index(b'{"dim"')
    hostile = line[:start] + token + line[line.index(b"}", start) + 1 :]
    tracemalloc.start()
    try:
        read(hostile)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000 + 120 * len(hostile)
