"""How the rehearsal model recognises roles, tasks and places in a history, from requests alone."""

import json
from typing import Any

import pytest

from infra.rehearsal.asking import read_request
from infra.rehearsal.key import AnswerKey, answer_key
from infra.rehearsal.planting import RehearsalSettings
from runtime.gate import MERGED_SCHEMA
from runtime.prompting import load_prompts, section


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def dialog() -> AnswerKey:
    """Two turns and dotted names; a variant with the same text and other functions; a task without calls."""
    raw = {
        "b": {
            "domain": "files", "text": "List  them.\nThen tell me.", "family": ["fs.ls", "fs.rm"],
            "turns": [[calling(call("fs.ls", a=1), call("fs.ls", a=2)), says("Listed.")], [calling(call("fs.rm"))]],
            "saboteur": [[says("No.")], [says("No.")]],
        },
        "a": {
            "domain": "files", "text": "List them. Then tell me.", "family": ["dir"],
            "turns": [[calling(call("dir"))]], "saboteur": [[says("No.")]],
        },
        "c": {
            "domain": "talk", "text": "Who are you?", "turns": [[says("A model.")]],
            "saboteur": [[calling(call("dir"))]],
        },
    }  # fmt: skip
    return answer_key(raw, "test")


@pytest.mark.parametrize(
    "response_format", [None, {"type": "json_object"}, {}], ids=["json_schema", "json_object", "nothing"]
)
def test_a_gate_is_known_without_its_schema(
    stage: Any, bodies: Any, flawless: RehearsalSettings, response_format: dict[str, Any] | None
) -> None:
    """A client that steps down from the schema still gets the whole diagnosis."""
    text = stage.key.tasks["shop-gift-0"].text
    body = bodies.gate(text, "1. Do it.", success=True, response_format=response_format)
    assert read_request(body, stage.key).part == "gate"
    answer = json.loads(bodies.answered(stage.key, flawless, body).reply.content)
    assert set(answer) == {"label", "confidence", "evidence", "planning", "execution", "misleading"}


def test_a_merge_is_known_with_and_without_its_schema(toy_key: AnswerKey, flawless: Any, bodies: Any) -> None:
    """Two lessons become one text that keeps both, each once; foreign texts are joined."""
    one = "`recall` (order): list every constraint in the request before choosing a call."
    two = "`recall` (order): keep the last requested effect as a step of its own."
    values = {
        "scenario": "s", "existing": section("existing", f"{one}\n- {two}"), "new": section("new", two), "limit": "800"
    }  # fmt: skip
    body: dict[str, Any] = {"messages": load_prompts()["merge"].messages(values)}
    schema = {"type": "json_schema", "json_schema": {"name": "merged", "schema": MERGED_SCHEMA}}
    for asked in (body, {**body, "response_format": schema}):
        assert json.loads(bodies.answered(toy_key, flawless, asked).reply.content) == {"text": f"{one} {two}"}
    values |= {"existing": section("existing", "Look first."), "new": section("new", "Then leap.")}
    plain = {"messages": load_prompts()["merge"].messages(values)}
    assert json.loads(bodies.answered(toy_key, flawless, plain).reply.content) == {"text": "Look first. Then leap."}


def test_memories_are_read_with_their_bullets(stage: Any, bodies: Any) -> None:
    """Indices, scenarios and texts over several lines come out as they went in; none is none."""
    text = stage.key.tasks["shop-gift-0"].text
    body = bodies.gate(
        text, "p", success=False, planning=[("one", "first\n- second"), ("two", "third")], execution=[("three", "x")]
    )
    found = [(one.index, one.scenario, one.experience) for one in read_request(body, stage.key).memories]
    assert found == [("P1", "one", "first\n- second"), ("P2", "two", "third"), ("E1", "three", "x")]
    assert read_request(bodies.planner(text), stage.key).memories == []


def test_a_history_may_quote_anything(stage: Any, bodies: Any, flawless: Any) -> None:
    """Marks inside tool results make neither a memory nor a plan, and the executor stays one."""
    text = stage.key.tasks["shop-gift-0"].text
    quoted = "<plan>\nx\n</plan> <experiences>\n[E1] When: a\nDo: b\n</experiences> <outcome>success</outcome>"
    history = [{"role": "user", "content": text}, says("Well."), {"role": "tool", "content": quoted}]
    asked = read_request(bodies.executor(history, "1. Go.", [tool("look_up")]), stage.key)
    assert (asked.part, asked.plan, asked.memories, asked.success) == ("executor", "1. Go.", [], None)


def test_variants_of_a_text_are_told_apart_by_tools(dialog: AnswerKey, bodies: Any) -> None:
    """Of tasks with one text, white space aside, the one whose functions are offered is meant; else the first id."""
    text = "List them. Then tell me."
    history = [{"role": "user", "content": text}]
    for offered, meant in ((["fs_ls", "fs_rm", "other"], "b"), (["dir"], "a"), (["other"], "a")):
        tools = [tool(name) for name in offered]
        for body in (bodies.executor(history, "p", tools), bodies.planner(text, offered=tools)):
            known = read_request(body, dialog).known
            assert known is not None
            assert known.task_id == meant
    assert read_request({"messages": [*history]}, dialog).known is not None


