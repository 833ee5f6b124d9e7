"""Two folds written apart agree on made-up logs: 2,000 in `make chaos`, a quarter of them in `make test`."""

from collections import Counter

import plain_fold
import plain_logs
import product_fold
import pytest
from chaos_budget import LONG

from events.verify import verify

CHUNKS = 20
LOGS = 2000 if LONG else 500


@pytest.mark.chaos
@pytest.mark.timeout(300 + LOGS // 5)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_both_folds_give_the_same_operations_items_and_digests(chunk: int) -> None:
    """Decided again from the diagnoses alone, every operation, item, vector and digest is the second fold's."""
    for seed in range(chunk, LOGS, CHUNKS):
        scribe = plain_logs.made_log(seed)
        made, folded = scribe.folding, product_fold.decided(product_fold.recorded_log(scribe.events))
        assert product_fold.as_data(folded.operations) == made.operations, f"seed {seed}"
        assert [banks.digest() for banks in folded.banks] == made.digests, f"seed {seed}"
        for ours, theirs in zip(folded.banks, made.banks, strict=True):
            assert product_fold.items(ours) == plain_fold.in_order(theirs), f"seed {seed}"


@pytest.mark.chaos
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_verify_accepts_what_the_second_fold_wrote(chunk: int) -> None:
    """`verify` finds every `folded` and every `retrieved` that the second fold wrote as it would write them."""
    for seed in range(chunk, LOGS // 4, CHUNKS):
        scribe = plain_logs.made_log(seed)
        report = verify(product_fold.recorded_log(scribe.events))
        assert report.versions == len(scribe.folding.operations), f"seed {seed}"
        assert report.recalls == sum(event["kind"] == "retrieved" for event in scribe.events), f"seed {seed}"
        assert report.digest == scribe.folding.digests[-1], f"seed {seed}"


def test_the_second_fold_finds_its_own_logs_right() -> None:
    """The second fold's own check of a log, folded from scratch, names nothing."""
    for seed in range(40):
        assert plain_fold.differences(plain_logs.made_log(seed).events) == []


def test_made_up_logs_reach_every_rule() -> None:
    """Every operation with every reason, and every outcome of an episode, occurs many times in the made-up logs."""
    seen: Counter[tuple[str, str]] = Counter()
    for seed in range(200):
        scribe = plain_logs.made_log(seed)
        seen.update((event["kind"], "") for event in scribe.events)
        seen["degraded", ""] += sum(bool(event["data"].get("degraded")) for event in scribe.events)
        for operations in scribe.folding.operations:
            seen.update((one["op"], one.get("how") or one.get("reason", "")) for one in operations)
    for rule in (
        ("value", ""),
        ("noop", "absent"),
        ("prune", ""),
        ("insert", ""),
        ("merge", "recorded"),
        ("merge", "rewritten"),
        ("merge", "appended"),
        ("discard", "missing"),
        ("discard", "confidence"),
        ("discard", "unacceptable"),
        ("discard", "not_novel"),
        ("abandoned", ""),
        ("degraded", ""),
        ("seeded", ""),
    ):
        assert seen[rule] >= 20, rule
