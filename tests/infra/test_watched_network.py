"""Connections that are followed below the SDK: the environment's proxy, and a pool that takes none that is odd."""

import json
from contextlib import AsyncExitStack

import pytest
from scripted_endpoint import OK, FakeClock, http, scripted

from events.errors import BadInput
from infra import watched_network
from infra.model_errors import Failed
from infra.openai_client import Clients
from infra.watched_network import WatchedTransport
from runtime.settings import EndpointSettings

ASKED = {"model": "m", "messages": []}


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is not given up because a test stood still."""
    monkeypatch.setattr(watched_network, "_IDLE_S", 3600.0)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this machine stay out of it."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an address on the network, with the whole address, over a connection that is used again."""
    async with scripted(OK, OK + OK, OK) as proxy, AsyncExitStack() as held:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        clients = Clients({}, FakeClock(), held, rest_s=0.0)
        endpoint = EndpointSettings(base_url="http://model.invalid/v1")
        for _ in range(3):
            exchange = await clients.post(endpoint, ASKED, 60.0)
            assert json.loads(exchange.body)["model"] == "m-1"
    assert {one.path for one in proxy.requests} == {"http://model.invalid/v1/chat/completions"}
    # The second answer came twice.
    assert [one.connection for one in proxy.requests] == [0, 0, 1]


@pytest.mark.parametrize("base_url", ["http://model.invalid/v1", "https://model.invalid/v1"])
async def test_no_proxy_and_no_such_host_is_told_as_such(base_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`NO_PROXY` counts; a name that nobody knows cannot be reached."""
    async with scripted(OK) as proxy, AsyncExitStack() as held:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "model.invalid")
        with pytest.raises(Failed) as caught:
            await Clients({}, FakeClock(), held).post(EndpointSettings(base_url=base_url), ASKED, 60.0)
        assert proxy.accepted == 0
    assert caught.value.failure.unreached


async def test_a_proxy_that_refuses_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusal of a tunnel is not the endpoint's answer."""
    async with scripted(http(403, "no")) as proxy, AsyncExitStack() as held:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
        endpoint = EndpointSettings(base_url="https://model.invalid/v1")
        with pytest.raises(Failed) as caught:
            await Clients({}, FakeClock(), held).post(endpoint, ASKED, 60.0)
    assert (caught.value.failure.kind, caught.value.failure.unreached) == ("unreachable", True)
    assert [one.path for one in proxy.requests] == ["model.invalid:443"]


@pytest.mark.parametrize("proxy", ["ftp://127.0.0.1:1", "socks5://127.0.0.1:1", "http://127.0.0.1:notaport"])
async def test_a_proxy_that_cannot_be_used_is_told_at_once(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked, by the address that it was meant for."""
    monkeypatch.setenv("https_proxy", proxy)
    async with AsyncExitStack() as held:
        with pytest.raises(BadInput, match=r"model\.invalid"):
            Clients({}, FakeClock(), held).of(EndpointSettings(base_url="https://model.invalid/v1"))


def test_an_endpoint_on_this_machine_has_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says."""
    monkeypatch.setenv("all_proxy", "ftp://nobody")
    assert WatchedTransport("http://127.0.0.1:1/v1", is_local=True, rest_s=0.0).connections == 0
