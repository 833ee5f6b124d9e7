"""Tool calls that a model wrote as text, in the forms of the common chat templates.

An endpoint without a parser for its model's form hands such text out as the answer. What is recognised is a table,
`FORMS`; each row has a test. A form counts where it is used: a mark inside code, or in a sentence about it, is none.
"""

import ast
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from events.codec import DEEPEST
from runtime.code_spans import last_fence, without_code
from runtime.json_values import read_json
from runtime.ports import ToolCall

#: tool -> its parameters as a JSON schema
Schemas = Mapping[str, Any]
_Reader = Callable[[str, Schemas], Iterator[ToolCall]]

#: fields of an object that is a call: its tool, and its arguments
_NAMES = ("name", "tool_name", "tool", "function", "action")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "action_input")
#: what a fence around a call says that it holds
_LANGUAGES = frozenset({"", "json", "xml", "text", "tool_call", "tool_calls"})
#: a longer text is no call, characters
_LONGEST = 1_000_000
#: and a longer one no line of code
_LONGEST_CODE = 20_000
#: an object at the end of a text is looked for at so many places
_STARTS = 16
#: the same in JSON that cannot be read
_NAME = re.compile(rf'"(?:{"|".join(_NAMES)})"\s*:\s*"([^"\\]*)"')


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write calls."""

    #: as documents and tests call it
    name: str
    #: a part of its mark, in lower case: found much faster than by a pattern
    hint: str
    #: where a call, or a list of them, begins: what it matches is the mark, what follows the body
    begins: re.Pattern[str]
    #: where it ends; what is missing ends with the text
    ends: re.Pattern[str]
    #: the body -> its calls; none = the mark was not used
    read: _Reader


def calls_in(text: str, names: Collection[str], schemas: Schemas | None = None) -> list[ToolCall] | None:
    """The calls that `text` makes, in order; None where it makes none and is an ordinary answer.

    What cannot be read of a call is left as it was written: whoever executes it will complain.

    Args:
        text: a model's answer.
        names: tools that are offered. An object, or a line of code, without any mark is a call only of one of these.
        schemas: their parameters; says which values of the forms without JSON are texts.
    """
    if len(text) > _LONGEST:
        return None
    known = schemas or {}
    calls: list[ToolCall] = []
    if (fence := last_fence(text)) is not None:
        before, language, code = fence
        if language == "tool_code":
            calls = list(_code_calls(code, known))
        elif language in _LANGUAGES:
            calls = ([] if before.strip() else _marked(code, known)) or _bare(code, names, known)
    calls = calls or _marked(text, known) or _bare(text, names, known) or _last_object(text, names)
    return _numbered(calls) if calls else None


def _numbered(calls: list[ToolCall]) -> list[ToolCall]:
    return [ToolCall(id=f"text-{n}", name=one.name, arguments=one.arguments) for n, one in enumerate(calls, 1)]


def _marked(text: str, schemas: Schemas) -> list[ToolCall]:
    """The calls behind marks; of the form whose mark comes first."""
    lowered = text.lower()
    hinted = [form for form in FORMS if form.hint in lowered]
    seen = without_code(text) if hinted else text
    found = [(match.start(), place) for place, form in enumerate(hinted) if (match := form.begins.search(seen))]
    for _, place in sorted(found):
        form = hinted[place]
        calls: list[ToolCall] = []
        at = 0
        while (begin := form.begins.search(seen, at)) is not None:
            end = form.ends.search(text, begin.end())
            body = text[begin.end() : end.start() if end else len(text)]
            calls += form.read(body, schemas)
            at = end.end() if end else len(text)
        if calls:
            return calls
    return []


def _bare(text: str, names: Collection[str], schemas: Schemas) -> list[ToolCall]:
    """The calls that the whole text is, each of a tool that is offered."""
    stripped = text.strip()
    calls: list[ToolCall] = []
    if stripped.startswith(("{", "[")):
        calls = _objects(stripped, schemas)
    elif stripped.endswith(")"):
        calls = list(_code_calls(stripped, schemas))
    elif match := _ACTION.fullmatch(stripped) or _APPLIED.fullmatch(stripped):
        calls = [ToolCall(id="", name=match[1].strip(), arguments=match[2].strip())]
    elif len(stripped) < _LONGEST_CODE and (match := _ELEMENT.fullmatch(stripped)):
        calls = [_of_texts(match[1], _ELEMENTS.findall(match[2]), schemas)]
    return calls if all(_offered(call, names) for call in calls) else []


def _offered(call: ToolCall, names: Collection[str]) -> bool:
    # With the prefix it is meant, if not exactly: whoever executes it says so.
    return call.name in names or call.name.removeprefix("functions.") in names


def _objects(text: str, schemas: Schemas) -> list[ToolCall]:
    """The calls of one object or list, or of several behind each other; one that is broken off is left as written."""
    calls: list[ToolCall] = []
    for one in _values(text):
        if not isinstance(one, str):
            found = list(_of_value(one))
        elif (named := _NAME.search(one)) and any(f'"{name}"' in one for name in _ARGUMENTS):
            found = [ToolCall(id="", name=named[1], arguments=one)]
        else:
            found = list(_code_calls(text, schemas)) if text.startswith("[") else []
        if not found:
            return []
        calls += found
    return calls


def _last_object(text: str, names: Collection[str]) -> list[ToolCall]:
    """The call that an object at the end of the text is, on lines of its own: of a tool that is offered."""
    stripped = text.rstrip()
    if not stripped.endswith("}"):
        return []
    for start in [match.start() for match in _OBJECT.finditer(stripped)][-_STARTS:]:
        try:
            value = read_json(stripped[start:])
        except ValueError:
            continue
        calls = list(_of_value(value)) if any(name in value for name in _ARGUMENTS) else []
        return calls if all(_offered(call, names) for call in calls) else []
    return []


# -- readers of a body -------------------------------------------------------------------------------------------------


def _json_calls(body: str, _: Schemas) -> Iterator[ToolCall]:
    """An object or a list of objects; what is broken, or names no tool, is a call all the same."""
    stripped = body.strip()
    if (fence := last_fence(stripped)) is not None and not fence[0]:
        stripped = fence[2].strip()
    for one in _values(stripped):
        calls = [] if isinstance(one, str) else list(_of_value(one))
        if calls:
            yield from calls
        else:
            written = one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
            named = _NAME.search(written)
            yield ToolCall(id="", name=named[1] if named else "", arguments=written)


def _values(text: str) -> Iterator[Any]:
    """The objects and lists that `text` begins with, behind each other or with `;` between; a broken one as text."""
    decoder = json.JSONDecoder()
    at = 0
    while text.startswith(("{", "["), at):
        try:
            _, end = decoder.raw_decode(text, at)
            value = read_json(text[at:end])
        except (ValueError, RecursionError):
            yield text[at:]
            return
        yield value
        between = _BETWEEN.match(text, end)
        at = between.end() if between else end


def _of_value(value: Any) -> Iterator[ToolCall]:
    """The calls of a JSON value; none where it is no call."""
    if isinstance(value, list):
        calls = [list(_of_value(one)) for one in value]
        if all(calls):
            yield from (call for one in calls for call in one)
    elif isinstance(value, dict):
        if isinstance(listed := value.get("tool_calls"), list):
            yield from _of_value(listed)
        elif isinstance(function := value.get("function"), dict):
            yield from _of_value(function)
        else:
            yield from _of_object(value)


def _of_object(value: dict[str, Any]) -> Iterator[ToolCall]:
    name = next((value[one] for one in _NAMES if isinstance(value.get(one), str)), None)
    given = next((one for one in _ARGUMENTS if one in value), None)
    if name is None or (given is None and set(value) - {*_NAMES, "id", "type"}):
        return
    arguments = value[given] if given else {}
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    yield ToolCall(id="", name=name, arguments=arguments)


_OBJECT = re.compile(r"^\{", re.MULTILINE)
_BETWEEN = re.compile(r"[\s;,]*")
# Bounded, and no two repetitions side by side that may match the same: a hostile text must not take its square in time.
_FUNCTION = re.compile(r"<function=([^<>\s]{1,200})\s{0,9}>(.*?)(?:</function>|(?=<function=)|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>]{1,200})>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_INVOKE = re.compile(
    r"<(?:[\w｜|]{1,40}:?)?invoke\s{1,9}name=\"([^\"<>]{0,200})\"[^<>]{0,200}>(.*?)"
    r"(?:</(?:[\w｜|]{1,40}:?)?invoke>|\Z)",
    re.DOTALL,
)
_INVOKED = re.compile(
    r"<(?:[\w｜|]{1,40}:?)?parameter\s{1,9}name=\"([^\"<>]{0,200})\"[^<>]{0,200}>(.*?)"
    r"(?:</(?:[\w｜|]{1,40}:?)?parameter>|\Z)",
    re.DOTALL,
)
_PAIR = re.compile(r"<arg_key>([^<>]{1,200})</arg_key>\s*+<arg_value>(.*?)(?:</arg_value>|\Z)", re.DOTALL)
_PAIRED = re.compile(r"\s*+([\w.-]{1,200})\s*+(?=<arg_key>|\Z)")
#: a tool and its arguments on lines of their own
_ACTION = re.compile(
    r"(?:Thought:[^\n]*\n\s*+)?(?:Action|(?:Tool|Function)(?: Call)?):([^\n]{1,200})\n\s*+"
    r"(?:Action Input|Arguments|Args|Parameters|Input):(.*)",
    re.DOTALL | re.IGNORECASE,
)
#: a tool with an object behind it
_APPLIED = re.compile(r"(?:call:)?([\w.-]{1,200})\s*+(\{.*\})", re.DOTALL)
#: an element that is named like a tool, and those inside like its arguments
_ELEMENT = re.compile(r"<([\w.-]{1,200})>(.*)</\1>", re.DOTALL)
_ELEMENTS = re.compile(r"<([\w.-]{1,200})>(.*?)</\1>", re.DOTALL)


def _tagged_calls(body: str, schemas: Schemas) -> Iterator[ToolCall]:
    """What stands between call tags: JSON, `<function=...>`, or a name with pairs of keys and values."""
    if _FUNCTION.search(body):
        yield from _function_calls(body, schemas)
    elif "<arg_key>" in body and (named := _PAIRED.match(body)):
        yield _of_texts(named[1], _PAIR.findall(body), schemas)
    elif _INVOKE.search(body):
        yield from _invocations(body, schemas)
    else:
        yield from _json_calls(body, schemas)


def _function_calls(body: str, schemas: Schemas) -> Iterator[ToolCall]:
    for name, inside in _FUNCTION.findall(body):
        if "<parameter=" in inside:
            yield _of_texts(name, _PARAMETER.findall(inside), schemas)
        else:
            yield ToolCall(id="", name=name, arguments=inside.strip())


def _invocations(body: str, schemas: Schemas) -> Iterator[ToolCall]:
    for name, inside in _INVOKE.findall(body):
        yield _of_texts(name, _INVOKED.findall(inside), schemas)


def _of_texts(name: str, fields: list[tuple[str, str]], schemas: Schemas) -> ToolCall:
    """A call whose values are texts: read as JSON where they are some, unless the tool wants a text."""
    properties = _properties(schemas.get(name.strip()))
    arguments: dict[str, Any] = {}
    for key, text in fields:
        # One line end belongs to the tag on either side.
        value: Any = text.removeprefix("\n").removesuffix("\n")
        wanted = properties.get(key.strip())
        if not (isinstance(wanted, Mapping) and wanted.get("type") == "string"):
            try:
                value = read_json(value)
            except ValueError:
                value = str(value)
        arguments[key.strip()] = value
    return ToolCall(id="", name=name.strip(), arguments=json.dumps(arguments, ensure_ascii=False))


def _properties(schema: object) -> Mapping[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


_NAMED_JSON = re.compile(
    r"\s*+(?:function\s*+<[|｜]tool▁sep[|｜]>)?\s*+(?:functions\.)?(?P<name>[\w.-]{1,200}?)(?::\d+)?"
    r"(?:<[^<>{]{1,60}>|\[CALL_ID\][\w-]{1,60}|\[ARGS\]|✿ARGS✿:|\s)*+(?:```(?:json)?+\s*+)?(?P<json>\{.*)",
    re.DOTALL,
)


def _named_calls(body: str, schemas: Schemas) -> Iterator[ToolCall]:
    """A tool's name and an object behind it, or JSON that names the tool itself."""
    match = _NAMED_JSON.match(body)
    if match is None:
        yield from _json_calls(body, schemas)
        return
    text = match["json"]
    try:
        _, end = json.JSONDecoder().raw_decode(text)
        read_json(text[:end])
    except (ValueError, RecursionError):
        end = len(text)
    yield ToolCall(id="", name=match["name"], arguments=text[:end])


