"""One model call gives the plan; an empty answer, or one that was cut off, is asked for once more, in other words."""

from collections.abc import Sequence

from msgspec.structs import replace

from events.bank import Item
from events.kinds import Usage
from runtime.calls import usage_of
from runtime.errors import ModelRefused
from runtime.planners import Plan, View
from runtime.ports import CallKey, ChatModel, ChatRequest
from runtime.prompting import Prompts, defused, experiences, policy, section, tools

VERSION = 1

_AGAIN = "Your answer held no text. Write the plan now, as plain text."
#: how much of a refusal's words is kept, characters
_SHOWN_CHARS = 300
_SHORTER = "Your plan was cut off at the length limit and cannot be used. Write it again, in a few short lines."


async def plan(view: View, memories: Sequence[Item], model: ChatModel, key: CallKey, prompts: Prompts) -> Plan:
    """A plan of one call, two at most. Nobody goes on without a plan, or with half of one.

    Raises:
        ModelRefused: the model declined (`refusal`, `content_filter`), or gave no whole plan twice (`length`, `empty`);
            or as `ChatModel.complete`.
        ModelUnavailable, RunStopped: as `ChatModel.complete`.
    """
    messages = prompts["planner"].messages(
        {
            "domain": defused(view.domain),
            "policy": policy(view.policy),
            "tools": tools(view.tools),
            "task": section("task", view.task),
            "experiences": experiences("planning", memories),
        }
    )
    usage, calls = Usage(), list[str]()
    asked, kind = messages, ""
    for retry in (0, 1):
        call = replace(key, retry=retry)
        answer = await model.complete(ChatRequest(role="planner", messages=asked), call)
        usage += usage_of(answer)
        calls.append(call.id)
        text = answer.content.strip()
        if answer.finish_reason in ("refusal", "content_filter"):
            raise ModelRefused(answer.finish_reason, " ".join(text.split())[:_SHOWN_CHARS] or "without a word")
        if not answer.silent and answer.finish_reason != "length":
            return Plan(text=text, usage=usage, calls=calls)
        kind = "length" if answer.finish_reason == "length" else "empty"
        asked = [*messages, {"role": "user", "content": _SHORTER if kind == "length" else _AGAIN}]
    told = "the plan was cut off at the length limit" if kind == "length" else "the answer held no plan"
    raise ModelRefused(kind, f"{told}, after another try too")
