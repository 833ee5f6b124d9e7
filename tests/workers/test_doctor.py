import http.client
import http.server
import json
import threading
from collections.abc import Iterator

import anyio
import pytest

from events.ids import BankVersion, RunId
from events.log import Draft
from infra.banks.generations import Generations
from infra.clock import SystemClock
from infra.redis_client import connected
from infra.redis_log import RedisLogStore
from infra.server_locks import ServerLocks
from infra.weaviate_server import folder_of
from runtime.ports import Origin
from workers.doctor import Row, examine
from workers.layers import Flags, resolve


def rows_of(folder, environment=None, **named) -> dict[str, Row]:
    environment = {} if environment is None else environment
    resolved = resolve(Flags(named=named), environment, folder)

    async def all_rows():
        return [row async for row in examine(resolved, environment)]

    return {row.check: row for row in anyio.run(all_rows)}


class Models(http.server.BaseHTTPRequestHandler):
    """GET /v1/models for whoever has the key."""

    def do_GET(self):
        if self.path != "/v1/models":
            self.send_error(404)
        elif self.headers["Authorization"] != "Bearer k":
            self.send_error(401)
        else:
            body = json.dumps({"data": [{"id": "m"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of a server that lists one model."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_nothing_is_made(tmp_path):
    """Looking makes no home; every row that is not ok says what to do."""
    rows = rows_of(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert rows["home"].status == "ok"
    assert rows["redis"].status == "ok"
    assert rows["environment toy"].status == "ok"
    assert rows["environment bfcl"].fix == "chime env install bfcl"
    assert rows["model endpoint"].status == "warn"
    assert rows["embedder"].detail.endswith("256 dimensions")
    assert [row.check for row in rows.values() if row.status != "ok" and not row.fix] == []


@pytest.mark.parametrize(("given", "said"), [(0, "0 settings are"), (1, "1 setting is"), (2, "2 settings are")])
def test_settings_that_are_given_are_counted(tmp_path, given, said):
    """One setting is, several are not the default."""
    named = {"home": ("--home", str(tmp_path)), "run.slots": ("--slots", 3)}
    rows = rows_of(tmp_path, **dict(list(named.items())[:given]))
    assert rows["configuration"].detail.endswith(f"; {said} not the default")


def test_a_server_of_yours(tmp_path, redis_server, redis_prefix):
    """A foreign server is named with its version, and warned about where it may lose what it acknowledged."""
    rows = rows_of(tmp_path, {"CHIME_REDIS_URL": redis_server.url, "CHIME_REDIS_PREFIX": redis_prefix})
    assert rows["redis"].status == "warn"
    assert "appendfsync everysec" in rows["redis"].detail
    assert rows["clock of redis"].status == "ok"
    assert rows["queue keys"].status == "ok"


def test_jobs_of_runs_that_are_gone(tmp_path, redis_server, redis_prefix):
    """Jobs in the queues whose run has no log are found, with the command that removes them."""
    key = f"{redis_prefix}:rq:job:act-gone-run-3-1"

    async def leave() -> None:
        async with connected(redis_server.url) as redis:
            await redis.hset(key, "x", "1")

    async def clear() -> None:
        async with connected(redis_server.url) as redis:
            await redis.delete(key)

    anyio.run(leave)
    rows = rows_of(tmp_path, {"CHIME_REDIS_URL": redis_server.url, "CHIME_REDIS_PREFIX": redis_prefix})
    anyio.run(clear)
    assert (rows["queue keys"].status, rows["queue keys"].fix) == ("warn", "chime ops orphans")
    assert rows["queue keys"].detail == "of nobody: 1 job"


def test_keys_that_are_not_ours(tmp_path, redis_server, redis_prefix):
    """Stray keys under the prefix are counted and named; another installation's, whose prefix is longer, are not."""
    strays = [f"{redis_prefix}:{name}" for name in ("stray", "{r}:nonsense", "{R!}:log", "workerz:x")]
    ours = ["{r}:log:restored:1f", "{r}:pace:ab:held", "rq:anything", "workers:w", "drain", "b:runs", "b:{r}:later"]
    keys = [*strays, *(f"{redis_prefix}:{name}" for name in ours)]
    environment = {"CHIME_REDIS_URL": redis_server.url, "CHIME_REDIS_PREFIX": redis_prefix}

    async def leave() -> None:
        async with connected(redis_server.url) as redis:
            for key in keys:
                await redis.hset(key, "x", "1")

    async def clear() -> None:
        async with connected(redis_server.url) as redis:
            await redis.delete(*keys)

    assert rows_of(tmp_path, environment)["other keys"].status == "ok"
    anyio.run(leave)
    row = rows_of(tmp_path, environment)["other keys"]
    anyio.run(clear)
    assert row.status == "warn"
    assert row.detail.startswith(f"4 keys under {redis_prefix}: that Chime does not know: {redis_prefix}:stray, ")


def test_orders_and_leases_of_nobody(tmp_path, redis_server, redis_prefix):
    """A drain order for a worker that nobody knows and a lease without an end are counted, with what removes them."""
    drain, lease = f"{redis_prefix}:drain", f"{redis_prefix}:{{done}}:lease"

    async def leave() -> None:
        async with connected(redis_server.url) as redis:
            await redis.hset(drain, "host-unknown-1-x", "ann")
            await redis.hset(lease, mapping={"holder": "me", "position": "3"})

    async def clear() -> None:
        async with connected(redis_server.url) as redis:
            await redis.delete(drain, lease)

    anyio.run(leave)
    rows = rows_of(tmp_path, {"CHIME_REDIS_URL": redis_server.url, "CHIME_REDIS_PREFIX": redis_prefix})
    anyio.run(clear)
    assert (rows["queue keys"].status, rows["queue keys"].fix) == ("warn", "chime ops orphans")
    assert rows["queue keys"].detail == "of nobody: 1 drain order, 1 endless lease"


def test_what_a_deleted_run_has_left(tmp_path, redis_server, redis_prefix):
    """What workers have written of a run after its deletion is found, with the command that removes it."""
    left, expiring = f"{redis_prefix}:{{gone}}:calls", f"{redis_prefix}:{{just-gone}}:lease"

    async def leave() -> None:
        async with connected(redis_server.url) as redis:
            await redis.hset(left, "x", "1")
            await redis.set(expiring, "x", ex=60)

    async def clear() -> None:
        async with connected(redis_server.url) as redis:
            await redis.delete(left, expiring)

    environment = {"CHIME_REDIS_URL": redis_server.url, "CHIME_REDIS_PREFIX": redis_prefix}
    assert rows_of(tmp_path, environment)["run keys"].status == "ok"
    anyio.run(leave)
    row = rows_of(tmp_path, environment)["run keys"]
    anyio.run(clear)
    assert (row.status, row.fix) == ("warn", "chime run delete gone --force")
    assert row.detail.startswith("gone: ")


def test_a_server_that_is_not_there(tmp_path):
    """An address that nobody answers is a failure with a fix."""
    rows = rows_of(tmp_path, {"CHIME_REDIS_URL": "unix:///nowhere/s"})
    assert rows["redis"].status == "fail"
    assert "CHIME_REDIS_URL" in rows["redis"].fix


def test_endpoints(tmp_path, endpoint):
    """An endpoint is asked for its models: answers, refuses the key, lacks the model, is not there."""

    def row(**changes: str) -> Row:
        environment = {"CHIME_MODELS_BASE_URL": endpoint, "CHIME_MODELS_MODEL": "m", "OPENAI_API_KEY": "k", **changes}
        return rows_of(tmp_path, environment)["model endpoint (planner, executor, gate)"]

    assert row().status == "ok"
    assert (row(OPENAI_API_KEY="x").status, "OPENAI_API_KEY" in row(OPENAI_API_KEY="x").fix) == ("fail", True)
    assert "does not list n" in row(CHIME_MODELS_MODEL="n").detail
    assert row(CHIME_MODELS_BASE_URL=f"{endpoint}/more").status == "warn"
    assert row(CHIME_MODELS_BASE_URL="http://127.0.0.1:1/v1").status == "fail"


def test_roles_on_other_endpoints_have_rows_of_their_own(tmp_path, endpoint):
    """Each endpoint is asked once, for the roles that use it."""
    environment = {"CHIME_MODELS_BASE_URL": endpoint, "CHIME_ROLES_GATE_BASE_URL": "http://127.0.0.1:1/v1"}
    rows = rows_of(tmp_path, environment)
    assert {name for name in rows if name.startswith("model endpoint")} == {
        "model endpoint (planner, executor)", "model endpoint (gate)",
    }  # fmt: skip


def test_a_home_that_cannot_be(tmp_path):
    """A home below a file is a failure that names the flag."""
    (tmp_path / "file").write_text("")
    row = rows_of(tmp_path, {"CHIME_HOME": "file/home"})["home"]
    assert (row.status, "--home" in row.fix) == ("fail", True)


def test_an_embedder_that_does_not_exist(tmp_path):
    """An unknown embedder is a failure that names those there are."""
    row = rows_of(tmp_path, {"CHIME_EMBEDDER_NAME": "nothing"})["embedder"]
    assert row.status == "fail"
    assert "hash" in row.detail


def of_weaviate(address, **changes: str) -> dict[str, str]:
    given = {
        "CHIME_WEAVIATE_URL": address.http_url,
        "CHIME_WEAVIATE_GRPC_URL": address.grpc_url,
        "CHIME_WEAVIATE_API_KEY": address.api_key,
    }
    return given | changes


def test_a_weaviate_of_yours(tmp_path, weaviate_server):
    """A Weaviate server is named with its version; a wrong key and an address that nobody answers are failures."""
    row = rows_of(tmp_path, of_weaviate(weaviate_server))["weaviate"]
    assert row.status == "ok"
    assert row.detail.startswith(f"{weaviate_server.version} at {weaviate_server.http_url}, takes the key, no vector")
    row = rows_of(tmp_path, of_weaviate(weaviate_server, CHIME_WEAVIATE_API_KEY="wrong"))["weaviate"]
    assert (row.status, "refuses the key" in row.detail) == ("fail", True)
    row = rows_of(tmp_path, of_weaviate(weaviate_server, CHIME_WEAVIATE_API_KEY="k\u00e9y"))["weaviate"]
    assert (row.status, row.fix) == ("fail", "correct CHIME_WEAVIATE_API_KEY")
    row = rows_of(tmp_path, of_weaviate(weaviate_server, CHIME_WEAVIATE_GRPC_URL="127.0.0.1:1"))["weaviate"]
    assert (row.status, "gRPC" in row.detail) == ("fail", True)
    row = rows_of(tmp_path, {"CHIME_WEAVIATE_URL": "http://127.0.0.1:1"})["weaviate"]
    assert (row.status, "CHIME_WEAVIATE_URL" in row.fix) == ("fail", True)


def test_a_weaviate_that_rounds_vectors(tmp_path, own_weaviate_server):
    """Collections of ours whose vectors a server quantises are a failure that says how to be rid of them."""
    address = own_weaviate_server.start()
    quantised = {"vectorIndexType": "flat", "vectorIndexConfig": {"bq": {"enabled": True}}, "vectorizer": {"none": {}}}
    body = {"class": "ExecutionMemory", "vectorConfig": {"default": quantised}}
    connection = http.client.HTTPConnection(address.http_url.removeprefix("http://"))
    headers = {"Authorization": f"Bearer {address.api_key}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/schema", json.dumps(body), headers)
    assert connection.getresponse().status == 200
    connection.close()
    row = rows_of(tmp_path, of_weaviate(address))["weaviate"]
    assert (row.status, "vectors of ExecutionMemory are quantised" in row.detail) == ("fail", True)


def test_a_home_without_a_weaviate(tmp_path, monkeypatch):
    """Where no way leads to a server that is only a failure if runs are to be recalled from one; nothing is made."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr("workers.doctor.weaviate_ways", lambda _: [])
    row = rows_of(tmp_path)["weaviate"]
    assert (row.status, row.fix) == ("ok", "")
    row = rows_of(tmp_path, {"CHIME_BANK_STORE": "weaviate"})["weaviate"]
    assert (row.status, "CHIME_WEAVIATE_URL" in row.fix) == ("fail", True)
    assert list(tmp_path.iterdir()) == []


def test_a_home_whose_weaviate_is_silent(tmp_path):
    """One that holds the home's data and answers nobody is no server that is not needed yet."""
    home = tmp_path / ".chime"
    home.mkdir()
    locks = ServerLocks(folder_of(home))
    locks.prepare()
    with locks.given():
        row = rows_of(tmp_path)["weaviate"]
    assert (row.status, "does not answer" in row.detail) == ("warn", True)
    assert "chime services stop weaviate --now" in row.fix


def test_banks_that_are_not_as_far_as_their_logs(tmp_path, redis_server, redis_prefix, made_run):
    """A bank ahead of its log, or behind one that has ended, is named with the command that builds it anew."""

    async def at(version: int) -> None:
        async with connected(redis_server.url) as redis:
            log = RedisLogStore(redis, redis_prefix, SystemClock(), "here").open(RunId("made"))
            if await log.head() == 0:
                for one in made_run("made").events:
                    draft = Draft(kind=one.kind, schema=one.schema, data=one.data, sha256="0" * 64)
                    await log.append(one.stream, one.version, [draft], Origin(cause=None))
            of = Generations(redis, redis_prefix, "here").of(RunId("made"))
            generation = await of.begin()
            await generation.publish(BankVersion(version))

    for version, status, said in ((7, "warn", "ahead of the log: made (bank 7, log 6)"), (6, "ok", "1 of 1 runs"),
                                  (5, "warn", "left behind the log: made (bank 5, log 6)")):  # fmt: skip
        anyio.run(at, version)
        row = rows_of(tmp_path, {"CHIME_REDIS_URL": redis_server.url, "CHIME_REDIS_PREFIX": redis_prefix})[
            "banks in weaviate"
        ]
        assert (row.status, said in row.detail) == (status, True), row
        assert row.fix == ("" if status == "ok" else "chime memory rebuild made")
