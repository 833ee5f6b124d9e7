"""An embedder behind HTTP: what is sent, which answers are taken, and that a wrong one never becomes a vector."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
import structlog.testing
from scripted_endpoint import SECRET, FakeClock, Scripted, failed, http

from events.errors import BadInput
from events.vectors import fixed_point
from infra import embedders
from infra.embedders import Around
from infra.embedders.openai import ServedEmbedder, Settings
from infra.embedding_identity import PROBES, assert_same
from runtime.errors import EmbedderUnavailable, EmbeddingFailed, RunStopped

#: requests at the start: one tells the dimension, the others are the probes
PROBING = 1 + len(PROBES)


def row(text: str, dimension: int = 3) -> list[float]:
    """What the scripted server's model makes of a text."""
    return [1.0, *(len(text) * (place + 1) / 100 for place in range(dimension - 1))]


def answer(body: Any, change: Callable[[list[Any]], Any] = lambda data: data, dimension: int = 3) -> bytes:
    """A right answer to a request, with its rows changed."""
    data = [
        {"object": "embedding", "index": place, "embedding": row(text, dimension)}
        for place, text in enumerate(body["input"])
    ]
    return http(200, {"object": "list", "data": change(data), "model": "m", "usage": {"prompt_tokens": 1}})


class Served(Scripted):
    """A server that answers right, but for what `faults` say of the requests after the probes, the last one on.

    Args:
        faults: a change of the rows, a whole reply, or None for a right answer; by request.
        dimension: of the rows.
    """

    def __init__(self, faults: list[Any], dimension: int) -> None:
        super().__init__([])
        self.faults, self.dimension = faults, dimension

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while (request := await self._read(reader, 0)) is not None:
                self.requests.append(request)
                writer.write(self.reply(request.body))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    def reply(self, body: Any) -> bytes:
        number = len(self.requests) - 1 - PROBING
        fault = self.faults[min(number, len(self.faults) - 1)] if number >= 0 and self.faults else None
        if isinstance(fault, bytes):
            return fault
        return answer(body, fault or (lambda data: data), self.dimension)


@dataclass
class Asked:
    """A server, an embedder that asks it, and the clock between them."""

    server: Served
    embedder: ServedEmbedder
    clock: FakeClock

    @property
    def bodies(self) -> list[Any]:
        """What was asked for after the probes."""
        return [one.body for one in self.server.requests[PROBING:]]


@asynccontextmanager
async def asking(*faults: Any, dimension: int = 3, **changes: Any) -> AsyncIterator[Asked]:
    """An embedder in front of a server with `faults`."""
    server, clock = Served(list(faults), dimension), FakeClock()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    given: dict[str, Any] = {"model": "m", "base_url": server.url, "api_key_env": "A_KEY", "retries": 4} | changes
    around = Around(environ={"A_KEY": SECRET}, clock=clock)
    embedder = ServedEmbedder(Settings(**given), around, random.Random(7))  # noqa: S311 - jitter is no secret
    try:
        yield Asked(server, embedder, clock)
    finally:
        await embedder.aclose()
        listening.close()
        for writer in server.writers:
            writer.transport.abort()


async def test_a_request_says_floats_and_no_more() -> None:
    """Model, texts and `encoding_format`; the key in its header, nothing of the environment or the SDK."""
    async with asking() as asked:
        assert await asked.embedder.embed(["a", "bbb"], "document") == [fixed_point(row("a")), fixed_point(row("bbb"))]
    assert asked.bodies == [{"model": "m", "input": ["a", "bbb"], "encoding_format": "float"}]
    request = asked.server.requests[-1]
    assert request.path == "/v1/embeddings"
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert not [
        name for name in request.headers if name.startswith("x-stainless") and name != "x-stainless-raw-response"
    ]


async def test_the_instruction_stands_before_queries_alone() -> None:
    """The interface has no field for it, so it is part of the text; a document is sent as it is."""
    async with asking(query_instruction="Instruct: find\nQuery:") as asked:
        await asked.embedder.embed(["lost luggage"], "query")
        await asked.embedder.embed(["lost luggage"], "document")
    assert [body["input"] for body in asked.bodies] == [["Instruct: find\nQuery:lost luggage"], ["lost luggage"]]


