"""What of a conversation is sent where not all of it fits into a model's context. Pure.

1. Results of tools lose their middle, the old ones first; those of the last turn stay.
2. Whole turns go, the old ones first: what an assistant said with its calls and all their answers, or one message of
   another. Stay: what the system says, the first message of the user, the last turn. Where turns are missing, the
   message before them ends with a line that says how many messages they were.
3. The longest texts that remain lose their middle, as much as it takes.

So no call is ever left without its answers, and no answer without its call. The same request is cut at the same places
when it comes again longer, as far as steps 1 and 2 go, so that a server finds its beginning where it has it cached.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.task import Message, Tool

#: what a result of a tool is cut to in step 1, and what no text is cut below in step 3, characters
KEPT_OF_A_RESULT, KEPT_OF_A_TEXT = 1000, 200
#: what a message costs beside its text: its role and what a template puts around it, characters
_AROUND = 16

_GAP = re.compile(r"\n?\[\.\.\. (\d+) earlier messages? left out \.\.\.\]$")
_LINE = re.compile(r"\n?\[\.\.\. \d+ (?:characters|earlier messages?) left out \.\.\.\]\n?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What is sent."""

    #: those given where all fits
    messages: list[Message]
    #: of the texts given, characters
    left_out: int


def characters_in(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> int:
    """How long a request is, as its tokens are estimated by: texts, calls, tools and what is around them."""
    told = len(json.dumps(list(tools), ensure_ascii=False, default=str)) if tools else 0
    return told + sum(map(_size, messages))


def fitted(
    messages: Sequence[Message], tools: Sequence[Tool], limit_tokens: int, estimate: Callable[[int], int]
) -> Fitted:
    """`messages` within `limit_tokens` together with `tools`, where that is possible at all; else as short as can be.

    Args:
        messages: of a request; not changed.
        tools: sent beside them, whole.
        limit_tokens: of the prompt.
        estimate: characters -> tokens; more characters have no fewer tokens.
    """
    whole = characters_in(messages, tools)
    if not messages or estimate(whole) <= limit_tokens:
        return Fitted(messages=list(messages), left_out=0)
    room = _most(whole, limit_tokens, estimate) - (whole - characters_in(messages))
    kept = _with_short_texts(_without_turns(_with_short_results(messages, room), room), room)
    return Fitted(messages=kept, left_out=max(0, _told(messages) - _told(kept)))


def _told(messages: Sequence[Message]) -> int:
    """How long the texts are, our lines aside."""
    return sum(len(_LINE.sub("", text)) for message in messages for text in _texts(message))


def _most(whole: int, limit_tokens: int, estimate: Callable[[int], int]) -> int:
    """The most characters, below `whole`, that have `limit_tokens` or fewer."""
    low, high = 0, whole
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if estimate(middle) <= limit_tokens else (low, middle - 1)
    return low


def _with_short_results(messages: Sequence[Message], room: int) -> list[Message]:
    kept, size = list(messages), characters_in(messages)
    for at in range(_turns(messages)[-1].start):
        if size <= room:
            break
        if messages[at].get("role") == "tool":
            kept[at] = _cut(messages[at], KEPT_OF_A_RESULT)
            size -= _size(messages[at]) - _size(kept[at])
    return kept


def _without_turns(messages: list[Message], room: int) -> list[Message]:
    kept, gone, rest = messages, set[int](), characters_in(messages)
    for turn in _removable(messages):
        if rest <= room:
            # A turn may be shorter than the line that says it is missing.
            kept = _kept(messages, gone)
            if characters_in(kept) <= room:
                return kept
        gone.update(turn)
        rest -= sum(_size(messages[at]) for at in turn)
    return _kept(messages, gone)


def _removable(messages: Sequence[Message]) -> list[range]:
    *turns, _ = _turns(messages)
    stays = {at for at, one in enumerate(messages) if one.get("role") in ("system", "developer")}
    stays.update([at for at, one in enumerate(messages) if one.get("role") == "user"][:1])
    return [turn for turn in turns if stays.isdisjoint(turn)]


def _turns(messages: Sequence[Message]) -> list[range]:
    """The messages in groups that stay or go together, in order."""
    starts: list[int] = []
    at = 0
    while at < len(messages):
        starts.append(at)
        at = _end(messages, at)
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(messages)], strict=True)]


