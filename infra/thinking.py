"""What a model thought, told apart from what it answered.

Servers without a parser for their model's marks, or with one that is not set up, hand the thinking out inside the
answer. The marks are a table; each row has a test. What stands in code, or inside an answer that is JSON, is the
answer's own.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from runtime.code_spans import without_code
from runtime.json_values import too_deep

#: XML-like marks, and who writes them; attributes may follow
_TAGS = (
    "think",  # DeepSeek, Qwen, most others
    "thinking",  # Claude's prompts, Granite
    "thought",
    "thoughts",
    "reasoning",
    "scratchpad",
    "seed:think",  # Seed
)
#: other marks, as they begin and end
_PAIRS = (
    (r"\[THINK\]", r"\[/THINK\]"),  # Magistral
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Command
    ("◁think▷", "◁/think▷"),  # Kimi
    (r"<\|channel>thought\b", r"<channel\|>"),  # Gemma
    ("<unused94>", "<unused95>"),  # MedGemma
)
_MARK = re.compile(
    rf"<(?P<over>/?)(?P<tag>{'|'.join(_TAGS)})(?:\s[^<>]{{0,200}})?>"
    + "".join(f"|(?P<begin{n}>{begin})|(?P<end{n}>{end})" for n, (begin, end) in enumerate(_PAIRS)),
    re.IGNORECASE,
)
#: without one of these there is no mark: found much faster than by a pattern
_HINTS = (
    *(
        f"{begin}{tag}"
        for tag in ("think", "thought", "reasoning", "scratchpad", "seed:think")
        for begin in ("<", "</")
    ),
    *("[think]", "[/think]", "<|begin_of_thought|>", "<|end_of_thought|>", "<|start_thinking|>", "<|end_thinking|>"),
    *("◁think▷", "◁/think▷", "<|channel", "<channel|>", "<unused94>", "<unused95>", "assistantfinal"),
)
_CODE = re.compile("`|~~~")
_TAG_ENDS = {tag: re.compile(rf"</{tag}\s{{0,9}}>", re.IGNORECASE) for tag in _TAGS}
_PAIR_ENDS = [re.compile(end, re.IGNORECASE) for _, end in _PAIRS]

#: gpt-oss: one message after the other, each on a channel
_CHANNEL = re.compile(r"<\|channel\|>")
_MESSAGE = re.compile(
    r"<\|channel\|>(?P<channel>\w{0,40})(?P<more>[^<]{0,200}(?:<\|constrain\|>[^<]{0,200})?)(?:<\|message\|>|\Z)"
    r"(?P<body>.*?)(?:<\|(?:end|return|call)\|>|(?=<\|(?:start|channel)\|>)|\Z)",
    re.DOTALL,
)
_HEADER = re.compile(r"(?:<\|start\|>assistant)?(?P<to>[ \t]*to=[^\s<>]{1,200})?[ \t]*\Z")
_HEADER_CHARS = 300
#: the same from a server that drops special tokens
_UNMARKED = re.compile(r"\A\s*analysis(?=\S)(?P<thought>.*?)assistantfinal(?P<answer>.*)\Z", re.DOTALL)

#: fields of a message that hold thinking, and of the parts that they may have
_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks", "thoughts")
_PARTS = ("text", "thinking", "reasoning", "summary", "content")
#: parts inside parts
_DEEPEST = 4
#: marks of one answer; what stands behind so many is taken for thinking, as most of the text was
_MOST = 300
#: of those, the ones after which code is looked for anew, each time through all that is left
_MOST_ANEW = 30


@dataclass(frozen=True, slots=True)
class Spoken:
    """One text, parted."""

    answer: str
    thought: str


def told_apart(text: str) -> Spoken:
    """`text` without the thinking in it, and that thinking.

    A block that is not ended goes to the end of the text; one that is ended without having begun, since the server's
    template began it, goes from the start.
    """
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return Spoken(text, "")
    if _CHANNEL.search(without_code(text)):
        return _channels(text)
    if unmarked := _UNMARKED.match(text):
        return Spoken(unmarked["answer"], unmarked["thought"].strip())
    if not _MARK.search(text) or _is_json(text):
        return Spoken(text, "")
    return _parted(text)


def _parted(text: str) -> Spoken:
    answer, thoughts = list[str](), list[str]()
    at, seen, anew = 0, without_code(text), 0
    for _ in range(_MOST):
        mark = _MARK.search(seen, at)
        if mark is None:
            answer.append(text[at:])
            break
        ending = _end_of(mark)
        end = ending.search(text, mark.end()) if ending else None
        before, begun = text[at : mark.start()], mark.start()
        if ending is None:
            begun = at
            thoughts.append("".join([*answer, before]))
            answer, at = [], mark.end()
        elif end is not None:
            answer.append(before)
            thoughts.append(text[mark.end() : end.start()])
            at = end.end()
        elif not text[text.rfind("\n", 0, mark.start()) + 1 : mark.start()].strip():
            # It begins a line: there it is used, whether it is ended or not.
            answer.append(before)
            thoughts.append(text[mark.end() :])
            break
        else:
            answer.append(text[at : mark.end()])
            at = mark.end()
            continue
        # White space on one side of a block is enough; and what was no code before it may be some now.
        at = len(text) - len(text[at:].lstrip())
        if _CODE.search(text, begun, at) or text.startswith(("```", "~~~"), at):
            anew += 1
            if anew > _MOST_ANEW:
                thoughts.append(text[at:])
                break
            seen = text[:at] + without_code(text[at:])
    else:
        thoughts.append(text[at:])
    return Spoken("".join(answer).lstrip() if thoughts else text, _joined(thoughts))


def _end_of(mark: re.Match[str]) -> re.Pattern[str] | None:
    """What ends the block that `mark` begins; None where it is an end itself."""
    if mark["tag"]:
        return None if mark["over"] else _TAG_ENDS[mark["tag"].lower()]
    name = str(mark.lastgroup)
    return _PAIR_ENDS[int(name[-1])] if name.startswith("begin") else None


def _channels(text: str) -> Spoken:
    """The channel `analysis` is thinking; a message that is sent to a tool stays as it is, for whoever reads calls."""
    answer, thoughts = list[str](), list[str]()
    at = 0
    for message in _MESSAGE.finditer(text):
        before = text[at : message.start()]
        header = _HEADER.search(before, max(0, len(before) - _HEADER_CHARS))
        begun = header.start() if header else len(before)
        answer.append(before[:begun])
        at = message.end()
        if (header and header["to"]) or "to=" in message["more"]:
            answer.append(before[begun:] + message[0])
        elif message["channel"] == "analysis":
            thoughts.append(message["body"])
        else:
            answer.append(message["body"])
    return Spoken("".join([*answer, text[at:]]).strip(), _joined(thoughts))


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[", '"')):
        return False
    try:
        return not too_deep(json.loads(text))
    except (ValueError, RecursionError):
        return False


def thought_in(message: dict[str, Any]) -> str:
    """The thinking in a message's own fields for it, each text once: some servers fill two of them."""
    return _joined([text for name in _FIELDS for text in texts_in(message.get(name))])


def texts_in(given: object, deep: int = _DEEPEST) -> list[str]:
    """Every text in a string, a part, or a list of parts."""
    match given:
        case str():
            return [given]
        case list() if deep:
            return ["".join(text for one in given for text in texts_in(one, deep - 1))]
        case dict() if deep:
            return [text for name in _PARTS for text in texts_in(given.get(name), deep - 1)]
        case _:
            return []


def _joined(texts: list[str]) -> str:
    kept: list[str] = []
    for text in (one.strip() for one in texts):
        if text and text not in kept:
            kept.append(text)
    return "\n\n".join(kept)
