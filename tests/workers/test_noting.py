"""What turns out about a run's models, in its log: learnt once, by whomever, and told to whoever works on the run."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from scripted_endpoint import ASKING_SCHEMA, KEY, OK, FakeClock, Reply, Scripted, completion, failed, scripted
from structlog.testing import capture_logs

from events.codec import decode
from events.ids import RUN_STREAM, RunId, StreamId
from events.kinds import Noted
from infra.calls import MemoryCalls, RecordedCalls
from infra.capabilities import Place
from infra.list_log import ListLog
from infra.model_list import Listed
from infra.openai_client import Clients
from infra.openai_model import OpenAIModel
from runtime.errors import StoreAway
from runtime.ports import ChatModel, Role
from runtime.settings import EndpointSettings, ModelSettings
from workers.configuration import Configuration, ModelDefaults, Roles, RoleSettings
from workers.noting import CAPABILITIES, MODEL_CHANGED, NotedModel, Notes, note_windows, windows
from workers.run_stream import tell

REFUSED = failed(400, "This response_format type is unavailable now")
RUN = RunId("r")


class Process:
    """A worker's share of a run: clients of its own, the run's log, and what the log says when it begins."""

    def __init__(self, log: Any, calls: MemoryCalls, blobs: Any, clients: Clients, url: str) -> None:
        self.log, self.clients = log, clients
        self.models: dict[Role, ModelSettings] = {"executor": ModelSettings(model="m")}
        self.where: dict[Role, EndpointSettings] = {"executor": EndpointSettings(base_url=url, retries=0)}
        asking = OpenAIModel(self.models, self.where, clients, FakeClock())
        recorded = RecordedCalls(asking, calls, blobs, FakeClock())
        self.notes = Notes(log, calls, clients)
        self.model: ChatModel = NotedModel(recorded, {"executor": Place(url, "m")}, self.notes)

    async def begin(self) -> "Process":
        self.notes.read(
            await self.log.read_stream(RUN_STREAM), {"executor": Place(self.where["executor"].base_url, "m")}
        )
        return self

    async def ask(self, ordinal: int, t: int = 0) -> str:
        key = replace(KEY, run=RUN, stream=StreamId(f"episode-{t}"), ordinal=ordinal)
        return (await self.model.complete(ASKING_SCHEMA, key)).content


class Bodies:
    """Blobs in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def get(self, _: RunId, name: str) -> bytes:
        return self.kept[name]

    async def put_many(self, _: RunId, bodies: list[bytes]) -> list[str]:
        names = [sha256(body).hexdigest() for body in bodies]
        self.kept.update(zip(names, bodies, strict=True))
        return names


@asynccontextmanager
async def run_at(*replies: Reply) -> AsyncIterator[tuple[Scripted, Any, Callable[[], Any]]]:
    """An endpoint, a run's log, and what makes a process that works on it."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(scripted(*replies))
        log, calls, blobs = ListLog(RUN, FakeClock()), MemoryCalls(), Bodies()

        async def process(url: str = server.url) -> Process:
            return await Process(log, calls, blobs, Clients({}, FakeClock(), stack), url).begin()

        yield server, log, process


async def noted(log: Any, topic: str) -> list[dict[str, Any]]:
    told = [decode(one) for one in await log.read_stream(RUN_STREAM)]
    return [one.facts for one in told if isinstance(one, Noted) and one.topic == topic]


def formats(server: Scripted) -> list[str | None]:
    return [(one.body.get("response_format") or {}).get("type") for one in server.requests]


async def test_what_a_call_learns_is_noted_with_its_evidence() -> None:
    """Once, after the answer; the next call of this process has nothing to add."""
    async with run_at(REFUSED, OK) as (server, log, process):
        one = await process()
        await one.ask(1)
        await one.ask(2)
        [note] = await noted(log, CAPABILITIES)
    assert formats(server) == ["json_schema", "json_object", "json_object"]
    assert (note["base_url"], note["model"], note["abilities"]["format"]) == (server.url, "m", "json_object")
    [evidence] = note["evidence"]
    assert evidence.startswith("schema: 400 This response_format type is unavailable")


async def test_a_process_that_begins_later_does_not_learn_again() -> None:
    """Another worker, or the run that is resumed: it asks at once as the log says, and notes nothing."""
    async with run_at(REFUSED, OK) as (server, log, process):
        await (await process()).ask(1)
        await (await process()).ask(2)
        assert len(await noted(log, CAPABILITIES)) == 1
    assert formats(server) == ["json_schema", "json_object", "json_object"]


async def test_two_that_learn_at_once_agree() -> None:
    """Each is refused before the other has noted it: one note, and both ask alike from then on."""
    async with run_at(REFUSED, REFUSED, OK) as (server, log, process):
        both = [await process() for _ in range(2)]
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for ordinal, one in enumerate(both):
                    tasks.start_soon(one.ask, ordinal)
        notes = await noted(log, CAPABILITIES)
        assert all(note == notes[0] for note in notes)
        third = await process()
        await third.ask(9)
    assert formats(server) == ["json_schema"] * 2 + ["json_object"] * 3


async def test_what_two_have_learnt_comes_together() -> None:
    """One knows of the schema, the other of the temperature: whoever begins then goes without both."""
    told = failed(400, "Unsupported value: 'temperature' does not support 0.0", param="temperature")
    async with run_at(REFUSED, OK, told, OK) as (server, log, process):
        one, other = await process(), await process()
        await one.ask(1)
        other.clients.learnt.clear()
        await other.ask(2)
        third = await process()
        await third.ask(3)
        assert (await noted(log, CAPABILITIES))[-1]["abilities"] == {
            **(await noted(log, CAPABILITIES))[0]["abilities"], "temperature": False,
        }  # fmt: skip
    last = server.requests[-1].body
    assert (last["response_format"]["type"], "temperature" in last) == ("json_object", False)


async def test_a_window_that_is_listed_is_known_before_the_first_request() -> None:
    """Without a refusal, to every process of the run."""
    async with run_at(OK) as (server, log, process):
        await note_windows(log, {Place(server.url, "m"): 4096})
        await (await process()).ask(1)
        [learnt] = (await process()).clients.learnt.values()
    assert (learnt.abilities.window, learnt.evidence) == (4096, ("GET /models: 4096 tokens",))


def test_windows_are_looked_for_at_the_planners_address() -> None:
    """By each role's model; settings go before a list, and what no model holds is not meant."""
    rows = [{"id": "a", "max_model_len": 4096}, {"id": "b", "context_length": 8192}, {"id": "c", "n_ctx": 5}]
    roles = Roles(executor=RoleSettings(model="b"), gate=RoleSettings(model="c"))
    given = Configuration(models=ModelDefaults(base_url="http://h/v1", model="a"), roles=roles)
    found = windows(given, Listed(rows))
    assert found == {Place("http://h/v1", "a"): 4096, Place("http://h/v1", "b"): 8192}
    elsewhere = replace(given, roles=replace(roles, executor=RoleSettings(model="b", base_url="http://x/v1")))
    assert windows(elsewhere, Listed(rows)) == {Place("http://h/v1", "a"): 4096}
    known = replace(given, models=replace(given.models, context_tokens=2048))
    assert windows(known, Listed(rows)) == {}


