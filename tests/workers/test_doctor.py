import http.server
import json
import threading
from collections.abc import Iterator

import anyio
import pytest

from infra.redis_client import connected
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
    assert rows["queue keys"].detail.startswith("1 job and 0 workers")


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
