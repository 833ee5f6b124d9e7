"""Tokens of several calls together: what is unknown stays unknown, and an estimate stands beside it."""

import random
from functools import reduce
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from events.codec import canonical, decode, draft, recorded
from events.ids import run_id, stream_id
from events.kinds import Planned, Usage

counts = st.integers(0, 2**40)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    """As calls have them: an estimate only beside what is unknown."""
    prompt, completion = draw(st.none() | counts), draw(st.none() | counts)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        calls=draw(st.integers(0, 9)),
        cached_tokens=draw(st.just(UNSET) | counts),
        estimated_prompt_tokens=draw(st.just(UNSET) | counts) if prompt is None else UNSET,
        estimated_completion_tokens=draw(st.just(UNSET) | counts) if completion is None else UNSET,
    )


@given(st.lists(usages(), max_size=6), st.randoms())
def test_the_order_and_grouping_of_calls_do_not_matter(calls: list[Usage], dice: random.Random) -> None:
    """A sum is the same however it is put together, and nothing added changes nothing."""
    whole = reduce(add, calls, Usage())
    cut = dice.randint(0, len(calls))
    assert reduce(add, calls[:cut], Usage()) + reduce(add, calls[cut:], Usage()) == whole
    dice.shuffle(calls)
    assert reduce(add, calls, Usage()) == whole == Usage() + whole


@given(st.lists(usages(), min_size=1, max_size=6))
def test_a_sum_is_known_only_where_every_part_is(calls: list[Usage]) -> None:
    """One unknown count makes the sum unknown; it has an estimate where each part was counted or estimated."""
    whole = reduce(add, calls)
    prompts = [one.prompt_tokens for one in calls]
    assert whole.prompt_tokens == (None if None in prompts else sum(filter(None, prompts)))
    estimates = [one.prompt_estimate for one in calls]
    assert whole.prompt_estimate == (None if None in estimates else sum(filter(None, estimates)))
    assert (whole.prompt_tokens is None) or (whole.estimated_prompt_tokens is UNSET)
    cached = [one.cached_tokens for one in calls if one.cached_tokens is not UNSET]
    assert whole.cached_tokens == (sum(cached) if cached else UNSET)


@given(usages())
def test_an_event_holds_them_as_they_are(usage: Usage) -> None:
    """Written and read again, nothing is lost and nothing is made up."""
    event = Planned(plan="p", usage=usage, calls=[])
    there = {"run": run_id("r"), "stream": stream_id("episode-0"), "version": 1, "position": 1}
    assert decode(recorded(draft(event), **there, at="", cause=None, attempt=1)) == event  # type: ignore[arg-type]  # a dict of all of them


@pytest.mark.parametrize(
    ("usage", "written"),
    [
        (Usage(prompt_tokens=10, completion_tokens=5, calls=1), '{"calls":1,"completion_tokens":5,"prompt_tokens":10}'),
        (Usage(prompt_tokens=None, calls=1), '{"calls":1,"completion_tokens":0,"prompt_tokens":null}'),
        (
            Usage(prompt_tokens=None, calls=1, estimated_prompt_tokens=7, cached_tokens=0),
            '{"cached_tokens":0,"calls":1,"completion_tokens":0,"estimated_prompt_tokens":7,"prompt_tokens":null}',
        ),
    ],
    ids=["counted, as ever", "unknown, as ever", "estimated"],
)
def test_what_nobody_said_is_not_written(usage: Usage, written: str) -> None:
    """Logs from before there were estimates keep their bytes, and so their hashes."""
    assert canonical(usage) == written.encode()
