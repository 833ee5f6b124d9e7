"""`chime memory search|rebuild|verify|gc` and `run delete` against a real Weaviate."""

import http.client
import json
import os
import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import anyio
import pytest

from events.ids import BankVersion, RunId
from infra.banks.generations import Generations
from infra.blobs import RedisBlobs
from infra.calls import RedisCalls
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.weaviate_address import WeaviateAddress

LIMIT = 8
#: a word that the toy's shop tasks have in their scenarios
WORD = "shop"


class Rest:
    """A server's REST interface, for what no command does."""

    def __init__(self, address: WeaviateAddress) -> None:
        self._address = address

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(self._address.http_url.removeprefix("http://"))
        headers = {"Authorization": f"Bearer {self._address.api_key}", "Content-Type": "application/json"}
        connection.request(method, f"/v1/{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status < 300, text
        return json.loads(text) if text else None

    def tenants(self) -> set[str]:
        return {one["name"] for one in self("GET", "schema/PlanningMemory/tenants")}

    def rows(self, stage: str, tenant: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self("GET", f"objects?class={stage}&tenant={tenant}&limit=1000")["objects"]
        return found


@pytest.fixture
def rest(weaviate_server: WeaviateAddress, monkeypatch: pytest.MonkeyPatch, patience: None) -> Rest:
    """The tests' Weaviate, which the command line is told of as well."""
    monkeypatch.setenv("CHIME_WEAVIATE_URL", weaviate_server.http_url)
    monkeypatch.setenv("CHIME_WEAVIATE_GRPC_URL", weaviate_server.grpc_url)
    monkeypatch.setenv("CHIME_WEAVIATE_API_KEY", weaviate_server.api_key)
    return Rest(weaviate_server)


@pytest.fixture
def played(
    chime: Any, world: Any, playing: Any, redis_server: Any, redis_prefix: str, rest: Rest
) -> Callable[[str], None]:
    """Plays a run of the toy, recalled from replicas, on the server of the command line."""

    async def play(run: str) -> None:
        async with connected(redis_server.url) as redis:
            here = world(
                store=RedisLogStore(redis, redis_prefix, SystemClock(), "here"),
                blobs=RedisBlobs(redis, redis_prefix, "here"), calls=RedisCalls(redis, redis_prefix, "here"),
            )  # fmt: skip
            await here.play(run, playing.configured(), limit=LIMIT)

    return lambda run: anyio.run(play, run)


def test_a_replica_is_searched_by_meaning(chime: Any, played: Any):
    """Without a bank in Weaviate the log answers, exactly; words need Weaviate, and the line says how to get there."""
    played("r")
    found = chime.json("memory", "search", "r", "an order of the shop", "--limit", "3")["data"]
    assert (found["source"], found["generation"], found["version"]) == ("replica", "", LIMIT)
    similarities = [one["similarity"] for one in found["hits"]]
    assert similarities == sorted(similarities, reverse=True)
    assert len(similarities) == 3
    one = found["hits"][0]["item"]
    text = one["scenario"]
    itself = chime.json("memory", "search", "r", text, "--stage", one["bank"], "--limit", "1")["data"]["hits"][0]
    assert (itself["item"]["id"], round(itself["similarity"], 6)) == (one["id"], 1)
    older = chime.json("memory", "search", "r", text, "--at", "2")["data"]
    assert older["version"] == 2
    assert {hit["item"]["id"] for hit in older["hits"]} == {
        item["id"] for item in chime.json("memory", "list", "r", "--at", "2")["items"]
    }
    chime("memory", "search", "r", "shop", "--mode", "bm25", code=2)
    assert "run r has no bank there (its store is replica); chime memory rebuild r builds one" in chime.err
    chime("memory", "verify", "r", code=2)
    assert "chime memory rebuild r builds one" in chime.err
    chime("memory", "search", "r", "shop", "--limit", "0", code=2)
    chime("memory", "search", "r", os.fsdecode(b"\xff"), code=2)
    assert "TEXT is not UTF-8" in chime.err
    for mode in ("vector", "bm25", "hybrid"):
        chime("memory", "search", "r", " ", "--mode", mode, code=2)
        assert "TEXT is empty" in chime.err
    chime("memory", "search", "nobody", "shop", code=2)


def test_a_bank_is_built_searched_checked_and_removed(chime: Any, played: Any, rest: Rest):
    """A bank built from a log is that log's: same digest, same similarities; it goes with its run."""
    played("r")
    listed = chime.json("memory", "list", "r")
    asked = ("memory", "search", "r", "an order of the shop")
    replica = chime.json(*asked)["data"]
    built = chime.json("memory", "rebuild", "r")["data"]
    assert (built["version"], built["rows"], built["digest"]) == (LIMIT, len(listed["items"]), listed["digest"])
    assert not built["apart"]
    assert chime.json("memory", "verify", "r")["data"]["differences"] == []
    stored = chime.json(*asked)["data"]
    assert (stored["source"], stored["generation"]) == ("weaviate", built["generation"])
    assert stored["hits"] == replica["hits"]
    words = chime.json("memory", "search", "r", WORD, "--mode", "bm25", "--limit", "50")["data"]
    holds = {
        item["id"] for item in listed["items"] if WORD in f"{item['scenario']} {item['experience']}".lower().split(":")
        or WORD in item["scenario"].lower().replace(":", " ").split()
    }  # fmt: skip
    assert holds <= {hit["item"]["id"] for hit in words["hits"]}
    assert all(hit["score"] > 0 and hit["similarity"] is None for hit in words["hits"])
    both = chime.json("memory", "search", "r", "an order of the shop", "--mode", "hybrid")["data"]
    assert {hit["item"]["id"]: hit["similarity"] for hit in both["hits"]} == {
        hit["item"]["id"]: hit["similarity"] for hit in replica["hits"] if hit["item"]["id"] in
        {one["item"]["id"] for one in both["hits"]}
    }  # fmt: skip
    assert both["hits"]
    out = chime(*asked)
    assert out.splitlines()[-1] == f"version {LIMIT}, from weaviate ({built['generation']})"
    shown = chime.json("run", "delete", "r", "--dry-run")["data"]["deleted"]
    assert shown["banks"] == 1
    chime("run", "delete", "r")
    assert built["generation"] not in rest.tenants()


def test_a_version_is_built_apart(chime: Any, played: Any, rest: Rest):
    """`rebuild --at` makes a bank that nobody goes by, under the name that it prints; `gc` removes it."""
    played("r")
    serving = chime.json("memory", "rebuild", "r")["data"]["generation"]
    listed = chime.json("memory", "list", "r", "--at", "50%")
    apart = chime.json("memory", "rebuild", "r", "--at", "50%")["data"]
    assert (apart["version"], apart["apart"], apart["digest"]) == (LIMIT // 2, True, listed["digest"])
    assert apart["generation"] != serving
    assert {serving, apart["generation"]} <= rest.tenants()
    found = {
        row["properties"]["memory"]
        for stage in ("PlanningMemory", "ExecutionMemory")
        for row in rest.rows(stage, apart["generation"])
    }
    assert found == {item["id"] for item in listed["items"]}
    assert chime.json("memory", "search", "r", "shop")["data"]["generation"] == serving
    assert chime.json("memory", "gc")["data"]["removed"] == [apart["generation"]]
    assert serving in rest.tenants()
    chime("run", "delete", "r")
    assert not {serving, apart["generation"]} & rest.tenants()


def test_what_differs_is_named(chime: Any, played: Any, rest: Rest):
    """A row that was lost, a text and a birth that were changed end a check with 4; a rebuild puts it right."""
    played("r")
    tenant = chime.json("memory", "rebuild", "r")["data"]["generation"]
    first, second, third, *_ = sorted(rest.rows("PlanningMemory", tenant), key=lambda row: row["properties"]["memory"])
    rest("DELETE", f"objects/PlanningMemory/{first['id']}?tenant={tenant}")
    changed = {"class": "PlanningMemory", "tenant": tenant, "properties": {"experience": "something else"}}
    rest("PATCH", f"objects/PlanningMemory/{second['id']}", changed)
    born = {"class": "PlanningMemory", "tenant": tenant, "properties": {"born": third["properties"]["born"] + 1}}
    rest("PATCH", f"objects/PlanningMemory/{third['id']}", born)
    body = chime.json("memory", "verify", "r", code=4)
    told = "\n".join(body["data"]["differences"])
    assert first["properties"]["memory"] in told
    assert f"{second['properties']['memory']} has another experience" in told
    assert f"{third['properties']['memory']} has another born" in told
    assert "chime memory rebuild" in body["error"]["message"]
    out = chime("memory", "verify", "r", code=4)
    assert first["properties"]["memory"] in out
    rebuilt = chime.json("memory", "rebuild", "r")["data"]["generation"]
    assert rebuilt != tenant
    assert chime.json("memory", "verify", "r")["data"]["differences"] == []
    chime("run", "delete", "r")


def test_banks_that_no_run_owns(chime: Any, played: Any, rest: Rest, redis_server: Any, redis_prefix: str):
    """`gc` removes what belongs to a deleted run of this server and prefix; nobody else's, and nothing that serves."""
    played("r")
    serving = chime.json("memory", "rebuild", "r")["data"]["generation"]
    deployment = serving.split("_")[-2]
    lost, others = f"gone_{deployment}_3-abcdef", f"theirs-{uuid4().hex[:8]}"
    for stage in ("PlanningMemory", "ExecutionMemory"):
        rest("POST", f"schema/{stage}/tenants", [{"name": lost}, {"name": others}])
    assert chime.json("memory", "gc", "--dry-run")["data"] == {"dry_run": True, "removed": [lost]}
    assert {lost, others, serving} <= rest.tenants()
    out = chime("memory", "gc")
    assert lost in out
    assert out.splitlines()[-1] == "removed 1 bank that no run owns"
    assert {others, serving} <= rest.tenants()
    assert lost not in rest.tenants()
    assert chime.json("memory", "gc")["data"]["removed"] == []
    chime("run", "delete", "r")
    for stage in ("PlanningMemory", "ExecutionMemory"):
        rest("DELETE", f"schema/{stage}/tenants", [others])


def test_banks_of_a_redis_that_was_wiped(chime: Any, played: Any, rest: Rest):
    """What another deployment has left behind is listed by run, and goes only where that deployment is named."""
    played("r")
    serving = chime.json("memory", "rebuild", "r")["data"]["generation"]
    deployment = uuid4().hex[:8]
    left = [f"long-gone_{deployment}_3-abcdef", f"long-gone_{deployment}_at5-abcdef"]
    for stage in ("PlanningMemory", "ExecutionMemory"):
        rest("POST", f"schema/{stage}/tenants", [{"name": name} for name in left])
    found = chime.json("memory", "gc", "--foreign")["data"]["foreign"]
    assert found[deployment] == left
    assert serving.split("_")[-2] not in found
    assert re.search(rf"{deployment} +2 +long-gone\n", chime("memory", "gc", "--foreign"))
    assert chime.json("memory", "gc", "--foreign", deployment, "--dry-run")["data"]["removed"] == left
    assert {*left, serving} <= rest.tenants()
    chime("memory", "gc", "--foreign", serving.split("_")[-2], code=2)
    assert f"removed 2 banks of deployment {deployment}" in chime("memory", "gc", "--foreign", deployment)
    assert not rest.tenants() & set(left)
    assert serving in rest.tenants()
    chime("run", "delete", "r")


def test_a_bank_ahead_of_its_log(chime: Any, played: Any, rest: Rest, redis_server: Any, redis_prefix: str):
    """A bank that knows more than the log is no bank of that run any more: said with 4, and built anew."""
    played("r")
    chime("memory", "rebuild", "r")

    async def publish() -> None:
        async with connected(redis_server.url) as redis:
            of = Generations(redis, redis_prefix, "here").of(RunId("r"))
            serving = await of.serving()
            assert serving is not None
            await of.publish(serving.generation, BankVersion(LIMIT + 3), None)

    anyio.run(publish)
    for command in (("verify", "r"), ("search", "r", "shop")):
        chime("memory", *command, code=4)
        assert f"is at version {LIMIT + 3}, its log at {LIMIT}" in chime.err
        assert "chime memory rebuild r" in chime.err
    assert chime.json("memory", "rebuild", "r")["data"]["version"] == LIMIT
    assert chime.json("memory", "verify", "r")["data"]["differences"] == []
    chime("run", "delete", "r")


def test_a_bank_that_was_left_behind_its_log(chime: Any, played: Any, rest: Rest, redis_server: Any, redis_prefix: str):
    """A bank that nobody brings up to its log any more is equal to an older version of it, which is said."""
    played("r")
    chime("memory", "rebuild", "r")

    async def publish() -> None:
        async with connected(redis_server.url) as redis:
            generation = await Generations(redis, redis_prefix, "here").of(RunId("r")).begin()
            for stage in ("PlanningMemory", "ExecutionMemory"):
                rest("POST", f"schema/{stage}/tenants", [{"name": generation.name}])
            await generation.publish(BankVersion(0))

    anyio.run(publish)
    out = chime("memory", "verify", "r")
    assert out.splitlines()[-1] == "equal to the log at version 0"
    assert f"the bank is at version 0, the log at {LIMIT}: chime memory rebuild r" in chime.err
    chime("memory", "rebuild", "r")
    assert chime("memory", "verify", "r").splitlines()[-1] == "equal to the log"
    chime("run", "delete", "r")


def test_a_bank_that_somebody_removed(chime: Any, played: Any, rest: Rest):
    """The log answers a search by meaning; one by words ends with 4; both say what builds the bank anew."""
    played("r")
    tenant = chime.json("memory", "rebuild", "r")["data"]["generation"]
    for stage in ("PlanningMemory", "ExecutionMemory"):
        rest("DELETE", f"schema/{stage}/tenants", [tenant])
    found = chime.json("memory", "search", "r", "shop")["data"]
    assert found["source"] == "replica"
    assert found["hits"]
    assert "chime memory rebuild r builds the bank anew" in found["notes"][0]
    for command in (("search", "r", "shop", "--mode", "bm25"), ("verify", "r")):
        chime("memory", *command, code=4)
        assert "chime memory rebuild" in chime.err
    chime("memory", "rebuild", "r")
    assert chime.json("memory", "search", "r", "shop")["data"]["source"] == "weaviate"
    chime("run", "delete", "r")


def test_a_server_that_is_away(chime: Any, played: Any, rest: Rest, monkeypatch: pytest.MonkeyPatch):
    """What needs Weaviate ends with 3 and one line; a search by meaning is answered by the log, which it says."""
    played("r")
    tenant = chime.json("memory", "rebuild", "r")["data"]["generation"]
    with monkeypatch.context() as away:
        away.setenv("CHIME_WEAVIATE_URL", "http://127.0.0.1:9")
        for command in (("verify", "r"), ("rebuild", "r"), ("gc",), ("search", "r", "shop", "--mode", "bm25")):
            chime("memory", *command, code=3)
            assert "127.0.0.1:9" in chime.err.strip().splitlines()[-1]
            assert "Traceback" not in chime.err
        found = chime.json("memory", "search", "r", "shop")["data"]
        assert found["source"] == "replica"
        assert "the log answers in its place" in found["notes"][0]
        chime("run", "delete", "r")
        assert "chime memory gc" in chime.err
    assert tenant in rest.tenants()
    assert chime.json("memory", "gc")["data"]["removed"] == [tenant]


def test_one_of_the_home_that_hangs(
    chime: Any, played: Any, rest: Rest, own_weaviate_server: Any, monkeypatch: pytest.MonkeyPatch
):
    """What needs it waits some seconds and ends with 3: the line names the process and how to end it."""
    played("r")
    chime("memory", "rebuild", "r")
    for name in ("URL", "GRPC_URL", "API_KEY"):
        monkeypatch.delenv(f"CHIME_WEAVIATE_{name}")
    monkeypatch.setenv("CHIME_HOME", str(own_weaviate_server.home))
    monkeypatch.setattr("workers.commands.memory_store._SILENT_S", 0.2)
    own_weaviate_server.pause()
    chime("memory", "search", "r", "shop", "--mode", "bm25", code=3)
    last = chime.err.strip().splitlines()[-1]
    assert "has not answered for 0 s" in last
    assert "services stop weaviate --now" in last


def test_a_wrong_key(chime: Any, played: Any, rest: Rest, monkeypatch: pytest.MonkeyPatch):
    """A key that the server refuses is said in one line without the key."""
    played("r")
    monkeypatch.setenv("CHIME_WEAVIATE_API_KEY", "a-wrong-key")
    chime("memory", "rebuild", "r", code=3)
    last = chime.err.strip().splitlines()[-1]
    assert "key" in last
    assert "a-wrong-key" not in chime.err
