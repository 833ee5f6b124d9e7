"""Tool calls written as text: a table of forms, and of texts that are none."""

import json

import pytest

from runtime.ports import ToolCall
from runtime.text_calls import FORMS, calls_in

NAMES = {"set_light", "get.weather"}
SCHEMAS = {
    "set_light": {"type": "object", "properties": {"room": {"type": "string"}, "level": {"type": "integer"}}},
}
ROOM = '{"room": "kitchen", "level": 3}'
CALL = f'{{"name": "set_light", "arguments": {ROOM}}}'
LLAMA = CALL.replace("arguments", "parameters")
COHERE = f'{{"tool_call_id": "0", "tool_name": "set_light", "parameters": {ROOM}}}'

#: form, and what it looks like
WRITTEN = [
    ("tool_call", f"<tool_call>\n{CALL}\n</tool_call>"),
    ("tool_call", f"I will.\n<tool_call>{CALL}</tool_call>\nDone soon."),
    ("tool_call", f"<tool_call>{CALL}"),
    ("tool_call", f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>"),
    ("tool_call", f"<tool_calls>[{CALL}]</tool_calls>"),
    ("tool_call", f"<tool_call>{LLAMA}</tool_call>"),
    ("tool_call", f"<tool_call>{CALL}}}</tool_call>"),
    (
        "tool_call",
        "<tool_call>\n<function=set_light>\n<parameter=room>\nkitchen\n</parameter>\n<parameter=level>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
    ),
    (
        "tool_call",
        "<tool_call>set_light\n<arg_key>room</arg_key>\n<arg_value>kitchen</arg_value>\n<arg_key>level</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>",
    ),
    ("function_call", f"<function_call>{CALL}</function_call>"),
    ("function_call", f"<functioncall> {CALL} </functioncall>"),
    ("function", f"<function=set_light>{ROOM}</function>"),
    ("function", "<function=set_light><parameter=room>kitchen</parameter><parameter=level>3</parameter></function>"),
    (
        "invoke",
        '<invoke name="set_light">\n<parameter name="room">kitchen</parameter>\n<parameter name="level">3</parameter>\n'
        "</invoke>",
    ),
    (
        "function_call",
        '<function_calls>\n<invoke name="set_light">\n<parameter name="room">kitchen</parameter>\n'
        '<parameter name="level">3</parameter>\n</invoke>\n</function_calls>',
    ),
    (
        "invoke",
        '<｜DSML｜function_calls><｜DSML｜invoke name="set_light"><｜DSML｜parameter name="room" string="true">kitchen'
        '</｜DSML｜parameter><｜DSML｜parameter name="level" string="false">3</｜DSML｜parameter></｜DSML｜invoke>',
    ),
    (
        "invoke",
        '<minimax:tool_call>\n<invoke name="set_light">\n<parameter name="room">kitchen</parameter>\n'
        '<parameter name="level">3</parameter>\n</invoke>\n</minimax:tool_call>',
    ),
    ("python_tag", f"<|python_tag|>{LLAMA}"),
    ("python_tag", f"<|python_tag|>{LLAMA}<|eom_id|>"),
    ("python_tag", '<|python_tag|>set_light(room="kitchen", level=3)'),
    ("mistral", f"[TOOL_CALLS][{CALL}]"),
    ("mistral", f"[TOOL_CALLS] [{CALL}]</s>"),
    ("mistral", f"[TOOL_CALLS]set_light{ROOM}"),
    ("mistral", f"[TOOL_CALLS]set_light[CALL_ID]a1B2[ARGS]{ROOM}"),
    ("tool_call_token", f"<|tool_call|>[{CALL}]<|/tool_call|>"),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>set_light\n"
        f"```json\n{ROOM}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    ("deepseek", f"<|tool▁calls▁begin|><|tool▁call▁begin|>set_light<|tool▁sep|>{ROOM}<|tool▁call▁end|>"),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.set_light:0<|tool_call_argument_begin|>"
        f"{ROOM}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "cohere",
        f"<|START_ACTION|>[{COHERE}]<|END_ACTION|>",
    ),
    ("internlm", f"<|action_start|><|plugin|>\n{LLAMA}<|action_end|>"),
    ("functionary", f"<|from|>assistant\n<|recipient|>set_light\n<|content|>{ROOM}"),
    ("functionary_3", f">>>set_light\n{ROOM}"),
    ("qwen_agent", f"✿FUNCTION✿: set_light\n✿ARGS✿: {ROOM}\n✿RESULT✿: done\n✿RETURN✿: It is done."),
    ("qwen_agent", f"✿FUNCTION✿: set_light\n✿ARGS✿: {ROOM}"),
    ("harmony", f"<|channel|>commentary to=functions.set_light <|constrain|>json<|message|>{ROOM}<|call|>"),
    ("harmony", f"<|start|>assistant to=functions.set_light<|channel|>commentary json<|message|>{ROOM}<|call|>"),
    ("harmony", f"assistantcommentary to=functions.set_light json{ROOM}"),
    ("tool_call", f"<tool_use>{CALL}</tool_use>"),
    ("tool_call", f"<toolcall>{CALL}</toolcall>"),
    ("python_tag", '<|python_start|>[set_light(room="kitchen", level=3)]<|python_end|>'),
    ("tool_call_token", f"<|tool_calls|>[{CALL}]"),
    ("tool_call_start", "<|tool_call_start|>[set_light(room='kitchen', level=3)]<|tool_call_end|>"),
    ("tool_code", "<tool_code>\nset_light(room='kitchen', level=3)\n</tool_code>"),
    ("start_function_call", f"<start_function_call>call:set_light{ROOM}<end_function_call>"),
    ("functools", f"functools[{CALL}]"),
    ("a fence", f"```json\n{CALL}\n```"),
    ("a fence", f"```\n{LLAMA}\n```"),
    ("a fence", f"I switch it on.\n```json\n{CALL}\n```"),
    ("a fence", '```tool_code\nset_light(room="kitchen", level=3)\n```'),
    ("a fence", '```tool_code\nprint(default_api.set_light(room="kitchen", level=3))\n```'),
    ("a fence", f"```xml\n<tool_call>{CALL}</tool_call>\n```"),
    ("an object", LLAMA),
    ("an object", CALL),
    ("an object", f"[{CALL}]"),
    ("an object", f'{{"tool_calls": [{{"id": "a", "type": "function", "function": {CALL}}}]}}'),
    ("an object", json.dumps({"function": {"name": "set_light", "arguments": ROOM}})),
    ("an object", f"I switch it on.\n\n{LLAMA}"),
    ("an object", f"{CALL} Done."),
    ("an object", f'{{"action": "set_light", "action_input": {ROOM}}}'),
    ("an object", f"set_light{ROOM}"),
    ("an object", f"call:set_light {ROOM}"),
    ("an element", "<set_light><room>kitchen</room>\n<level>3</level></set_light>"),
    ("code", '[set_light(room="kitchen", level=3)]'),
    ("code", "set_light(room='kitchen', level=3)"),
    ("an action", f"Tool call: set_light\nArguments: {ROOM}"),
    ("an action", f"Thought: it is dark.\nAction: set_light\nAction Input: {ROOM}"),
]