async def test_a_refused_request_teaches_nothing() -> None:
    """What was left out of it was not the reason: no note."""
    async with run_at(failed(400, "Invalid schema for function 'look'")) as (_, log, process):
        one = await process()
        with pytest.raises(Exception, match="Invalid schema"):
            await one.ask(1)
        assert await noted(log, CAPABILITIES) == []


async def test_a_note_that_cannot_be_read_says_nothing() -> None:
    """Of other code, or made by hand: asked as if it were not there."""
    async with run_at(OK) as (server, log, process):
        await tell(log, Noted(topic=CAPABILITIES, facts={"base_url": server.url, "model": "m", "abilities": 3}))
        one = await process()
        await one.ask(1)
        assert one.clients.learnt == {}
    assert formats(server) == ["json_schema"]


async def test_another_model_under_the_same_name() -> None:
    """One warning and one note, however often it answers; a process that begins later knows what answered first."""
    before = completion(model="m-1", system_fingerprint="fp-1")
    after = completion(model="m-1", system_fingerprint="fp-2")
    async with run_at(before, after) as (server, log, process):
        with capture_logs() as lines:
            one = await process()
            for ordinal in range(3):
                await one.ask(ordinal)
            other = await process()
            await other.ask(7)
        assert await noted(log, MODEL_CHANGED) == [
            {
                "base_url": server.url, "model": "m",
                "served_before": "m-1", "fingerprint_before": "fp-1", "served": "m-1", "fingerprint": "fp-2",
            }
        ]  # fmt: skip
    changed = [line for line in lines if line["event"] == "model_changed"]
    assert [line["log_level"] for line in changed] == ["warning"] * 2, "each process warns once"


@pytest.mark.parametrize("silent", [{}, {"model": None}, {"model": "", "system_fingerprint": 7}])
async def test_an_endpoint_that_does_not_say(silent: dict[str, Any]) -> None:
    """No name at all differs from none."""
    async with run_at(completion(model="m-1", system_fingerprint="fp-1"), completion(**({"model": None} | silent))) as (
        _, log, process,
    ):  # fmt: skip
        one = await process()
        for ordinal in range(3):
            await one.ask(ordinal)
        assert await noted(log, MODEL_CHANGED) == []


async def test_a_router_with_a_name_for_each_answer() -> None:
    """A few changes are noted, not each one."""
    async with run_at(*(completion(model=f"m-{n}") for n in range(9))) as (_, log, process):
        one = await process()
        for ordinal in range(9):
            await one.ask(ordinal)
        assert len(await noted(log, MODEL_CHANGED)) == 3


class AwayOnce:
    """A log whose server is away for one append."""

    def __init__(self, log: Any) -> None:
        self._log, self.run, self.read_stream, self.away = log, log.run, log.read_stream, True

    async def append(self, *given: Any) -> Any:
        if self.away:
            self.away = False
            raise StoreAway("away")
        return await self._log.append(*given)


@pytest.mark.parametrize("topic", [CAPABILITIES, MODEL_CHANGED])
async def test_a_note_that_could_not_be_written_is_written_with_the_next_answer(topic: str) -> None:
    """The job that meets the outage begins again, and finds its answer recorded."""
    answers = {CAPABILITIES: [REFUSED, OK], MODEL_CHANGED: [completion(model="m-1"), completion(model="m-2")]}
    async with run_at(*answers[topic]) as (_, log, process):
        one = await process()
        if topic == MODEL_CHANGED:
            await one.ask(1)
        one.notes._log = AwayOnce(log)
        with pytest.raises(StoreAway):
            await one.ask(2)
        assert await noted(log, topic) == []
        await one.ask(2)
        assert len(await noted(log, topic)) == 1
