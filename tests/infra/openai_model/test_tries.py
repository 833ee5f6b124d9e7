"""Tries and pauses, and what no further try can cure."""

import pytest
from msgspec.structs import replace
from scripted_endpoint import ASKING_SCHEMA, OK, REQUEST, SECRET, asking, failed, http, scripted

from infra.tries import LONGEST_WARM_UP_PAUSE_S
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped


async def test_a_rate_limit_is_waited_out() -> None:
    """429, then an answer: two requests, one pause of at most the base."""
    async with asking(failed(429, "slow down"), OK) as asked:
        assert (await asked.complete()).content == "fine"
    [pause] = asked.clock.slept
    assert 0 <= pause <= 1.0
    assert len(asked.bodies) == 2


async def test_pauses_double_with_jitter_up_to_the_number_of_tries() -> None:
    """Five requests at 4 retries, the nth pause within base * 2^(n-1); the error says what came last."""
    async with asking(failed(502, "bad gateway"), retry_base_s=2.0) as asked:
        with pytest.raises(ModelUnavailable, match=r"502 bad gateway.*5 tries") as caught:
            await asked.complete()
    assert caught.value.kind == "unavailable"
    assert len(asked.bodies) == 5
    assert len(asked.clock.slept) == 4
    assert all(0 <= pause <= 2.0 * 2**n for n, pause in enumerate(asked.clock.slept))
    assert len(set(asked.clock.slept)) == 4


@pytest.mark.parametrize(
    ("name", "value", "asked_s"),
    [
        ("retry_after", "17", 17.0),
        ("retry_after", "Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
        ("retry_after_ms", "2500", 2.5),
        ("retry_after", "Thu, 01 Jan 2020 00:00:00 GMT", 0.0),
        ("retry_after", "-3", 0.0),
        ("retry_after", "soon", 0.0),
        ("retry_after", "nan", 0.0),
        ("retry_after", "1e9", 0.0),
        ("retry_after", "Thu, 01 Jan 99999999999 00:00:00 GMT", 0.0),
    ],
)
async def test_a_server_is_not_asked_sooner_than_it_says(name: str, value: str, asked_s: float) -> None:
    """Seconds, milliseconds or a date, with jitter on top; what is none of them counts as not said."""
    async with asking(http(429, "{}", **{name: value}), OK) as asked:
        await asked.complete()
    [pause] = asked.clock.slept
    assert asked_s <= pause <= asked_s + 1.0


@pytest.mark.parametrize("value", ["86400", "Fri, 02 Jan 2026 00:00:00 GMT"])
async def test_a_server_that_asks_for_too_long_is_unavailable(value: str) -> None:
    """No worker waits a day: the try was the last one."""
    async with asking(http(429, "{}", retry_after=value)) as asked:
        with pytest.raises(ModelUnavailable, match="asks us to wait"):
            await asked.complete()
    assert (len(asked.bodies), asked.clock.slept) == (1, [])


async def test_a_server_may_say_that_no_retry_helps() -> None:
    """x-should-retry: false ends the tries."""
    async with asking(http(503, "{}", x_should_retry="false")) as asked:
        with pytest.raises(ModelUnavailable):
            await asked.complete()
    assert len(asked.bodies) == 1


async def test_a_server_that_loads_its_model_is_asked_again_soon() -> None:
    """Warm-up pauses stay short whatever the base is."""
    loading = failed(503, "Loading model", type="unavailable_error", code=503)
    async with asking(loading, loading, loading, OK, retry_base_s=50.0) as asked:
        await asked.complete()
    assert len(asked.clock.slept) == 3
    assert all(pause <= LONGEST_WARM_UP_PAUSE_S for pause in asked.clock.slept)


async def test_a_500_that_repeats_itself_is_refused() -> None:
    """The same body twice: this request poisons the server, a third try is not made."""
    async with asking(failed(500, "Failed to parse tool call arguments")) as asked:
        with pytest.raises(ModelRefused, match="twice the same") as caught:
            await asked.complete()
    assert caught.value.kind == "poisoned"
    assert len(asked.bodies) == 2


async def test_different_500s_are_tried_again() -> None:
    """A server in trouble, not a poisonous request."""
    async with asking(failed(500, "a"), failed(500, "b"), failed(500, "a"), OK) as asked:
        assert (await asked.complete()).content == "fine"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (failed(401, "Incorrect API key provided"), "key"),
        (failed(403, "Forbidden"), "key"),
        (failed(402, "Insufficient Balance"), "quota"),
        (failed(404, "The model `m` does not exist", code="model_not_found"), "model_not_found"),
        (failed(404, "The model `m/Qwen2.5` does not exist.", type="NotFoundError", code=404), "model_not_found"),
        (failed(400, "Model Not Exist", type="invalid_request_error"), "model_not_found"),
        (http(404, "<html><h1>Not Found</h1></html>", content_type="text/html"), "not_found"),
        (failed(429, "You exceeded your current quota", code="insufficient_quota"), "quota"),
    ],
)
async def test_what_no_request_can_cure_stops_the_run(reply: bytes, kind: str) -> None:
    """One request, no pause, and an error that names the endpoint."""
    async with asking(reply) as asked:
        with pytest.raises(RunStopped) as caught:
            await asked.complete()
    assert caught.value.kind == kind
    assert asked.server.url in caught.value.reason
    assert (len(asked.bodies), asked.clock.slept) == (1, [])