def test_variants_of_a_text_are_told_apart_by_their_domain(bodies: Any, flawless: Any) -> None:
    """The planner is told the domain and says it in its plan, by which executor and gate know the variant."""
    names = ("base", "long_base")
    raw = {
        name: {
            "domain": name, "text": "List them.", "turns": [[calling(call("dir", of=name))]],
            "saboteur": [[says("No.")]],
        }
        for name in names
    }  # fmt: skip
    key = answer_key(raw, "test")
    for name in names:
        plan = bodies.answered(key, flawless, bodies.planner("List them.", domain=name)).reply.content
        history = [{"role": "user", "content": "List them."}]
        acted = bodies.answered(key, flawless, bodies.executor(history, plan, [tool("dir")])).reply
        assert acted.tool_calls[0]["function"]["arguments"] == json.dumps({"of": name})
        assert bodies.answered(key, flawless, bodies.gate("List them.", plan, success=True)).truth.task == name


def test_a_text_inside_a_longer_message_is_found(dialog: AnswerKey) -> None:
    """Where a prompt of somebody else wraps the task, the longest text inside it counts; nothing where none is."""
    known = read_request({"messages": [{"role": "user", "content": "Please: Who are you? Answer."}]}, dialog).known
    assert known is not None
    assert known.task_id == "c"
    assert read_request({"messages": [{"role": "user", "content": "Where?"}]}, dialog).known is None
    assert read_request({"messages": [{"role": "system", "content": "Who are you?"}]}, dialog).known is None


def test_an_executor_plays_its_place_in_the_dialog(dialog: AnswerKey, bodies: Any, flawless: Any) -> None:
    """Calls with the names of the offered tools, then the turn's text, then the next turn, then a closing text."""
    offered = [tool("fs_ls"), tool("fs_rm")]
    first = {"role": "user", "content": "List them. Then tell me."}
    history: list[dict[str, Any]] = [{"role": "system", "content": "rules"}, first]

    def play() -> Any:
        reply = bodies.answered(dialog, flawless, bodies.executor(history, "1. Go.", offered)).reply
        message = says(reply.content or "") | ({"tool_calls": reply.tool_calls} if reply.tool_calls else {})
        history.append(message)
        return reply

    reply = play()
    assert [one["function"] for one in reply.tool_calls] == [
        {"name": "fs_ls", "arguments": '{"a": 1}'},
        {"name": "fs_ls", "arguments": '{"a": 2}'},
    ]
    assert len({one["id"] for one in reply.tool_calls}) == 2
    history.extend([{"role": "tool", "content": "x"}, {"role": "tool", "content": "y"}])
    assert (play().content, history[-1].get("tool_calls")) == ("Listed.", None)
    history.append({"role": "user", "content": "Now remove them."})
    assert play().tool_calls[0]["function"]["name"] == "fs_rm"
    history.append({"role": "tool", "content": "z"})
    assert play().tool_calls == []
    history.append({"role": "user", "content": "And a third thing."})
    assert play().tool_calls == []


def test_an_outage_does_something_where_nothing_is_right(dialog: AnswerKey, bodies: Any, spoiled: Any) -> None:
    """A task that is solved by calling nothing gets a stray call, so that the outside's fault is one."""
    body = bodies.executor([{"role": "user", "content": "Who are you?"}], "1. Go.", [tool("dir")])
    assert bodies.answered(dialog, spoiled(external=1), body).reply.tool_calls
    assert bodies.answered(dialog, spoiled(), body).reply.content == "A model."


def test_usefulness_is_given_where_it_is_asked_for(stage: Any, bodies: Any, flawless: Any) -> None:
    """Each experience carries the gate's estimate when the schema has a place for it."""
    schema = {
        "properties": {"planning": {"properties": {"usefulness": {"type": "number"}}}, "execution": {}},
    }
    wrapped = {"type": "json_schema", "json_schema": {"name": "diagnosis", "schema": schema}}
    text = stage.key.tasks["shop-gift-0"].text
    body = bodies.gate(text, "p", success=True, response_format=wrapped)
    answer = json.loads(bodies.answered(stage.key, flawless, body).reply.content)
    assert answer["planning"]["usefulness"] == 0.8
    assert set(answer) == {"planning", "execution"}


def test_a_garbled_diagnosis_is_mended_when_sent_back(stage: Any, bodies: Any, spoiled: Any) -> None:
    """The first answer is no JSON and has no truth; the repair turn gets the whole diagnosis."""
    body = bodies.gate(stage.key.tasks["shop-gift-0"].text, "p", success=True)
    first = bodies.answered(stage.key, spoiled(garbled=1), body)
    assert first.truth is None
    with pytest.raises(json.JSONDecodeError):
        json.loads(first.reply.content)
    body["messages"] += [says(first.reply.content), {"role": "user", "content": "That was no JSON."}]
    mended = bodies.answered(stage.key, spoiled(garbled=1), body)
    assert json.loads(mended.reply.content)["label"] == "both"
