"""An answer that comes in pieces, as the body of the completion that it would have been in one.

| what a server does | what is made of it |
|---|---|
| lines that end in CR, LF or both, a byte order mark, `data:` with or without a space, over several lines | read |
| one `data:` line after the other, without the empty line between | read |
| comments, `id:`, events without data, chunks without choices, empty choices, further choices | passed over |
| usage in a chunk of its own, in the last one, in each one | the last one counts |
| a whole `message` where a `delta` belongs | takes the place of what came before |
| pieces of a tool call: with id, index, both, neither; `index` always 0; ids or names that come again | put together |
| no `[DONE]`, or no `finish_reason` | whole where one of the two came |
| neither: the stream just ends | no answer |
| an error as a chunk, in a field of it or behind `event: error` | the error, whatever came before it |
| what is no JSON | no answer |
| far more text than the request's cap allows, a long run of white space or of one character | cut there: `length` |

Half an answer is never an answer, except where we have stopped it ourselves, and then it says so.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from infra.model_errors import Failed, malformed

#: text beyond the cap that shows that a server does not keep to it: a token is hardly ever longer, characters
_CHARACTERS_A_TOKEN = 12
#: counted tokens beyond the cap that show the same
_TIMES = 2
#: white space, or the same character, that no answer holds at a stretch, characters
_LONGEST_RUN = 2000

_DONE = b"[DONE]"
#: what stands for it: JSON has no such value
_END = object()
#: a byte order mark and white space
_BLANK = b"\xef\xbb\xbf\r\n\t "
#: what every chunk says again
_HEAD = ("id", "created", "model", "system_fingerprint")


def is_event_stream(content_type: str) -> bool:
    """Whether a body is one by its header."""
    return content_type.partition(";")[0].strip().lower() == "text/event-stream"


def begins_no_document(start: bytes | bytearray) -> bool:
    """Whether what a header calls a stream may be one: some put a completion, an error or a page behind it."""
    begins = start.lstrip(_BLANK)[:1]
    return bool(begins) and begins not in b'{[<"'


def looks_like_events(body: bytes | bytearray) -> bool:
    """Whether a body that no header calls a stream is one."""
    return body.lstrip(_BLANK).startswith((b"data:", b"event:", b": ", b":\n"))


class _Text:
    """Text that grows, until it is too long or runs idle."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._parts: list[str] = []
        self._length, self._run, self._last = 0, 0, ""
        #: whether there is more than there should be
        self.is_enough = False

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, given: object) -> bool:
        """Whether there was something to add."""
        text = _joined(given)
        if not text or self.is_enough:
            return bool(text)
        text = self._up_to_run(text)
        if self._most is not None and self._length + len(text) > self._most:
            text, self.is_enough = text[: self._most - self._length], True
        self._parts.append(text)
        self._length += len(text)
        return True

    def put(self, text: str) -> None:
        """Instead of everything so far."""
        self._parts, self._length, self._run, self._last = [], 0, 0, ""
        self.add(text)

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def _up_to_run(self, text: str) -> str:
        """`text`, cut where a run becomes too long: the same place, however it comes in pieces."""
        if self._run + len(text) <= _LONGEST_RUN and (alike := _alike(text)):
            self._run = self._run + len(text) if alike == self._last else len(text)
            self._last = alike
            return text
        for at, one in enumerate(text):
            alike = " " if one.isspace() else one
            self._run = self._run + 1 if alike == self._last else 1
            self._last = alike
            if self._run > _LONGEST_RUN:
                self.is_enough = True
                return text[:at]
        return text


def _alike(text: str) -> str:
    """The one character that a text is made of, white space as a space; "" for any other text."""
    if text.isspace():
        return " "
    return text[0] if text.count(text[0]) == len(text) else ""


def _joined(given: object) -> str:
    """Text from a string or a list of parts; "" for anything else."""
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else ()
    texts = (one.get("text") if isinstance(one, dict) else one for one in parts)
    return "".join(one for one in texts if isinstance(one, str))