@pytest.mark.parametrize(("form", "text"), WRITTEN, ids=[f"{form} {n}" for n, (form, _) in enumerate(WRITTEN)])
def test_a_form_is_read(form, text):
    """One call of the tool, its arguments as they were meant."""
    calls = calls_in(text, NAMES, SCHEMAS)
    assert calls is not None
    assert [call.name for call in calls] == ["set_light"]
    assert json.loads(calls[0].arguments) == {"room": "kitchen", "level": 3}


def test_every_form_is_tried():
    """No row of the table without a text that is written in it."""
    assert {form.name for form in FORMS} <= {form for form, _ in WRITTEN}


@pytest.mark.parametrize(
    "text",
    [
        "It is on.",
        "",
        "Hermes writes `<tool_call>{...}</tool_call>` around a call.",
        f"Hermes writes:\n```\n<tool_call>{CALL}</tool_call>\n```\nand so on.",
        "The tag <tool_call> begins a call, and </tool_call> ends it.",
        "Write `[TOOL_CALLS]` first.",
        "[TOOL_CALLS] is a token.",
        "See /jump?to=bob {now}.",
        "Send it to=functions.set_light",
        '{"room": "kitchen"}',
        '{"name": "Bob", "arguments": []}',
        '{"name": "set_light", "room": "kitchen"}',
        '{"answer": 3}',
        "[1, 2]",
        "[]",
        "{",
        "print(3)",
        "f(x)",
        "Bob (of Oslo)",
        "bob {of Oslo}",
        "<b>It is on.</b>",
        "Tool: wave\nArguments: {}",
        "The functools module.",
        "def f():\n    return set_light(room='kitchen')",
        "```python\nset_light(room='kitchen')\n```",
        '```json\n{"name": "Bob", "arguments": {}}\n```',
        "Action: wave\nAction Input: {}",
        ">>> 1 + 1\n2",
        "<|recipient|>all\n<|content|>It is on.",
        "<|channel|>final<|message|>It is on.",
        "\\d(" * 50 + ")",
    ],
)
def test_an_ordinary_answer_is_no_call(text):
    """A mark that is only spoken about, an object or a line of code of no tool's: the answer stays what it is."""
    assert calls_in(text, NAMES) is None


