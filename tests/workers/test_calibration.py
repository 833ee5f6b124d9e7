"""A log's similarities and how often its thresholds fire, against counts by hand and by plain arithmetic."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest

from events.codec import decode
from events.fold import State, step
from events.ids import BankVersion
from events.kinds import Retrieved
from events.seeding import seed_items
from events.vectors import DOT_ONE
from workers.calibration import BARS, BARS_PER_ONE, Calibration, Calibrator, Firing, _Counted


def calibrated(made: Any, changed: Callable[[Any], Any] = lambda one: one) -> Calibration:
    """The calibration of a made run, each of its events `changed` first."""
    calibrator = Calibrator()
    for one in made.events:
        calibrator.feed(changed(one))
    return calibrator.done()


def of(found: Calibration, threshold: str) -> dict[str, Firing]:
    """A threshold's rows by value."""
    return {one.value: one for one in found.firings if one.threshold == threshold}


def plain_recalls(made: Any) -> list[tuple[Any, Any, Any]]:
    """(event, the banks it read, every dot with them by plain Python integers) for each recall."""
    versions, state, found = {BankVersion(0): State().banks}, State(), []
    for one in made.events:
        if one.kind == "retrieved":
            event = decode(one)
            assert isinstance(event, Retrieved)
            banks = versions[event.bank_version]
            query = [int(value) for value in event.query.vector.array()]
            dots = [
                sum(a * int(b) for a, b in zip(query, banks.scenario_vector(item).array(), strict=True))
                for item in banks
                if item.bank == event.stage
            ]
            found.append((event, banks, dots))
        state = step(state, one)
        versions[state.banks.version] = state.banks
    return found