async def test_a_text_is_cut_before_the_instruction_is_put() -> None:
    """`max_chars` is of the text; what is composed and what UTF-8 has no form for is settled first."""
    async with asking(max_chars=3, query_instruction="Q:") as asked:
        await asked.embedder.embed(["e\u0301bcde", "\ud800x"], "query")
    assert asked.bodies[0]["input"] == ["Q:\u00e9bc", "Q:\ufffdx"]


async def test_many_texts_go_in_several_requests() -> None:
    """At most `batch_size` in one, in order; none for no texts."""
    async with asking(batch_size=2) as asked:
        texts = ["a", "bb", "ccc", "dddd", "eeeee"]
        assert await asked.embedder.embed(texts, "document") == [fixed_point(row(text)) for text in texts]
        assert await asked.embedder.embed([], "document") == []
    assert [body["input"] for body in asked.bodies] == [["a", "bb"], ["ccc", "dddd"], ["eeeee"]]


async def test_cut_vectors_are_normalised_again() -> None:
    """The first components are kept and brought to unit length; both dimensions are in the fingerprint."""
    async with cutting(2, of=5) as asked:
        (vector,) = await asked.embedder.embed(["abc"], "document")
        assert vector == fixed_point(row("abc", 5)[:2])
        assert "dimension=2; sent=5" in asked.embedder.identity.fingerprint
        assert asked.embedder.identity.dimension == 2
        assert all(probe.dim == 2 for probe in asked.embedder.identity.probes)


@asynccontextmanager
async def cutting(dimension: int, of: int) -> AsyncIterator[Asked]:
    """An embedder that keeps `dimension` of what the server sends."""
    async with asking(dimension=of) as asked:
        settings = Settings(model="m", base_url=asked.server.url, api_key_env="A_KEY", dimension=dimension)
        embedder = ServedEmbedder(settings, Around(environ={"A_KEY": SECRET}, clock=asked.clock))
        try:
            yield Asked(asked.server, embedder, asked.clock)
        finally:
            await embedder.aclose()


async def test_more_dimensions_than_the_server_sends() -> None:
    """Refused at the start, by its name."""
    async with cutting(9, of=5) as asked:
        with pytest.raises(BadInput, match=r"embedder\.dimension: m has 5 dimensions, not 9"):
            await asked.embedder.start()


async def test_the_identity_is_by_the_probes() -> None:
    """Three texts, embedded once however often somebody starts; the address is in no fingerprint."""
    async with asking() as one, asking() as other:
        for _ in range(2):
            await one.embedder.start()
        await other.embedder.start()
        assert len(one.server.requests) == PROBING
        assert [body["input"] for body in (request.body for request in one.server.requests)][1:] == [
            [text] for text, _ in PROBES
        ]
        identity = one.embedder.identity
        assert identity == other.embedder.identity
        assert identity.probes == [fixed_point(row(text)) for text, _ in PROBES]
        assert "127.0.0.1" not in identity.fingerprint


async def test_another_model_by_the_same_name_is_refused() -> None:
    """Vectors that are off by more than rounding: the line says which probe."""
    async with asking() as one, asking() as other:
        other.server.reply = lambda body: answer(
            body, lambda data: [one | {"embedding": [0.0, 1.0, 1.0]} for one in data]
        )  # type: ignore[method-assign]  # the other model
        recorded = await one.embedder.identify()
        with pytest.raises(
            BadInput, match=r"the run embeds with openai m, here is openai m: probe 1: its vectors have"
        ):
            assert_same(recorded, await other.embedder.identify())


def all_rows(row: list[float]) -> Callable[[list[Any]], Any]:
    """Every text has the same vector."""
    return lambda data: [one | {"embedding": row} for one in data]


def changed(**fields: Any) -> Callable[[list[Any]], Any]:
    """The second row with other fields."""
    return lambda data: [data[0], {name: value for name, value in (data[1] | fields).items() if value is not ...}]


