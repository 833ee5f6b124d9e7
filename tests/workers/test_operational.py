"""The operational part of a run: header and resumes together, and what is refused of a log that others have written."""

from typing import Any

import pytest
from msgspec.structs import replace

from events.codec import decode_as
from events.errors import BadInput
from events.ids import RunId
from events.kinds import Noted, RunStarted
from infra.clock import SystemClock
from infra.list_log import ListLog
from workers.operational import OPERATIONAL, budget_s, episode_settings, operational_in, operational_of
from workers.run_stream import tell


def header(made_run: Any, **parts: Any) -> RunStarted:
    started = decode_as(made_run().events[0], RunStarted)
    return replace(started, config=replace(started.config, **parts))


async def test_each_resume_stands_over_what_was_said_before(made_run: Any):
    """What the header says is overlaid by what each resume said, in order."""
    begun = ListLog(RunId("r"), SystemClock())
    one = header(made_run, operational={"slots": 1, "endpoints": {"gate": {"base_url": "a"}}})
    await tell(begun, one)
    assert await operational_of(begun, one) == {"slots": 1, "endpoints": {"gate": {"base_url": "a"}}}
    await tell(begun, Noted(topic=OPERATIONAL, facts={"slots": 2}))
    await tell(begun, Noted(topic="other", facts={"slots": 9}))
    await tell(begun, Noted(topic=OPERATIONAL, facts={"limits": {"max_steps": 3}}))
    assert await operational_of(begun, one) == {
        "slots": 2, "endpoints": {"gate": {"base_url": "a"}}, "limits": {"max_steps": 3},
    }  # fmt: skip


@pytest.mark.parametrize(
    "operational",
    [{"endpoints": "none"}, {"endpoints": {"gate": 3}}, {"limits": []}, {"embedder": "hash"}, {"flags": {"a": 1}}],
)
def test_parts_of_another_shape_are_refused(made_run: Any, operational: dict[str, Any]):
    """By name, wherever they were said."""
    (part,) = operational
    with pytest.raises(BadInput, match=rf"operational part cannot be read: .*\$\.{part}"):
        operational_in([], header(made_run, operational=operational))


def test_limits_that_are_none_are_refused(made_run: Any):
    """Of the header, or of a resume."""
    with pytest.raises(BadInput, match=r"limits cannot be read: .*max_errors"):
        episode_settings(header(made_run, limits={"max_errors": "few"}).config, {})
    with pytest.raises(BadInput, match=r"limits cannot be read: .*more"):
        episode_settings(header(made_run, limits={}).config, {"limits": {"more": 1}})


@pytest.mark.parametrize("limits", [{}, {"budget_s": "long"}, {"budget_s": None}, [], "none", 3])
def test_an_unreadable_budget_leaves_the_one_before(limits: Any):
    """Whoever coordinates the run goes on: its workers say what is wrong."""
    assert budget_s(limits, 60.0) == 60.0
    assert budget_s({"budget_s": 5}, 60.0) == 5.0
