"""A run's embedder in a worker: loaded once, held to the header, remembered, and gone on with at another address."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from embedding_server import EmbeddingServer, embedding_server
from msgspec.structs import replace

from events.codec import decode_as
from events.errors import BadInput
from events.ids import RUN_STREAM
from events.kinds import Noted, Operated, Retrieved, RunStarted
from infra.embedders import Around
from infra.embedding_cache import MemoryEmbeddings
from runtime.errors import RunStopped
from workers.configuration import Configuration, EmbedderSettings
from workers.embedding import Embedders, assert_embeds, embedded_query, named_embedder
from workers.engine import STOPPED
from workers.operational import OPERATIONAL
from workers.run_stream import tell

RESUME = Operated(action="resume", target="r", author="me", reason="")


def served_by(served: EmbeddingServer, playing: Any, **more: Any) -> Configuration:
    """A run whose texts are embedded by that server, which is given up at once."""
    options = {"model": served.model, "base_url": served.url, "api_key_env": "", "retries": 0, "stop_after": 1}
    return replace(playing.configured(), embedder=EmbedderSettings(name="openai", **{**options, **more}))


async def header_of(world: Any, configuration: Configuration) -> RunStarted:
    head: RunStarted = (await world.head(configuration, limit=2)).head.started
    return head


async def test_the_header_says_how_it_is_loaded(world: Any, playing: Any) -> None:
    """What changes vectors is fixed, where the server is may change; `hash` has neither."""
    with embedding_server() as served:
        header = await header_of(world(), served_by(served, playing, query_instruction="Q: "))
    assert header.config.agent["embedder"] == "openai"
    assert header.config.agent["embedder_options"] == {
        "model": "tiny", "dimension": 0, "query_instruction": "Q: ", "max_chars": 0,
    }  # fmt: skip
    assert header.config.operational["embedder"]["base_url"] == served.url
    assert served.url not in header.embedder.fingerprint
    assert (header.embedder.dimension, len(header.embedder.probes)) == (16, 3)
    name, options = named_embedder(header.config, header.config.operational)
    assert (name, options["model"], options["base_url"]) == ("openai", "tiny", served.url)
    plain = await header_of(world(), playing.configured())
    assert "embedder_options" not in plain.config.agent
    assert "embedder" not in plain.config.operational
    assert plain.embedder.probes == []


async def test_it_is_loaded_once_for_all_runs(world: Any, playing: Any) -> None:
    """Two runs with the same options share one; another address is another one; all are closed at the end."""
    with embedding_server() as served, embedding_server() as moved:
        header = await header_of(world(), served_by(served, playing))
        asked = len(served.texts)
        async with AsyncExitStack() as stack:
            known = Embedders(Around(), stack)
            first = await known.of(header, header.config.operational)
            assert await known.of(header, header.config.operational) is first
            assert len(served.texts) == 2 * asked
            there = {"embedder": {**header.config.operational["embedder"], "base_url": moved.url}}
            assert await known.of(header, there) is not first
            assert moved.texts


async def test_another_model_by_the_same_name_is_not_served(world: Any, playing: Any) -> None:
    """The server's vectors have changed since the run was begun: every way to the embedder says so."""
    with embedding_server() as served:
        header = await header_of(world(), served_by(served, playing))
        there = header.config.operational
        await assert_embeds(header, there)
        assert (await embedded_query(header, there, "a text")).dim == 16
        served.model_of_vectors = "another"
        told = r"the run embeds with openai tiny, here is openai tiny: probe 1: its vectors have cosine"
        with pytest.raises(BadInput, match=told):
            await assert_embeds(header, there)
        with pytest.raises(BadInput, match=told):
            await embedded_query(header, there, "a text")
        async with AsyncExitStack() as stack:
            with pytest.raises(BadInput, match=told):
                await Embedders(Around(), stack).of(header, there)


async def test_a_run_embeds_through_http(world: Any, playing: Any) -> None:
    """Every vector in the log is the server's, and the log verifies."""
    with embedding_server() as served:
        there = world()
        events = await there.play("r", served_by(served, playing), limit=2)
    recalls = [decode_as(one, Retrieved) for one in events if one.kind == "retrieved"]
    assert {one.query.vector.dim for one in recalls} == {16}
    assert {one.query.text for one in recalls} <= set(served.texts)


async def test_a_run_stops_without_its_embedder_and_goes_on_elsewhere(world: Any, playing: Any) -> None:
    """Nobody at the address: the run pauses with a note; resumed at another address it ends."""
    there = world()
    with embedding_server() as served:
        configuration = served_by(served, playing)
        log = await there.begin("r", configuration, limit=2)
        header = decode_as((await log.read_stream(RUN_STREAM))[0], RunStarted)
    assert await there.drive("r") == ["stopped"]
    notes = [decode_as(one, Noted) for one in await log.read_stream(RUN_STREAM) if one.kind == "noted"]
    (stopped,) = [note for note in notes if note.topic == STOPPED]
    assert stopped.facts["kind"] == "unreachable"
    assert stopped.facts["reason"].startswith("embedder: ")
    with embedding_server() as moved:
        operational = {**header.config.operational}
        operational["embedder"] = {**operational["embedder"], "base_url": moved.url}
        await tell(log, Noted(topic=OPERATIONAL, facts=operational))
        await tell(log, RESUME)
        assert await there.drive("r") == ["finished"]
    await there.recorded("r")


async def test_a_begin_without_its_embedder(world: Any, playing: Any) -> None:
    """A run is not begun with an embedder that is not there: nothing is known of its vectors."""
    with embedding_server() as served:
        configuration = served_by(served, playing)
    there = world()
    with pytest.raises(RunStopped, match=r"^embedder: "):
        await there.begin("r", configuration, limit=2)
    assert await there.log("r").head() == 0


async def test_what_was_embedded_is_remembered(world: Any, playing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second epoch asks for no text of the first again: no text is sent twice but the probes."""
    remembered = MemoryEmbeddings()
    with embedding_server() as served:
        there = world()
        whole = there.server
        monkeypatch.setattr(type(there), "server", lambda _: _with(whole(), remembered))
        configuration = served_by(served, playing)
        run = replace(configuration.run, epochs=2, concurrency=1)
        await there.begin("r", replace(configuration, run=run), limit=2)
        probing = served.texts[:]
        assert await there.drive("r") == ["finished"]
        sent = served.texts[2 * len(probing) :]
    assert len(sent) == len(set(sent))
    events = await there.recorded("r")
    queries = [decode_as(one, Retrieved).query.text for one in events if one.kind == "retrieved"]
    assert len(queries) > len(set(queries))


def _with(server: Any, embeddings: MemoryEmbeddings) -> Any:
    fields = {name: getattr(server, name) for name in type(server).__slots__}
    return type(server)(**{**fields, "embeddings": embeddings})