def test_several_calls_keep_their_order_and_get_ids():
    """One after the other, however they are parted."""
    two = ["set_light", "get.weather"]
    call = '{"name": "%s", "arguments": {}}'
    for text in (
        "".join(f"<tool_call>{call % name}</tool_call>\n" for name in two),
        f"[TOOL_CALLS][{', '.join(call % name for name in two)}]",
        f"<|python_tag|>{'; '.join(call % name for name in two)}",
        "".join(f"<function={name}>{{}}</function>" for name in two),
        "".join(f"[TOOL_CALLS]{name}{{}}" for name in two),
        "[set_light(), get.weather()]",
        " ".join(call % name for name in two),
        "\n".join(call % name for name in two),
        f"[{', '.join(call % name for name in two)}]",
        "```tool_code\nset_light()\nget.weather()\n```",
    ):
        assert calls_in(text, NAMES) == [
            ToolCall(id="text-1", name="set_light", arguments="{}"),
            ToolCall(id="text-2", name="get.weather", arguments="{}"),
        ]


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('<tool_call>{"name": "set_light", "arguments": {"room": </tool_call>', "set_light", None),
        ("<tool_call>{'name': 'set_light'}</tool_call>", "", None),
        ('<tool_call>{"room": "kitchen"}</tool_call>', "", None),
        ("<function=fly>{}</function>", "fly", "{}"),
        ('{"name": "set_light", "arguments": {"room": "k"', "set_light", None),
        ('{"name": "functions.set_light", "arguments": {}}', "functions.set_light", "{}"),
        ("<start_function_call>call:set_light{room:<escape>k<escape>}", "set_light", "{room:<escape>k<escape>}"),
        ("```tool_code\nset_light('kitchen')\n```", "set_light", "set_light('kitchen')"),
        ("```tool_code\nset_light(room=kitchen)\n```", "set_light", "set_light(room=kitchen)"),
        ('<tool_call>{"name": "set_light", "arguments": {"a": 1, "a": 2}}</tool_call>', "set_light", None),
    ],
)
def test_what_cannot_be_read_is_left_as_written(text, name, arguments):
    """It is a call all the same: whoever executes it complains."""
    (call,) = calls_in(text, NAMES)
    assert call.name == name
    assert call.arguments == arguments or (arguments is None and "{" in call.arguments)


def test_a_schema_says_which_values_are_texts():
    """A value between tags is a text where the tool wants one; elsewhere it is the JSON that it looks like."""
    text = "<function=set_light><parameter=room>12</parameter><parameter=level>12</parameter></function>"
    (call,) = calls_in(text, NAMES, SCHEMAS)
    assert json.loads(call.arguments) == {"room": "12", "level": 12}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "`" * 200_000,
        "```a\n" * 100_000,
        "<tool_call>" * 50_000,
        "<tool_call>{" * 50_000,
        "[TOOL_CALLS]" + " " * 500_000,
        "[TOOL_CALLS]" + "a" * 500_000,
        "<function=" * 50_000,
        "<function=a>" * 50_000,
        '<invoke name="a">' * 30_000,
        "<|channel|>commentary to=" * 30_000,
        "[" * 500_000,
        "{" * 500_000,
        "{\n" * 200_000 + "}",
        "(" * 500_000 + ")",
        "a(" * 9_000 + ")" * 9_000,
        "<|recipient|>" * 40_000,
        ">>>a\n" * 100_000,
        "<arg_key>" * 50_000,
        "<tool_call>a\n<arg_key>" * 20_000,
        "<tool_call>a<arg_key>b</arg_key>" * 20_000,
        "<parameter=" + " " * 200_000,
        "<function=a><parameter=b" + " " * 200_000,
        "<" + "a" * 900_000,
        "Action: " * 100_000,
        "<a>" * 6000,
        "<a>" * 300_000,
        "<tool_call>" + "a" * 900_000,
        "\n" * 900_000 + "Action: a\nAction Input: " + "\n" * 50_000,
    ],
    ids=lambda text: text[:24],
)
def test_a_vast_text_is_judged_in_time(text):
    """Work grows with the length, not with its square, which would be minutes."""
    assert calls_in(text, {"a"}) is None or len(text) > 10_000


DEEP = {
    "[": "[{}]",
    '{"function":': '{"function":{}}',
    "<tool_call>[": "<tool_call>[{}]</tool_call>",
    "[TOOL_CALLS][": "[TOOL_CALLS][{}]",
    "f(": "set_light(a=f({}))",
    "a=[": "set_light(a=[{}])",
    "-": "set_light(a=-{})",
    "1+": "set_light(a=1+{})",
}


def nested(form, levels):
    opening, closing = form.split("{}")[0][-1], form.split("{}")[1][:1]
    return form.replace("{}", opening * levels + "1" + (closing if closing in "])" else "") * levels)


def lower(stack, text):
    """`calls_in` from further down the stack."""
    return lower(stack - 1, text) if stack else calls_in(text, NAMES)


@pytest.mark.parametrize("form", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("levels", [30, 70, 300, 450, 600, 900, 5000])
def test_depth_is_judged_alike_wherever_it_is_read(form, levels):
    """What a parser can follow depends on who calls it; what is read does not."""
    text = nested(form, levels)
    assert calls_in(text, NAMES) == lower(300, text)