def test_the_histogram_of_recalls_holds_every_pair(made_run: Any) -> None:
    """Every live item of the version and bank that was read, by exact integers; none of them falls between bars."""
    made = made_run()
    dots = [dot for _, _, each in plain_recalls(made) for dot in each]
    bars = [0] * BARS
    for dot in dots:
        bars[min(BARS - 1, int(Fraction(dot * BARS_PER_ONE, DOT_ONE) // 1) + BARS_PER_ONE)] += 1
    found = calibrated(made).histograms[0]
    assert (found.of, found.among, found.count, found.bars) == ("query_scenario", "recalls", len(dots), bars)
    assert (found.least, found.most) == (min(dots) / DOT_ONE, max(dots) / DOT_ONE)
    assert found.count > 0


def test_an_edge_belongs_to_the_bar_above_it_also_below_zero() -> None:
    """Bars are half-open to the left by exact integers: -0.5 opens a bar, the dot just below it closes another."""
    counted = _Counted()
    edge = -DOT_ONE // 2
    counted.add(np.array([edge, edge - 1, DOT_ONE + 300, -DOT_ONE], dtype=np.int64))
    bars = counted.histogram("query_scenario", "recalls").bars
    assert [place for place, count in enumerate(bars) if count] == [0, 9, 10, BARS - 1]


def test_the_floor_is_counted_at_the_runs_value_and_beside_it(made_run: Any) -> None:
    """Pairs below each value and recalls that find nothing, as plain counting finds them."""
    made = made_run()
    recalls = plain_recalls(made)
    rows = of(calibrated(made), "floor")
    assert list(rows) == ["0.2", "0.25", "0.3", "0.35", "0.4"]
    assert [value for value, row in rows.items() if row.own] == ["0.3"]
    for value, row in rows.items():
        least = Fraction(value) * DOT_ONE
        assert row.asked == sum(len(dots) for _, _, dots in recalls)
        assert row.fired == sum(dot < least for _, _, dots in recalls for dot in dots)
        assert row.recalls == sum(not any(dot >= least for dot in dots) for _, _, dots in recalls)


def test_near_ties_fire_where_they_change_the_order(made_run: Any) -> None:
    """Two items 0.007 apart, the further one credited: from a margin of 0.01 on it comes first, and alone is chosen."""
    made = tied(made_run)

    def bare(one: Any) -> Any:
        return headed(one, alpha=0, top_k=1)

    rows = of(calibrated(made, bare), "margin")
    assert {value: (row.fired, row.recalls, row.asked) for value, row in rows.items()} == {
        "0.01": (1, 1, 8), "0.02": (1, 1, 8), "0.03": (1, 1, 8), "0.04": (1, 1, 8), "0.05": (1, 1, 8),
    }  # fmt: skip
    rows = of(calibrated(made, lambda one: headed(one, alpha=0, top_k=1, margin="0.005")), "margin")
    assert [(value, row.fired) for value, row in rows.items()] == [("0.005", 0), ("0.015", 1), ("0.025", 1)]


def tied(made_run: Any) -> Any:
    """Four episodes: two items that the last query is as far from, but for 0.007; the further one is credited."""
    made = type(made_run())(run="tied")
    made.begin([f"task-{t}" for t in range(4)])
    for t, (axis, lean) in enumerate(((0, 1.0), (7, 1.02), (1, 0.0), (0, 0.0))):
        made.episode(t, success=True, label="planning", axis=axis, lean=lean)
    return made


def headed(one: Any, **parameters: Any) -> Any:
    """The event, or a header with other parameters of its policy."""
    if one.kind != "run_started":
        return one
    data = msgspec.json.decode(one.data)
    data["config"]["policy"]["parameters"] |= parameters
    return msgspec.structs.replace(one, data=msgspec.json.encode(data))


def test_merge_and_novelty_fire_as_the_fold_decided(made_run: Any) -> None:
    """At the run's own values the counts are those of the recorded operations."""
    made = made_run()
    operations = [
        operation
        for one in made.events
        if one.kind == "folded"
        for operation in msgspec.json.decode(one.data)["operations"]
    ]
    contents = [one for one in operations if one["op"] in ("insert", "merge", "discard")]
    decided = [one for one in contents if one.get("reason", "not_novel") == "not_novel"]
    found = calibrated(made)
    merge, novelty = (next(row for row in of(found, name).values() if row.own) for name in ("theta_merge", "novelty"))
    assert found.decisions == merge.asked == novelty.asked == len(decided)
    assert merge.fired == sum(one["op"] == "merge" for one in decided)
    known = [one for one in decided if one["op"] == "discard" or one.get("how") == "recorded"]
    assert novelty.fired == len(known)
    assert [one.among for one in found.histograms] == ["recalls", "decisions", "decisions"]


def test_neighbours_are_monotone(made_run: Any) -> None:
    """A higher floor leaves more out, a higher theta_merge merges less, a higher novelty finds less that is new."""
    found = calibrated(made_run())
    for name, direction in (("floor", 1), ("theta_merge", -1), ("novelty", 1)):
        fired = [row.fired * direction for row in of(found, name).values()]
        assert fired == sorted(fired), name


def test_a_run_without_decisions_shows_its_bank(made_run: Any) -> None:
    """Where nothing was decided yet, as after a reembed, each live item is held against the others of its bank."""
    made = tied(made_run)
    state = State()
    for one in made.events:
        state = step(state, one)
    other = type(made)(run="seeded")
    other.begin(["task"], seeds=tuple(seed_items(state.banks, made.run)))
    found = calibrated(other)
    assert (found.recalls, found.decisions) == (0, 0)
    assert [one.among for one in found.histograms] == ["recalls", "bank", "bank"]
    assert [one.count for one in found.histograms[:2]] == [0, len(state.banks)]
    assert found.histograms[0].least is None
    assert {(row.fired, row.asked) for row in of(found, "theta_merge").values()} == {(0, len(state.banks))}
    assert all(row.asked == 0 for row in of(found, "floor").values())
    # The last item lies along the axis that the second one leans to.
    assert found.histograms[1].most == pytest.approx(1.02 / (1 + 1.02**2) ** 0.5, abs=1e-7)


@pytest.mark.parametrize("name", ["floor", "margin", "novelty", "theta_merge"])
def test_neighbours_stay_in_range(made_run: Any, name: str) -> None:
    """A threshold at the end of its range has neighbours on one side only."""
    end = {"floor": "1", "margin": "0", "novelty": "0", "theta_merge": "1"}[name]

    made = made_run()
    made.events = made.events[:1]
    rows = of(calibrated(made, lambda one: headed(one, **{name: end})), name)
    assert end in rows
    assert len(rows) == 3
    assert next(row for row in rows.values() if row.own).value == end