@dataclass(slots=True)
class _Call:
    """One tool call, so far."""

    id: str
    index: object
    arguments: _Text
    name: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are an object: nothing more can come."""
        try:
            return isinstance(json.loads(self.arguments.text), dict)
        except (ValueError, RecursionError):
            return False

    def plain(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments.text}
        return {"id": self.id, "type": "function", "function": function}


class _Calls:
    """The tool calls so far."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._length = 0
        self.calls: list[_Call] = []

    @property
    def is_enough(self) -> bool:
        over = self._most is not None and self._length > self._most
        return over or any(one.arguments.is_enough for one in self.calls[-1:])

    def add(self, given: object) -> bool:
        """Whether there was something to add."""
        pieces = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
        for piece in pieces:
            function = piece.get("function")
            function = function if isinstance(function, dict) else {}
            name, arguments = _joined(function.get("name")), function.get("arguments")
            if isinstance(arguments, dict | list):
                arguments = json.dumps(arguments, ensure_ascii=False)
            arguments = arguments if isinstance(arguments, str) else ""
            call = self._of(piece, name, arguments)
            if name and name != call.name:
                # A name in pieces comes before the arguments; after them it is another spelling of nothing.
                call.name += name if not call.arguments else ""
            call.arguments.add(arguments)
            self._length += len(name) + len(arguments)
        return bool(pieces)

    def _of(self, piece: dict[str, Any], name: str, arguments: str) -> _Call:
        """The call that a piece belongs to."""
        id_, index = _joined(piece.get("id")), piece.get("index")
        if id_:
            found = [one for one in self.calls if one.id == id_ and (index is None or one.index in (index, None))]
            # Named later than begun.
            found = found or [one for one in self.calls[-1:] if not one.id and not one.is_whole and one.index == index]
        else:
            found = [one for one in self.calls if index is None or one.index == index]
        if found and not self._begins_anew(found[-1], name, arguments):
            found[-1].id = found[-1].id or id_
            return found[-1]
        call = _Call(id=id_, index=index, arguments=_Text(self._most))
        self.calls.append(call)
        return call

    @staticmethod
    def _begins_anew(call: _Call, name: str, arguments: str) -> bool:
        return bool(name) and (name != call.name or bool(arguments)) and call.is_whole


