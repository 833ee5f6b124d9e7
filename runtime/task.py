"""Tasks, and what an environment says while an agent works on one: the environment protocol's operations as data.

Messages and tools are OpenAI chat messages and tool schemas. Gold data never appears here.
"""

from typing import Any, Literal

from msgspec import Struct

#: an OpenAI chat message: {"role": ..., "content": ..., "tool_calls": [...], ...}
Message = dict[str, Any]
#: an OpenAI tool: {"type": "function", "function": {"name", "description", "parameters"}}
Tool = dict[str, Any]

Mode = Literal["dialog", "single_shot", "answer", "code"]


class Task(Struct, frozen=True, kw_only=True):
    """One problem of a benchmark."""

    task_id: str
    domain: str
    tags: list[str] = []
    #: tasks whose episodes must have ended before this one starts
    depends_on: list[str] = []
    #: prepares others: runs, but has no score of its own
    preparatory: bool = False


class Description(Struct, frozen=True, kw_only=True):
    """What an environment is and needs."""

    protocol: int
    env: str
    version: str
    #: domain -> number of tasks
    domains: dict[str, int]
    #: {user_llm, judge_llm, network, data}
    needs: dict[str, bool] = {}
    limits: dict[str, Any] = {}
    concurrent: bool = False
    pid: int = 0
    #: name and version of the official evaluator, recorded in `scored`
    evaluator: str = ""
    evaluator_version: str = ""


class Opening(Struct, frozen=True, kw_only=True):
    """What `reset` answers: the agent's first view of the task."""

    #: the benchmark's own system text, or ""
    system: str
    #: what a planner may legitimately see (reading 1): domain and task text
    messages: list[Message]
    tools: list[Tool]
    #: tools that the runtime, not the environment, executes
    client_tools: list[str] = []
    mode: Mode = "dialog"
    done: bool = False


class StepResult(Struct, frozen=True, kw_only=True):
    """What one assistant message led to."""

    #: tool results and user turns to append to the history
    messages: list[Message]
    #: the new full tool list, where it changed
    tools: list[Tool] | None = None
    done: bool = False
    terminated_by: str | None = None
    steps: int = 0
    errors: int = 0


class Evaluation(Struct, frozen=True, kw_only=True):
    """The official evaluator's word."""

    #: in [0, 1]
    reward: float
    success: bool
    breakdown: dict[str, Any] = {}
    info: dict[str, Any] = {}
    judge_calls: int = 0
    #: what tasks that depend on this one need (a memory snapshot); plain JSON, kept as a blob
    artifact: dict[str, Any] | None = None
