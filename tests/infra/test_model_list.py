"""What a list of models says: whose they are, how much they hold; whatever is said instead of one means nothing."""

import json
import socket
from typing import Any

import pytest
from scripted_endpoint import OK, SECRET, Reply, failed, http, scripted

from events.errors import BadInput, Unreachable
from infra.model_list import Listed, listed_at, window_in
from runtime.errors import RunStopped
from runtime.settings import EndpointSettings


async def owner(reply: Reply, key: str = "") -> tuple[str | None, dict[str, str]]:
    """What the list of a server says that answers with `reply`, and the headers it was asked with."""
    async with scripted(reply) as server:
        found = (await listed_at(EndpointSettings(base_url=server.url, api_key_env="K"), {"K": key})).owner
        [request] = server.requests
    assert request.path == "/v1/models"
    return found, request.headers


async def test_the_first_model_has_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked with the key alone, cut to what a key is, and with nothing of this machine."""
    monkeypatch.setenv("OPENAI_ORG_ID", "leaked")
    found, headers = await owner(http(200, {"data": [{"id": "m", "owned_by": "me"}]}), f"{SECRET}\n")
    assert found == "me"
    assert headers["authorization"] == f"Bearer {SECRET}"
    kept = {"host", "accept", "accept-encoding", "user-agent", "authorization"}
    assert set(headers) == kept


@pytest.mark.parametrize(
    "reply",
    [
        http(200, {"data": []}),
        http(200, {"data": ["m"]}),
        http(200, {"data": [{"owned_by": 5}]}),
        http(200, {"data": None}),
        http(200, "[]"),
        http(200, "<html>"),
        http(307, "", location="http://elsewhere/v1"),
        failed(404, "no such route"),
        failed(500, "broken"),
        OK,
    ],
    ids=range(10),
)
async def test_another_answer_names_nobody(reply: bytes) -> None:
    """The run will find out by itself what is wrong."""
    assert (await owner(reply))[0] is None


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_told_by_the_name_of_its_variable(status: int) -> None:
    """The key is not repeated, whatever the server says."""
    with pytest.raises(RunStopped, match="refuses the key in K") as caught:
        await owner(failed(status, f"wrong key {SECRET}"), SECRET)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("name", "told"), [("K", "wants a key: set K$"), ("", "wants a key: name its variable")])
async def test_a_key_that_nobody_gave_is_asked_for(name: str, told: str) -> None:
    """A variable that is empty is another fault than a wrong key."""
    async with scripted(failed(401, "no key")) as server:
        with pytest.raises(RunStopped, match=told):
            await listed_at(EndpointSettings(base_url=server.url, api_key_env=name), {})


async def test_nobody_listening_is_unreachable() -> None:
    """The address is named."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # without listening: nobody else does
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        with pytest.raises(Unreachable, match=f"answers at {url}.*is it running"):
            await listed_at(EndpointSettings(base_url=url), {})


@pytest.mark.parametrize(
    ("changes", "keys"),
    [({"base_url": f"http://me:{SECRET}@127.0.0.1:1/v1"}, {}), ({}, {"K": f"{SECRET}\nx"}), ({"base_url": "h/v1"}, {})],
    ids=["password", "two-lines", "no-address"],
)
async def test_what_no_request_can_be_made_with_is_refused_and_not_repeated(
    changes: dict[str, Any], keys: dict[str, str]
) -> None:
    """Before anything is sent."""
    given: dict[str, Any] = {"base_url": "http://127.0.0.1:1/v1", "api_key_env": "K"} | changes
    with pytest.raises(BadInput) as caught:
        await listed_at(EndpointSettings(**given), keys)
    assert SECRET not in json.dumps(str(caught.value))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"max_model_len": 4096}, 4096),
        ({"context_length": 8192}, 8192),
        ({"meta": {"n_ctx": 2048, "n_ctx_train": 32768}}, 2048),
        ({"meta": {"n_ctx_train": 32768}}, None),
        ({"context_window": "8k", "max_context_length": 16384}, 16384),
        ({"max_model_len": True}, None),
        ({"max_model_len": -1, "meta": []}, None),
        ({}, None),
    ],
)
def test_windows_as_servers_tell_them(row: dict[str, Any], expected: int | None) -> None:
    """Never the one that a model was trained with: a server may give less."""
    assert window_in(row) == expected


def test_a_models_window_is_in_its_own_row() -> None:
    """By its name; a server of one model need not know it."""
    two = Listed([{"id": "a", "max_model_len": 4096}, {"id": "b"}])
    assert [two.window(name) for name in ("a", "b", "c")] == [4096, None, None]
    assert Listed([{"id": "a", "max_model_len": 4096}]).window("c") == 4096
    assert Listed().window("a") is None