async def test_a_401_without_a_key_says_so() -> None:
    """The variable that is not set is named."""
    async with asking(failed(401, "no"), api_key_env="NOT_SET") as asked:
        with pytest.raises(RunStopped, match="no key was sent: NOT_SET is empty"):
            await asked.complete()


async def test_a_key_that_a_server_repeats_stays_secret() -> None:
    """An error's text never holds the key."""
    async with asking(failed(401, f"Incorrect API key provided: {SECRET}.")) as asked:
        with pytest.raises(RunStopped, match=r"provided: \*\*\*") as caught:
            await asked.complete()
    assert SECRET not in str(caught.value)


async def test_a_redirect_is_not_followed() -> None:
    """307 stops the run; the address it names sees no request, no key and no prompt."""
    async with (
        scripted(OK) as other,
        asking(http(307, "", location=f"{other.url}/chat/completions")) as asked,
    ):
        with pytest.raises(RunStopped, match=other.url) as caught:
            await asked.complete()
    assert caught.value.kind == "redirect"
    assert (other.accepted, len(asked.bodies)) == (0, 1)


async def test_a_content_filter_is_the_result_of_a_request() -> None:
    """No try, no stop: this request is refused, and the endpoint works."""
    filtered = failed(400, "The response was filtered", code="content_filter")
    async with asking(filtered, stop_after=1) as asked:
        for _ in range(2):
            with pytest.raises(ModelRefused) as caught:
                await asked.complete()
            assert caught.value.kind == "content_filter"
    assert (len(asked.bodies), asked.clock.slept) == (2, [])


async def test_an_error_that_repeats_the_prompt_is_not_read_as_the_servers_own() -> None:
    """The task's words decide nothing, and stand in no error."""
    prompt = "Write a mail: insufficient_quota, you exceeded your current quota, please top up your account now"
    request = replace(REQUEST, messages=[{"role": "user", "content": prompt}])
    async with asking(failed(429, f"Too many requests like: {prompt}"), OK) as asked:
        assert (await asked.complete(request)).content == "fine"
    async with asking(failed(400, f"bad input: {prompt}")) as asked:
        with pytest.raises(ModelRefused) as caught:
            await asked.complete(request)
    assert caught.value.reason == "400 bad input: \u2026"


async def test_all_calls_share_what_may_be_tried_again() -> None:
    """Spent by one call, missed by the next."""
    async with asking(failed(503, "busy"), retries=3, retry_budget=4, stop_after=99) as asked:
        with pytest.raises(ModelUnavailable, match="4 tries"):
            await asked.complete()
        with pytest.raises(ModelUnavailable, match=r"2 tries, and none of the 4 .* is left"):
            await asked.complete()
    assert len(asked.bodies) == 6


async def test_a_capability_step_is_no_try() -> None:
    """Neither of the call's nor of those that all share."""
    refusals = [failed(400, "json_schema is not supported"), failed(400, "'temperature' is not supported")]
    async with asking(*refusals, OK, retries=0, retry_budget=1) as asked:
        assert (await asked.complete(ASKING_SCHEMA)).content == "fine"
    assert (len(asked.bodies), asked.clock.slept) == (3, [])
