"""Lines of a log as somebody hostile writes them: real ones with bytes or values replaced, or with more around them.

What is replaced is a token of the JSON text, so that also goes in what no JSON writer makes: NaN, a name twice, half a
surrogate, integers of thousands of digits.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

GOLDEN = Path(__file__).parents[2] / "golden" / "schema-1"


def golden_logs() -> list[list[bytes]]:
    """The lines of every golden log, newlines included."""
    return [path.read_bytes().splitlines(keepends=True) for path in sorted(GOLDEN.glob("*.jsonl"))]


#: what stands in for a value; each is written as it is
TOKENS: tuple[bytes, ...] = (
    b"null", b"true", b"{}", b"[]", b'""', b"0", b"-1", b"1.5", b"NaN", b"Infinity", b"-Infinity", b"-0.0", b"1e999",
    b"1e-999", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"1" + b"0" * 400,
    b"9" * 5000, b"-" + b"9" * 100_000, b"0." + b"3" * 5000, b"1e308", b"01", b"+1", b".5", b"0x10",
    b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xed\xa0\x80"', b'"\\u0000"', b'"a\x00b"', b'"\xff"', b'"\xc0\xaf"',
    b'"\\u2028"', b'"\\', b'"', b'"\xef\xbb\xbf"', b'"' + b"x" * 300_000 + b'"', b'"run"', b'"episode-00"',
    b'"episode-' + b"9" * 5000 + b'"', b'"planning-' + b"9" * 5000 + b'"', b'"../../etc/passwd"', b'"a.b.planning-1"',
    b'"' + b"A" * 300_000 + b'"', b'"AAAA"', b'"AAA"', b'"=A=="', b'"////////"',
    b"[" * 500 + b"]" * 500, b"[" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"[" * 60_000 + b"]" * 60_000,
    b'{"a":1,"a":2}', b'{"dim":1,"dim":2,"q24":"AAAA"}', b'{"dim":4611686018427387904,"q24":"AAAA"}',
    b'{"dim":-1,"q24":"AAAA"}', b'{"dim":0,"q24":""}', b'{"dim":1,"q24":"AAAAAQ=="}',
    b'[null,true,{"op":"insert"}]', b'[{"op":"value"}]', b'{"__proto__":null}',
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value[:3]):
            yield from _places(inner, (*path, place))


_HOLE = "\x00hole\x00"


def with_field(line: bytes, token: bytes) -> bytes:
    """The line with a field in its data that nobody knows."""
    end = line.index(b'},"id":')
    return line[:end] + b',"unknown":' + token + line[end:]


def _with_token(event: Any, path: tuple[Any, ...], token: bytes, named: bool) -> bytes:
    """The text of `event` with the value at `path` (`named`: its name too, once more) written as `token`."""
    if not path:
        return token
    place = event
    for key in path[:-1]:
        place = place[key]
    if named and isinstance(place, dict):
        place[_HOLE] = 0
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        name = json.dumps(path[-1]).encode()
        return text.encode("utf-8", "surrogatepass").replace(json.dumps(_HOLE).encode() + b":0", name + b":" + token)
    place[path[-1]] = _HOLE
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass").replace(json.dumps(_HOLE).encode(), token)


def hostile_line(line: bytes, dice: Random) -> bytes:
    """`line` spoiled in one to three places, its newline kept as a rule."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        line = _spoiled(line, dice)
    return line


def _spoiled(line: bytes, dice: Random) -> bytes:
    match dice.randrange(8):
        case 0:
            at = dice.randrange(len(line) + 1)
            return line[:at] + bytes(dice.randrange(256) for _ in range(dice.choice((1, 1, 4)))) + line[at + 1 :]
        case 1:
            start = dice.randrange(len(line) + 1)
            return line[:start] + line[start + dice.randrange(40) :]
        case 2:
            at = dice.randrange(len(line) + 1)
            return line[:at] + dice.choice(TOKENS) + line[at:]
        case 3 if b'},"id":' in line:
            return with_field(line, dice.choice(TOKENS))
        case _:
            try:
                event = json.loads(line)
                path = dice.choice(list(_places(event)))
            except (ValueError, RecursionError):
                return line
            try:
                return _with_token(event, path, dice.choice(TOKENS), dice.random() < 0.2) + b"\n"
            except (ValueError, RecursionError):  # what an earlier spoiling left cannot be written again
                return line


def hostile_log(lines: list[bytes], dice: Random) -> bytes:
    """A whole log with a line or two spoiled, dropped, doubled or in another place."""
    spoiled = list(lines)
    for _ in range(dice.choice((1, 1, 2))):
        at = dice.randrange(len(spoiled))
        match dice.randrange(8):
            case 0 if len(spoiled) > 1:
                del spoiled[at]
            case 1:
                spoiled.insert(at, spoiled[at])
            case 2:
                other = dice.randrange(len(spoiled))
                spoiled[at], spoiled[other] = spoiled[other], spoiled[at]
            case _:
                spoiled[at] = hostile_line(spoiled[at], dice)
    return b"".join(spoiled)