_RECIPIENT = re.compile(r"\s*+([\w.-]{1,200})(?=[\s<{]|\Z)(.*)", re.DOTALL)


def _harmony_calls(body: str, _: Schemas) -> Iterator[ToolCall]:
    """The recipient's name, headers, and the message."""
    match = _RECIPIENT.match(body)
    if match is None:
        return
    head, mark, message = match[2].partition("<|message|>")
    if not mark and "{" in head:
        # Special tokens are gone: the message begins where it can.
        message = head[head.find("{") :]
    if message.strip():
        yield ToolCall(id="", name=match[1], arguments=message.strip())


def _python_calls(body: str, schemas: Schemas) -> Iterator[ToolCall]:
    yield from list(_code_calls(body, schemas)) or _json_calls(body, schemas)


def _code_calls(code: str, _: Schemas) -> Iterator[ToolCall]:
    """Calls as lines of Python, or a list of them: of literals by keyword. Other arguments are left as written."""
    if len(code) > _LONGEST_CODE:
        return
    try:
        with warnings.catch_warnings():
            # Of escapes that Python does not know: the text is the model's.
            warnings.simplefilter("ignore")
            lines = ast.parse(code.strip()).body
        if _deeper_than_data(lines):
            return
        values = [line.value if isinstance(line, ast.Expr) else None for line in lines]
        nodes = [one for value in values for one in (value.elts if isinstance(value, ast.List) else [value])]
        calls = [_unprinted(one) for one in nodes]
        yield from [_of_code(one) for one in calls if one is not None] if all(calls) else ()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return