def _end(messages: Sequence[Message], start: int) -> int:
    """One past the last answer to the calls of `start`, where it has any."""
    end = start + 1
    if not messages[start].get("tool_calls"):
        return end
    for at in range(start + 1, len(messages)):
        if messages[at].get("role") == "assistant":
            break
        if messages[at].get("role") == "tool":
            end = at + 1
    return end


def _kept(messages: Sequence[Message], gone: set[int]) -> list[Message]:
    """`messages` without those at `gone`, and a line wherever some are missing."""
    kept: list[Message] = []
    missing = 0
    for at, message in enumerate(messages):
        if at in gone:
            missing += 1
            continue
        if missing and kept:
            kept[-1] = _with_gap(kept[-1], missing)
        kept.append(_after_gap(message, missing) if missing and not kept else message)
        missing = 0
    return kept


def _with_gap(message: Message, missing: int) -> Message:
    """`message` ending with the line that says what is missing after it."""
    content = message.get("content")
    if isinstance(content, list) and content and _text(content[-1]) is not None:
        text = _text(content[-1]) or ""
        return {**message, "content": [*content[:-1], {**content[-1], "text": _ended(text, missing)}]}
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": _gap(missing)}]}
    return {**message, "content": _ended(content if isinstance(content, str) else "", missing)}


def _after_gap(message: Message, missing: int) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": _gap(missing)}, *content]}
    return {**message, "content": "\n".join(filter(None, (_gap(missing), content)))}


def _ended(text: str, missing: int) -> str:
    before = _GAP.search(text)
    text, missing = (text[: before.start()], missing + int(before[1])) if before else (text, missing)
    return f"{text}\n{_gap(missing)}" if text else _gap(missing)


def _gap(missing: int) -> str:
    return f"[... {missing} earlier message{'s' if missing > 1 else ''} left out ...]"


def _with_short_texts(messages: list[Message], room: int) -> list[Message]:
    """`messages` whose texts are as long as the longest length at which they fit, or shorter."""
    excess = characters_in(messages) - room
    lengths = [len(text) for message in messages for text in _texts(message)]
    if excess <= 0 or not lengths:
        return messages
    low, high = KEPT_OF_A_TEXT, max(KEPT_OF_A_TEXT, *lengths)
    while low < high:
        middle = (low + high + 1) // 2
        saved = sum(length - middle for length in lengths if length > middle)
        low, high = (middle, high) if saved >= excess else (low, middle - 1)
    return [_cut(message, low) for message in messages]


def _cut(message: Message, keep: int) -> Message:
    """`message` with no text longer than `keep`."""
    content = message.get("content")
    if isinstance(content, str) and len(content) > keep:
        return {**message, "content": _shortened(content, keep)}
    if isinstance(content, list) and any(len(text) > keep for text in _texts(message)):
        parts = [
            part if (text := _text(part)) is None else {**part, "text": _shortened(text, keep)} for part in content
        ]
        return {**message, "content": parts}
    return message


def _shortened(text: str, keep: int) -> str:
    """`text` without its middle, `keep` characters long together with the line in its place."""
    if len(text) <= keep:
        return text
    line = ""
    # The number is part of the line, and the line's length of the number.
    for _ in range(3):
        line = f"\n[... {len(text) - keep + len(line)} characters left out ...]\n"
    head = (keep - len(line) + 1) // 2
    return text[:head] + line + text[len(text) - (keep - len(line) - head) :]


def _size(message: Message) -> int:
    return _AROUND + sum(map(len, _texts(message))) + sum(_call_size(one) for one in _calls(message))


def _calls(message: Message) -> list[Any]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _call_size(call: object) -> int:
    return len(json.dumps(call, ensure_ascii=False, default=str))


def _texts(message: Message) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (text for part in content if (text := _text(part)) is not None)


def _text(part: object) -> str | None:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None
