"""Golden logs: what was recorded once is read, refolded and refused for ever, by both folds."""

import json
from pathlib import Path

import plain_fold
import product_fold
import pytest

from events.codec import decode, draft, export_line, parse_line
from events.errors import FoldMismatch
from events.fold import replay
from events.kinds import KINDS
from events.log import Recorded
from events.verify import verify

FOLDER = Path(__file__).parent
LOGS = sorted(FOLDER.glob("schema-*/*.jsonl"))

#: the digest each log ends with, written down when the log was: a golden log is never made again
LAST = {
    "schema-1/abandoned": "f06d571e0870fe505c6fa4d5f3043b90381cd2deac5e3af3499659016d9130f4",
    "schema-1/credit": "a20c2dc4c237b50212d2e17b9d77a5570665d1eb9dc459c9734552cc230c98ef",
    "schema-1/frozen": "986f7c7c625c088e60392f1e0a918d6f7198667f510542546417873c3dee8b70",
    "schema-1/outcome": "d33406219c475fed69d21435d3d12a17a8e6ba25c0a7eabfea007cb980d5649b",
    "schema-1/seeded": "dfecf9bee76ca0288bacc9276434f0c6295bce3a835df6cf5ad0f76e34f8de21",
}


def named(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()


def read(path: Path) -> list[Recorded]:
    lines = path.read_bytes().splitlines(keepends=True)
    return [parse_line(line, f"{path.name} line {at}") for at, line in enumerate(lines, 1)]


each = pytest.mark.parametrize("path", LOGS, ids=named)


def test_no_golden_log_is_missing() -> None:
    """Every log that was ever written down is there, and every log that is there was written down."""
    assert [named(path) for path in LOGS] == sorted(LAST)


@each
def test_a_golden_log_is_refolded_digest_by_digest(path: Path) -> None:
    """Every operation, every digest and every recall come out as recorded."""
    log = read(path)
    report = verify(log)
    assert report.versions == sum(one.kind == "folded" for one in log) > 0
    assert (report.recalls, report.unchecked_recalls) == (sum(one.kind == "retrieved" for one in log), 0)
    assert report.digest == replay(log).banks.digest() == LAST[named(path)]


@each
def test_decided_from_the_diagnoses_alone_the_digests_are_the_recorded_ones(path: Path) -> None:
    """Without any `folded`, the product gives each recorded digest, and the second fold too."""
    log = read(path)
    recorded = [json.loads(one.data)["digest"] for one in log if one.kind == "folded"]
    assert [banks.digest() for banks in product_fold.decided(log).banks][1:] == recorded
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert plain_fold.fold(events).digests[1:] == recorded
    assert plain_fold.differences(events) == []


@each
def test_a_golden_log_is_exported_byte_for_byte(path: Path) -> None:
    """Read and written again, each line is the same; read through the structs, nothing of its data is lost."""
    log = read(path)
    assert b"".join(map(export_line, log)) == path.read_bytes()
    for one in log:
        event = decode(one)
        if one.schema == event.SCHEMA:
            assert kept(json.loads(one.data), json.loads(draft(event).data))


def kept(stored: object, again: object) -> bool:
    """Whether `again` says all that `stored` says; fields that came later may stand beside it with their defaults."""
    if isinstance(stored, dict) and isinstance(again, dict):
        return all(name in again and kept(value, again[name]) for name, value in stored.items())
    if isinstance(stored, list) and isinstance(again, list):
        return len(stored) == len(again) and all(map(kept, stored, again))
    return type(stored) is type(again) and stored == again


def test_every_kind_has_a_golden_event() -> None:
    """A new kind brings a golden log."""
    assert {one.kind for path in LOGS for one in read(path)} == set(KINDS)


def test_a_wrong_operation_is_refused_and_named() -> None:
    """The merge of episode 2 says `appended` where the fold says `recorded`: that event is named, by both folds."""
    path = FOLDER / "schema-1" / "refused" / "wrong-operation.jsonl"
    with pytest.raises(FoldMismatch, match=r"^golden-credit/projector/3: operations differs: .*appended.*recorded"):
        verify(read(path))
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert plain_fold.differences(events) == ["golden-credit/projector/3"]