def _deeper_than_data(lines: Sequence[ast.AST]) -> bool:
    """Whether code is nested deeper than data may be: how deep it could be read would depend on who asks."""
    layer = list(lines)
    for _ in range(DEEPEST):
        layer = [inner for outer in layer for inner in ast.iter_child_nodes(outer)]
    return bool(layer)


def _unprinted(node: ast.AST | None) -> ast.Call | None:
    """The call that a line is, `print` around it aside."""
    match node:
        case ast.Call(func=ast.Name(id="print"), args=[inner]):
            return inner if isinstance(inner, ast.Call) else None
        case ast.Call():
            return node
        case _:
            return None


def _of_code(call: ast.Call) -> ToolCall:
    name = ast.unparse(call.func).removeprefix("default_api.")
    arguments = ast.unparse(call)
    if not call.args and all(one.arg for one in call.keywords):
        try:
            values = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
            arguments = json.dumps(values, ensure_ascii=False)
        except (ValueError, TypeError):
            pass
    return ToolCall(id="", name=name, arguments=arguments)


_FLAGS = re.IGNORECASE | re.MULTILINE


def _form(name: str, hint: str, begins: str, ends: str, read: _Reader) -> Form:
    return Form(name, hint, re.compile(begins, _FLAGS), re.compile(ends, _FLAGS), read)