WRONG_ROWS: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "reordered": (lambda data: data[::-1], "embedding 0 has index 1"),
    "duplicated index": (changed(index=0), "embedding 1 has index 0"),
    "missing index": (changed(index=...), "embedding 1 has index None"),
    "index as text": (changed(index="1"), "embedding 1 has index 1"),
    "index as truth": (lambda data: [data[0], data[1] | {"index": True}], "embedding 1 has index True"),
    "missing row": (lambda data: data[:1], "1 embeddings for 2 texts"),
    "no rows": (lambda data: data[:0], "0 embeddings for 2 texts"),
    "a row too many": (lambda data: [*data, data[0]], "3 embeddings for 2 texts"),
    "other dimension": (changed(embedding=[1.0, 2.0]), "embedding 1 has 2 dimensions, those before had 3"),
    "no components": (changed(embedding=[]), "embedding 1 is no list of numbers"),
    "missing embedding": (changed(embedding=...), "embedding 1 is no list of numbers"),
    "base64": (changed(embedding="AACAPwAAAEA="), "embedding 1 is a string, perhaps base64"),
    "a string in it": (changed(embedding=[1.0, "2", 3.0]), "embedding 1 holds str, not a number"),
    "a null in it": (changed(embedding=[1.0, None, 3.0]), "embedding 1 holds null, not a number"),
    "a truth in it": (changed(embedding=[1.0, True, 3.0]), "embedding 1 holds bool, not a number"),
    "nested": (changed(embedding=[[1.0, 2.0, 3.0]]), "embedding 1 holds list, not a number"),
    "zero": (changed(embedding=[0.0, 0, -0.0]), "embedding 1 is zero"),
    "nan": (changed(embedding=[float("nan"), 1.0, 1.0]), "embedding 1 is not finite"),
    "infinity": (changed(embedding=[float("-inf"), 1.0, 1.0]), "embedding 1 is not finite"),
    "beyond float64": (changed(embedding=[10**400, 1, 1]), "embedding 1 holds a number beyond float64"),
    "no object": (lambda data: [data[0], [1.0, 2.0, 3.0]], "embedding 1 is no object"),
}


@pytest.mark.parametrize(("fault", "told"), WRONG_ROWS.values(), ids=WRONG_ROWS)
async def test_a_wrong_row_is_named_and_never_used(fault: Callable[[list[Any]], Any], told: str) -> None:
    """Asked again twice, then an error that says what is wrong; the same server's right answers are taken again."""
    async with asking(fault, fault, fault, None) as asked:
        with pytest.raises(EmbeddingFailed, match=re.escape(told)):
            await asked.embedder.embed(["a", "bb"], "document")
        assert len(asked.bodies) == 3
        assert await asked.embedder.embed(["a", "bb"], "document") == [fixed_point(row("a")), fixed_point(row("bb"))]


@pytest.mark.parametrize(("fault", "told"), WRONG_ROWS.values(), ids=WRONG_ROWS)
async def test_a_wrong_row_that_passes_is_asked_for_again(fault: Callable[[list[Any]], Any], told: str) -> None:
    """One bad answer between two good ones: the text has its vector."""
    async with asking(fault, None) as asked:
        assert await asked.embedder.embed(["a", "bb"], "query") == [fixed_point(row("a")), fixed_point(row("bb"))]
        assert len(asked.bodies) == 2


WRONG_ANSWERS: dict[str, tuple[bytes, str]] = {
    "html": (http(200, "<html><body>please sign in</body></html>"), "no JSON: <html>"),
    "empty": (http(200, ""), "no JSON"),
    "a list": (http(200, "[1]"), "a JSON list"),
    "no data": (http(200, {"object": "list"}), "no list of embeddings"),
    "data as object": (http(200, {"data": {"0": [1.0]}}), "no list of embeddings"),
    "an error in 200": (http(200, {"error": {"message": "overloaded, come back"}}), "overloaded, come back"),
    "cut off": (http(200, '{"data": [{"index": 0, "embedding": [1.0, 2'), "no JSON"),
}


@pytest.mark.parametrize(("reply", "told"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
async def test_a_200_without_embeddings(reply: bytes, told: str) -> None:
    """Unavailable after two further tries, not a fault of the text: the episode is not judged by it."""
    async with asking(reply) as asked:
        with pytest.raises(EmbedderUnavailable, match=re.escape(told)) as caught:
            await asked.embedder.embed(["a"], "query")
    assert caught.value.kind == "malformed"
    assert len(asked.bodies) == 3


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (failed(401, "bad key"), "key"),
        (failed(404, "model m not found"), "model_not_found"),
        (failed(429, "insufficient_quota"), "quota"),
        (http(302, "", location="http://elsewhere/v1/embeddings"), "redirect"),
    ],
    ids=["key", "model", "quota", "redirect"],
)
async def test_what_stops_a_run(reply: bytes, kind: str) -> None:
    """Nothing on this endpoint can work: one request, and the line says that it is the embedder's."""
    async with asking(reply) as asked:
        with pytest.raises(RunStopped, match=r"^embedder: ") as caught:
            await asked.embedder.embed(["a"], "query")
    assert caught.value.kind == kind
    assert len(asked.bodies) == 1