class Assembly:
    """A stream so far.

    Args:
        cap: the request's own, tokens; None = none.
    """

    def __init__(self, cap: int | None) -> None:
        most = None if cap is None else cap * _CHARACTERS_A_TOKEN
        self._cap = cap
        #: of a line without its end
        self._parts: list[bytes] = []
        #: of an event without its end, and what it is called
        self._lines: list[bytes] = []
        self._name = b""
        self._content, self._reasoning, self._refusal = _Text(most), _Text(most), _Text(most)
        self._calls = _Calls(most)
        self._head: dict[str, Any] = {}
        self._usage: object = None
        self._finish = ""
        self._error: object = None
        self._is_done = False
        self._choices = 0
        #: whether something of an answer has come, and whether text of it has
        self.has_begun = self.has_text = False
        #: whether something came behind the end
        self.has_surplus = False

    @property
    def is_over(self) -> bool:
        """Whether nothing that comes now matters any more."""
        return self._is_done or self._error is not None or self.is_stopped

    @property
    def is_stopped(self) -> bool:
        """Whether there is more than there should be."""
        texts = (self._content, self._reasoning, self._refusal)
        return any(one.is_enough for one in texts) or self._calls.is_enough or self._is_over_cap()

    @property
    def is_whole(self) -> bool:
        """Whether the answer's end has come."""
        return self.is_over or bool(self._finish)

    def feed(self, part: bytes) -> None:
        """What came next.

        Raises:
            Failed: it is no JSON.
        """
        self._parts.append(part)
        if b"\n" not in part and b"\r" not in part:
            return
        data = b"".join(self._parts)
        # The second half of a line's end may be in the next part.
        held = data[-1:] if data.endswith(b"\r") else b""
        data = data[: len(data) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = data.split(b"\n")
        self._parts = [rest + held]
        for at, line in enumerate(lines, 1):
            self._line(line)
            if self.is_over:
                self.has_surplus = bool(b"".join([*lines[at:], rest]).strip())
                return

    def end(self) -> bytes:
        """The body of the completion.

        Raises:
            Failed: there is none.
        """
        if not self.is_over:
            self._line(b"".join(self._parts).rstrip(b"\r"))
            self._event()
        if self._error is not None:
            return json.dumps({"error": self._error}).encode()
        if not self.is_whole:
            raise Failed(malformed("a stream that ends before its answer does"))
        if not self._choices:
            return json.dumps({**self._head, "choices": [], "usage": self._usage}).encode()
        calls = [one.plain() for one in self._calls.calls]
        message: dict[str, Any] = {"role": "assistant", "content": self._content.text or None}
        message |= {"reasoning_content": self._reasoning.text} if self._reasoning.text else {}
        message |= {"refusal": self._refusal.text} if self._refusal.text else {}
        message |= {"tool_calls": calls} if calls else {}
        finish = "length" if self.is_stopped else self._finish or None
        choice = {"index": 0, "message": message, "finish_reason": finish}
        plain = {"object": "chat.completion", **self._head, "choices": [choice], "usage": self._usage}
        return json.dumps(plain).encode()

    def _is_over_cap(self) -> bool:
        counted = self._usage.get("completion_tokens") if isinstance(self._usage, dict) else None
        return self._cap is not None and not self._finish and type(counted) is int and counted > self._cap * _TIMES

    def _line(self, line: bytes) -> None:
        if not line:
            self._event()
            return
        name, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
        if name == b"data":
            self._lines.append(value.removeprefix(b" "))
        elif name == b"event":
            self._name = value.strip()

    def _event(self) -> None:
        """What the lines so far say together, or each by itself where a server forgets the empty line between."""
        lines, self._lines = [line for line in self._lines if line.strip()], []
        is_error, self._name = self._name == b"error", b""
        if not lines:
            return
        for plain in _decoded(lines):
            if plain is _END:
                self._is_done = True
            else:
                self._chunk(plain, is_error=is_error)
            if self.is_over:
                return

    def _chunk(self, plain: object, *, is_error: bool) -> None:
        if not isinstance(plain, dict):
            raise Failed(malformed(f"a stream with a JSON {type(plain).__name__} in it"))
        self.has_begun = True
        if error := plain.get("error"):
            self._error = error
            return
        if (is_error or plain.get("object") == "error") and not plain.get("choices"):
            self._error = plain
            return
        self._head = {name: plain[name] for name in _HEAD if plain.get(name)} | self._head
        self._usage = plain.get("usage") or self._usage
        choices = plain.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (0, None, "0"):
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        self._choices += 1
        if error := choice.get("error"):
            self._error = error
            return
        delta, message = choice.get("delta"), choice.get("message")
        if isinstance(delta, dict):
            self._add(delta)
        elif isinstance(message, dict):
            for whole in (self._content, self._reasoning, self._refusal):
                whole.put("")
            self._calls.calls.clear()
            self._add(message)
        elif isinstance(choice.get("text"), str):
            raise Failed(malformed("a stream of completions of the older kind"))
        if isinstance(finish := choice.get("finish_reason"), str) and finish:
            self._finish = finish

    def _add(self, delta: dict[str, Any]) -> None:
        added = [
            self._content.add(delta.get("content")),
            self._reasoning.add(delta.get("reasoning_content") or delta.get("reasoning")),
            self._refusal.add(delta.get("refusal")),
            self._calls.add(delta.get("tool_calls")),
        ]
        self.has_text = self.has_text or any(added)


def _decoded(lines: list[bytes]) -> Iterator[object]:
    """What `lines` hold; `_END` for the end mark.

    Raises:
        Failed: no JSON.
    """
    together = b"\n".join(lines).strip()
    try:
        yield _END if together == _DONE else _json(together)
    except (ValueError, RecursionError) as error:
        if len(lines) < 2:
            raise Failed(
                malformed(f"a stream that holds no JSON: {together[:200].decode('utf-8', 'replace')}")
            ) from error
    else:
        return
    for line in lines:
        yield from _decoded([line])


def _json(data: bytes) -> object:
    """As the standard library reads it: what is an answer in one piece is one in many."""
    try:
        return msgspec.json.decode(data)
    except ValueError:
        return json.loads(data)
