"""No command lets a terminal obey what a model, a task or a person wrote into a log."""

import io
import re
import sys
import tomllib
from typing import Any

import anyio
import click
import msgspec
import pytest
from msgspec.structs import replace

from events.codec import decode, draft, recorded
from events.ids import RUN_STREAM, RunId, episode_stream
from events.kinds import Abandoned, Diagnosed, Executed, Noted, Operated, Planned, Retrieved, RunStarted, Scored
from infra.blobs import RedisBlobs, put_messages
from infra.calls import CallRecord, RedisCalls
from infra.redis_client import connected
from runtime.ports import TokenUsage
from workers.__main__ import chime as group
from workers.__main__ import main

#: what a terminal obeys, what turns a line round, what nobody sees, what ends a line, what a browser and rich obey
EVIL = "\x1b[31mred\x1b]0;t\x07\x9b2J\x7f\u202egnp\u2066\u200bz\u2028s\U000e0041\r\n<script>[bold]x[/] :smile: \tend"
#: none of these may be seen in what is printed; line feeds are looked at apart
FORBIDDEN = set("\x1b\x07\x9b\x7f\u202e\u2066\u200b\u2028\U000e0041\r\x85")
RUN = "made"

#: command -> words after it; `{memory}` is a live one
COMMANDS: dict[str, list[list[str]]] = {
    "run list": [[], ["--full"]],
    "run show": [[RUN]],
    "run compare": [[RUN, "other"], [RUN, "other", "--flips"]],
    "run cancel": [[RUN, "--reason", EVIL, "--dry-run"]],
    "run delete": [[RUN, "--dry-run"]],
    "run export-config": [[RUN]],
    "episode list": [[RUN], [RUN, "--failed"], [RUN, "--problems"]],
    "episode show": [[RUN, "0"], [RUN, "1", "--prompts"], [RUN, "6"]],
    "call list": [[RUN]],
    "call show": [[RUN, "episode-1/planning/1"]],
    "memory list": [[RUN]],
    "memory show": [[RUN, "{memory}"]],
    "memory history": [[RUN, "{memory}"]],
    "memory diff": [[RUN, "--at", "0", "--at", "6"]],
    "memory export": [[RUN]],
    "memory fork": [[RUN, "--run", "forked"]],
    "memory calibrate": [[RUN]],
    "log list": [[]],
    "log export": [[RUN]],
    "log verify": [[RUN]],
    "log tail": [[RUN, "-n", "60"]],
    "log archive": [[RUN, "--dry-run"]],
    "log refold": [[RUN, "--policy", "credit"]],
    "ops status": [[]],
    "ops pause": [[RUN, "--author", EVIL, "--reason", EVIL]],
    "ops resume": [[RUN, "--author", EVIL, "--reason", EVIL]],
    "ops requeue": [[RUN, "--episode", "6", "--author", EVIL, "--reason", EVIL]],
    "ops orphans": [["--dry-run"]],
}
#: print nothing of a log, or are tried with servers of their own
OTHERS = {
    "demo", "init", "doctor", "run start", "run resume", "memory reembed", "memory search", "memory rebuild",
    "memory verify", "memory gc", "log import", "log schema", "env list", "env install", "env check", "model list",
    "model rehearse", "model probe", "model score-gate", "ops drain", "services status", "services install",
    "services start", "services stop", "coordinator", "worker", "config show", "call replay",
}  # fmt: skip


def commands(command: click.Command, path: tuple[str, ...] = ()) -> list[str]:
    if not isinstance(command, click.Group):
        return [" ".join(path)]
    context = click.Context(command)
    found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [one for name, inner in found if inner is not None for one in commands(inner, (*path, name))]


def test_every_command_is_thought_of() -> None:
    """A new command is tried here, or named as one that has nothing to print."""
    assert set(commands(group)) - OTHERS == set(COMMANDS)


def evil(event: Any) -> Any:
    """`event` with every text that somebody else may have written, as hostile as it can be."""
    match event:
        case RunStarted():
            config = replace(
                event.config, labels=[EVIL], environment={"name": f"toy{EVIL}", "version": EVIL},
                models={role: {"model": EVIL} for role in event.config.models}, agent={"planner": EVIL},
            )  # fmt: skip
            return replace(event, config=config, tasks=[f"{t}{EVIL}" for t in range(event.tasks_total)], code=EVIL)
        case Retrieved():
            return replace(event, query=replace(event.query, text=EVIL))
        case Planned():
            return replace(event, plan=EVIL)
        case Executed():
            return replace(event, stop=EVIL)
        case Scored():
            evaluator = replace(event.evaluator, name=EVIL, version=EVIL)
            return replace(event, evaluator=evaluator, breakdown={EVIL: EVIL, "valid": True})
        case Diagnosed():
            return replace(event, calls=[EVIL], unread=[EVIL])
        case _:
            return event