async def test_a_busy_server_is_asked_again() -> None:
    """503 and 429 are waited out, with pauses; then the vector is there."""
    async with asking(failed(503, "busy"), http(429, "{}", retry_after="7"), None) as asked:
        assert await asked.embedder.embed(["a"], "query") == [fixed_point(row("a"))]
    assert asked.clock.slept[1] >= 7


async def test_a_server_that_stays_away_stops_the_run() -> None:
    """`stop_after` requests in a row without an answer; those before are unavailable."""
    async with asking(failed(503, "busy"), retries=0, stop_after=2) as asked:
        with pytest.raises(EmbedderUnavailable, match="503 busy"):
            await asked.embedder.embed(["a"], "query")
        with pytest.raises(RunStopped) as caught:
            await asked.embedder.embed(["a"], "query")
    assert caught.value.kind == "endpoint_down"


async def test_nobody_at_the_address() -> None:
    """A run does not begin with an embedder that is not there."""
    settings = Settings(model="m", base_url="http://127.0.0.1:9/v1", api_key_env="", retries=0)
    embedder = ServedEmbedder(settings, Around(clock=FakeClock()))
    try:
        with pytest.raises(RunStopped, match=r"^embedder: ") as caught:
            await embedder.identify()
    finally:
        await embedder.aclose()
    assert caught.value.kind == "unreachable"


async def test_a_refused_text_fails_alone() -> None:
    """A text that is too long for the server is that text's failure, with the server's words."""
    async with asking(failed(400, "maximum context length is 512 tokens"), None) as asked:
        with pytest.raises(EmbeddingFailed, match="refuses: 400 maximum context length"):
            await asked.embedder.embed(["a" * 9000], "query")
        assert await asked.embedder.embed(["a"], "query") == [fixed_point(row("a"))]


async def test_no_error_or_line_shows_the_key() -> None:
    """A server that repeats the key in its error: it is blotted out in what is raised and logged."""
    with structlog.testing.capture_logs() as lines:
        async with asking(failed(503, f"you sent {SECRET}"), retries=1) as asked:
            with pytest.raises(EmbedderUnavailable) as caught:
                await asked.embedder.embed(["a"], "query")
    told: BaseException | None = caught.value
    assert SECRET not in str(told)
    assert lines
    assert SECRET not in json.dumps(lines, default=str)


async def test_a_probe_without_a_vector() -> None:
    """A server whose very probes have no usable vector is no embedder; the line names the fault."""
    async with asking() as asked:
        asked.server.reply = lambda body: answer(body, all_rows([0, 0, 0]))  # type: ignore[method-assign]  # the fault
        with pytest.raises(EmbedderUnavailable, match=r"a probe failed: .*embedding 0 is zero"):
            await asked.embedder.identify()


async def test_cancelled_while_it_waits() -> None:
    """A caller that gives up leaves nothing behind, and the next one is served."""
    async with asking() as asked:
        await asked.embedder.start()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await asked.embedder.embed(["a"], "query")
        assert await asked.embedder.embed(["a"], "query") == [fixed_point(row("a"))]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"base_url": "http://h/v1"}, "missing required field `model`"),
        ({"model": "m"}, "missing required field `base_url`"),
        ({"model": " ", "base_url": "http://h/v1"}, r"embedder\.model: must be the model's name"),
        ({"model": "m", "base_url": "ftp://h"}, r"embedder\.base_url: must be http"),
        ({"model": "m", "base_url": "http://h/v1", "batch_size": 0}, r"embedder\.batch_size: must be 1 to 4096"),
        (
            {"model": "m", "base_url": "http://h/v1", "max_length": 3},
            r"embedder\.max_length: the openai embedder has no",
        ),
        ({"model": "m", "base_url": "http://h/v1", "dimension": "3"}, "Expected `int`"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, Any], told: str) -> None:
    """Each is refused by its name before anything is connected."""
    with pytest.raises(BadInput, match=told):
        embedders.load("openai", options)


def test_options_are_split_by_what_they_change() -> None:
    """What changes vectors is for the header; where the server is may change."""
    found = embedders.options("openai", {"model": "m", "base_url": "http://h/v1"})
    assert found.semantic == {"model": "m", "dimension": 0, "query_instruction": "", "max_chars": 0}
    assert found.operational["base_url"] == "http://h/v1"
    assert {*found.semantic, *found.operational} == set(Settings.__struct_fields__)
