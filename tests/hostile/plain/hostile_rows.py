"""What a row is, and the words for what must come of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hostile_wire import Doing, Play

Role = str
ROLES: tuple[Role, ...] = ("planner", "executor", "gate")
PLANNER, EXECUTOR, GATE = (("planner",), ("executor",), ("gate",))

#: further tries of each call in these tests, and attempts of a job that ends without an answer
RETRIES, ATTEMPTS = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one episode, in the words of its events, its call record and its log lines."""

    #: kind of the note that pauses the run; "" = it goes on
    paused: str = ""
    #: first word of why the episode was abandoned
    abandoned: str = ""
    #: `executed.stop`
    stop: str = "agent_stop"
    success: bool | None = True
    #: `executed.errors`
    errors: int = 0
    #: `diagnosed.degraded`
    degraded: str = ""
    label: str = "both"
    #: answers of the planner and of the gate that are in the call record; of the executor not counted
    answers: int = 1
    #: kind of each call that ended without an answer, in order
    unanswered: tuple[str, ...] = ()
    #: kind of each try that was made again as it was
    retried: tuple[str, ...] = ()
    #: what each changed try went without
    changed: tuple[str, ...] = ()
    #: marks of the role's answers, sorted
    flags: tuple[str, ...] = ()
    #: reasons not to keep an experience, sorted
    lint: tuple[str, ...] = ()
    #: names of memories that were not retrieved
    dropped: int = 0
    #: whether something was left out of a request
    trimmed: bool = False
    #: how the role's tokens are known: `counted`, `estimated`, `unknown`
    usage: str = "counted"


#: ways in which an execution ends that nobody is to judge
UNJUDGED = frozenset({"content_filter", "refusal"})

#: role -> what differs from a healthy episode; `...` = whatever it is
Expectation = Callable[[Role], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to answer badly, and what must come of it."""

    #: unique; reads as what the server does
    name: str
    area: str
    play: Play
    expect: Expectation
    roles: tuple[Role, ...] = ROLES
    #: settings of the role's endpoint
    endpoint: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    #: settings of the role's model
    model: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    #: what becomes of a connection before a request
    at_accept: Doing | None = None
    #: tries that no server sees, so that they cannot be counted there
    unseen: bool = False
    #: what must stand nowhere but in the answer's own body
    private: tuple[str, ...] = ()

    @property
    def pauses(self) -> bool:
        return any(self.expect(role).get("paused") for role in self.roles)


# -- what must come of a row ---------------------------------------------------------------------------------------


def used(**seen: Any) -> Expectation:
    """The answer is used."""
    return lambda role: seen


def of(**by_role: Expectation) -> Expectation:
    """Another one for each role."""
    return lambda role: by_role[role](role)


def both(*expectations: Expectation) -> Expectation:
    """All of these at once; the later one has the last word."""
    return lambda role: {name: value for one in expectations for name, value in one(role).items()}


def retried(*kinds: str, **seen: Any) -> Expectation:
    """Asked again as it was, once for each of `kinds`; then the answer is used."""
    return lambda role: {"retried": kinds, **seen}


def changed(*capabilities: str, **seen: Any) -> Expectation:
    """Asked in another way, once for each of `capabilities`; that is no retry, and the answer is used."""
    return lambda role: {"changed": capabilities, **seen}


def unavailable(kind: str, tries: int = 1 + RETRIES) -> Expectation:
    """No answer within the tries: no plan, no outcome of the agent's, or no judgement; the run goes on."""

    def expect(role: Role) -> Mapping[str, Any]:
        return _ended(role, "model_unavailable", "model", "model_unavailable") | {
            "unanswered": (kind,) * ATTEMPTS, "retried": (kind,) * (tries - 1) * ATTEMPTS,
        }  # fmt: skip

    return expect


def refused(kind: str, *, stop: str = "model", degraded: str = "refused", retried: tuple[str, ...] = ()) -> Expectation:
    """This request will not be answered: no plan, no outcome of the agent's, or no judgement; the run goes on."""

    def expect(role: Role) -> Mapping[str, Any]:
        unjudged = "model_unavailable" if stop == "model" else ""
        unjudged = unjudged or (stop if stop in UNJUDGED else "")
        return _ended(role, kind, stop, degraded if role == "gate" else unjudged) | {
            "unanswered": (kind,), "retried": retried,
        }  # fmt: skip

    return expect


def stopped(kind: str, tries: int = 1) -> Expectation:
    """Nothing on this endpoint can work: the run pauses with one note, and nothing more of the episode is there."""

    def expect(role: Role) -> Mapping[str, Any]:
        ended: dict[str, Any] = {
            "paused": kind,
            "degraded": "",
            "label": "",
            "unanswered": (kind,),
            "retried": (kind,) * (tries - 1),
        }
        if role != "gate":
            ended |= {"stop": "", "success": None, "errors": 0}
        return ended | {"answers": 0, "usage": "unknown"}

    return expect


def ending(word: str) -> Expectation:
    """The answer is there, and is none to the task: a refusal, a filter, a cut at the limit."""

    def expect(role: Role) -> Mapping[str, Any]:
        ended = dict(_ended(role, word, word, word if role == "gate" or word in UNJUDGED else ""))
        ended.pop("usage")
        return ended | {"answers": 1}

    return expect


def abandoned(word: str, answers: int = 1) -> Expectation:
    """No plan, for this reason; the answers are there."""
    return lambda role: {
        "abandoned": word, "stop": "", "success": None, "label": "", "answers": answers, "usage": "unknown",
    }  # fmt: skip


def failed_steps(count: int, **seen: Any) -> Expectation:
    """Steps of the executor that the environment never saw; then it goes on."""
    return lambda role: {"errors": count, **seen}


def out_of_errors(**seen: Any) -> Expectation:
    """Failed steps until there are too many."""
    return lambda role: {"errors": 3, "stop": "max_errors", "success": False, "label": "none", **seen}


def repaired(**seen: Any) -> Expectation:
    """The gate is shown its error once, and its second answer is used."""
    return lambda role: {"answers": 2, **seen}


def degraded(reason: str = "unreadable", answers: int = 2, **seen: Any) -> Expectation:
    """No judgement: no bank changes."""
    return lambda role: {"degraded": reason, "label": "none", "answers": answers, **seen}


def _ended(role: Role, abandoned: str, stop: str, degraded: str) -> dict[str, Any]:
    match role:
        case "planner":
            ended: dict[str, Any] = {"abandoned": abandoned, "stop": "", "success": None, "label": ""}
        case "executor":
            ended = {"stop": stop, "success": False, "degraded": degraded, "label": "none"}
        case _:
            ended = {"degraded": degraded, "label": "none"}
    return ended | {"answers": 0, "usage": "unknown"}