@pytest.fixture
def memory(chime: Any, uploaded: Any, made_run: Any, redis_server: Any, redis_prefix: str) -> str:
    """Two runs full of hostile text on the server; the id of a memory in them."""
    for name in (RUN, "other"):
        made = made_run(name)
        ends = made.events.pop()
        again = type(made)(run=made.run)
        again.banks, again.versions = made.banks, dict(made.versions)
        again.events = [_again(one, evil(decode(one))) for one in made.events]
        again.versions[RUN_STREAM] = ends.version - 1
        again.add(RUN_STREAM, Operated(action=EVIL, target=EVIL, author=EVIL, reason=EVIL))
        again.add(RUN_STREAM, Noted(topic=EVIL, facts={EVIL: EVIL}))
        again.add(episode_stream(6), Abandoned(stage="planning", reason=EVIL, attempts=3))
        uploaded(again)
        memory = next(iter(made.banks)).id
    anyio.run(_calls, redis_server.url, redis_prefix)
    return str(memory)


def _again(one: Any, event: Any) -> Any:
    return recorded(
        draft(event), run=one.run, stream=one.stream, version=one.version, position=one.position, at=one.at,
        cause=one.cause, attempt=one.attempt,
    )  # fmt: skip


async def _calls(url: str, prefix: str) -> None:
    run = RunId(RUN)
    async with connected(url) as redis:
        blobs = RedisBlobs(redis, prefix, "here")
        messages = await put_messages(blobs, run, [{"role": "user", "content": EVIL}])
        record = CallRecord(
            id="episode-1/planning/1", role=EVIL, model=EVIL, usage=TokenUsage(), latency_ms=7, finish_reason=EVIL,
            messages=messages, request=await blobs.put(run, b"{}"), answer="", sha256="0" * 64, at=EVIL,
            error=EVIL, reason=EVIL, error_class=EVIL, asked=EVIL,
        )  # fmt: skip
        await RedisCalls(redis, prefix, "here").put(run, "episode-1/planning/1 x", msgspec.json.encode(record))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


#: what our own tables set their heads off with
_OWN = re.compile("\x1b\\[[01]m")
#: give the log's own bytes to a pipe: JSON, in which a control character is an escape anyhow
PRODUCTS = {"log export", "log tail", "memory export", "run export-config"}


@pytest.mark.parametrize("stream", [Terminal, io.StringIO], ids=["terminal", "pipe"])
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_obeyed(
    command: str, stream: type[io.StringIO], memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal and in a pipe, for people and as JSON, no character of a hostile text has an effect."""
    for words in COMMANDS[command]:
        line = [*command.split(), *(memory if word == "{memory}" else word for word in words)]
        for extra in ([], ["--json"]):
            out, err = stream(), stream()
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stdout", out)
                patch.setattr(sys, "stderr", err)
                assert main([*line, *extra]) in (0, 1, 2), err.getvalue()
            printed = _OWN.sub("", out.getvalue())
            raw = set("\x1b\x07\r") if command in PRODUCTS and stream is io.StringIO else FORBIDDEN
            assert not raw & set(printed), (line, extra, printed)
            assert not FORBIDDEN & set(err.getvalue()), (line, extra, err.getvalue())
            assert "Traceback" not in err.getvalue()


def test_hostile_text_is_there(memory: str, chime: Any) -> None:
    """What must not be obeyed is shown: as escapes, in every kind of row."""
    for words in (
        ["run", "show", RUN],
        ["episode", "show", RUN, "0"],
        ["episode", "show", RUN, "6"],
        ["log", "tail", RUN],
        ["run", "list"],
        ["episode", "list", RUN],
        ["call", "list", RUN],
        ["call", "show", RUN, "episode-1/planning/1"],
    ):
        assert "[31mred" in chime(*words), words


def test_an_exported_configuration_is_one(memory: str, chime: Any) -> None:
    """A header's text can neither leave its comment nor its string."""
    read = tomllib.loads(chime("run", "export-config", RUN))
    assert read["models"]["model"] == EVIL
    assert set(read) <= {"policy", "run", "episode", "embedder", "bank", "models", "roles"}
