"""One model call gives the plan; an empty answer is asked for once more, in other words."""

from collections.abc import Sequence

from msgspec.structs import replace

from events.bank import Item
from events.kinds import Usage
from runtime.calls import usage_of
from runtime.planners import Plan, View
from runtime.ports import CallKey, ChatModel, ChatRequest
from runtime.prompting import Prompts, defused, experiences, policy, section, tools

VERSION = 1

_AGAIN = "Your answer held no text. Write the plan now, as plain text."


async def plan(view: View, memories: Sequence[Item], model: ChatModel, key: CallKey, prompts: Prompts) -> Plan:
    """A plan of one call, two at most; text "" where neither gave one.

    Raises:
        ModelUnavailable, ModelRefused, RunStopped: as `ChatModel.complete`.
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
    text = ""
    for retry in (0, 1):
        asked = messages if retry == 0 else [*messages, {"role": "user", "content": _AGAIN}]
        call = replace(key, retry=retry)
        answer = await model.complete(ChatRequest(role="planner", messages=asked), call)
        usage += usage_of(answer)
        calls.append(call.id)
        text = answer.content.strip()
        if text or answer.finish_reason == "content_filter":
            break
    return Plan(text=text, usage=usage, calls=calls)