#: what opens a body between call tags
_OPENS = r"(?=\s*(?:[{\[<`]|[\w.-]{1,200}\s*<arg_key>))"

#: every form with a mark, and who writes it
FORMS: tuple[Form, ...] = (
    # Hermes, Qwen, GLM; lists of calls too.
    _form("tool_call", "<tool", rf"<tool_?(?:calls?|use)>{_OPENS}", r"</tool_?(?:calls?|use)>", _tagged_calls),
    _form("function_call", "<function", rf"<function_?calls?>{_OPENS}", r"</function_?calls?>", _tagged_calls),
    # Llama, Functionary 3.1, Qwen Coder.
    _form("function", "<function=", r"(?=<function=[^<>\s]{1,200}\s{0,9}>)", r"\Z", _function_calls),
    # Claude, MiniMax, DeepSeek 3.2.
    _form("invoke", "invoke", r"(?=<(?:[\w｜|]{1,40}:?)?invoke\s{1,9}name=)", r"\Z", _invocations),
    # Llama.
    _form(
        "python_tag", "<|python_", r"<\|python_(?:tag|start)\|>", r"<\|(?:eom_id|eot_id|python_end)\|>", _python_calls
    ),
    _form("mistral", "[tool_calls]", r"\[TOOL_CALLS\]", r"(?=\[TOOL_CALLS\])|</s>", _named_calls),
    # Granite, Phi.
    _form("tool_call_token", "<|tool_call", r"<\|tool_calls?\|>", r"<\|/tool_calls?\|>|<\|end\|>", _json_calls),
    # LFM.
    _form("tool_call_start", "<|tool_call_start", r"<\|tool_call_start\|>", r"<\|tool_call_end\|>", _python_calls),
    # Gemma.
    _form("tool_code", "<tool_code>", r"<tool_code>", r"</tool_code>", _python_calls),
    _form(
        "start_function_call", "<start_function_call>", r"<start_function_call>\s*(?:call:)?", r"<end_function_call>",
        _named_calls,
    ),
    # Firefunction, Phi.
    _form("functools", "functools", r"^functools(?=\s*\[\s*\{)", r"\Z", _json_calls),
    _form("deepseek", "tool▁call▁begin", r"<[|｜]tool▁call▁begin[|｜]>", r"<[|｜]tool▁call▁end[|｜]>", _named_calls),
    _form("kimi", "<|tool_call_begin|>", r"<\|tool_call_begin\|>", r"<\|tool_call_end\|>", _named_calls),
    _form("cohere", "<|start_action|>", r"<\|START_ACTION\|>", r"<\|END_ACTION\|>", _json_calls),
    _form("internlm", "<|action_start|>", r"<\|action_start\|>\s*(?:<\|plugin\|>)?", r"<\|action_end\|>", _json_calls),
    # Functionary 2 and 3.
    _form(
        "functionary", "<|recipient|>", r"<\|recipient\|>(?!\s*all\b)", r"<\|stop\|>|(?=<\|from\|>)", _named_calls
    ),
    _form("functionary_3", ">>>", r"^>>>(?=[ \t]*(?!all\b)[\w.-]+[ \t]*\n\s*\{)", r"(?=^>>>)", _named_calls),
    # Qwen's own agent.
    _form("qwen_agent", "✿function✿", "✿FUNCTION✿:", "✿RESULT✿|✿RETURN✿|(?=✿FUNCTION✿)", _named_calls),
    # gpt-oss; its marks are lost where a server drops special tokens.
    _form(
        "harmony",
        "to=",
        r"(?:<\|start\|>assistant\s{1,9}|<\|channel\|>\w{1,20}\s{1,9})to=(?:functions\.)?(?=[\w.-])"
        r"|\bto=functions\.(?=[\w.-])",
        r"<\|call\|>|<\|end\|>|(?=<\|start\|>)",
        _harmony_calls,
    ),
)  # fmt: skip
