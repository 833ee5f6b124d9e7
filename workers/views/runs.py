"""Every run of a server in a row, from an overview of its log."""

from typing import Any

from msgspec import Struct

from events.codec import decode, decode_as
from events.errors import BadInput
from events.ids import RunId
from events.kinds import Folded, RunStarted, TasksListed
from runtime.ports import LogOverview
from runtime.statistics import Interval, wilson
from workers.views.heading import heading
from workers.views.standing import Standing

#: status of a run whose log cannot be read
DAMAGED = "damaged"


class RunRow(Struct, frozen=True, kw_only=True):
    """One run; names and meanings are those of `workers.views.summary.Summary`."""

    run: RunId
    #: as in a summary, or `damaged`
    status: str
    #: why it is paused, stopped, cancelled or damaged
    reason: str
    labels: list[str] = []
    environment: str = ""
    policy: str = ""
    frozen: bool = False
    lag: int | str = 0
    concurrency: int = 0
    epochs: int = 0
    embedder: str = ""
    models: dict[str, str] = {}
    seed_bank: dict[str, Any] | None = None
    episodes_total: int = 0
    episodes: int
    scored: int = 0
    not_valid: int = 0
    successes: int = 0
    score: Interval = wilson(0, 0)
    bank_version: int
    digest: str = ""
    events: int
    started_at: str
    last_at: str


def run_row(seen: LogOverview) -> RunRow:
    """The row of one run; a log that cannot be read gives a row that says why."""
    damage = seen.damage
    if not damage and (not seen.told or seen.told[0].kind != RunStarted.KIND):
        damage = f"its log does not begin with run_started but with {seen.first_kind or 'nothing'}"
    if not damage:
        try:
            return _row(seen)
        except BadInput as error:
            damage = str(error)
    return RunRow(
        run=seen.run,
        status=DAMAGED,
        reason=damage,
        episodes=seen.episodes,
        bank_version=seen.folds,
        events=seen.head,
        started_at=seen.first_at,
        last_at=seen.last_at,
    )


def _row(seen: LogOverview) -> RunRow:
    """Raises: BadInput: an event that cannot be read."""
    header = decode_as(seen.told[0], RunStarted)
    tasks, standing = list(header.tasks), Standing()
    for recorded in seen.told[1:]:
        event = decode(recorded)
        standing = standing.after(event)
        if isinstance(event, TasksListed):
            tasks.extend(event.tasks)
    preparatory = set(header.config.preparatory)
    outcomes = [one for t, one in seen.scores.items() if not preparatory or tasks[t % len(tasks)] not in preparatory]
    scored, successes = sum(one is not None for one in outcomes), sum(one is True for one in outcomes)
    return RunRow(
        run=seen.run,
        status=standing.status,
        reason=standing.reason,
        **heading(header),
        episodes=seen.episodes,
        scored=scored,
        not_valid=len(outcomes) - scored,
        successes=successes,
        score=wilson(successes, scored),
        bank_version=seen.folds,
        digest=decode_as(seen.folded, Folded).digest if seen.folded is not None else "",
        events=seen.head,
        started_at=seen.first_at,
        last_at=seen.last_at,
    )
