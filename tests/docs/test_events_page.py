"""docs/events.md against the code, and golden logs' digests computed from the page's words alone."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
import zstandard

from events.codec import EVENT_CAP, decode, export_line, parse_line
from events.ids import Position
from events.kinds import KINDS
from infra.archive import TOPIC
from infra.calls import CallRecord
from infra.exported_bodies import ExportedBlobs
from infra.segments import Manifest, Segment, SegmentLog
from runtime.execution import ENVIRONMENT_STOPS, MODEL_STOP
from runtime.gate import Degraded
from workers.engine import STOPPED
from workers.noting import CAPABILITIES, MODEL_CHANGED
from workers.operational import OPERATIONAL

NAME = "docs/events.md"
GOLDEN = sorted(Path(__file__).parents[1].glob("golden/schema-1/*.jsonl"))
#: SHA-256 of nothing
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

Item = dict[str, Any]
each = pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)


def test_every_kind_has_a_row_and_an_example(page: Callable[[str], Any]) -> None:
    """The page lists the kinds that the code knows, and shows one of each under its name."""
    text = page(NAME).text
    assert [row[0].strip("`") for row in page(NAME).table("kind")] == list(KINDS)
    shown = re.findall(r"^### Example: (\w+)\n```json\n(.*)\n```$", text, re.MULTILINE)
    assert [kind for kind, _ in shown] == list(KINDS)
    assert [json.loads(line)["kind"] for _, line in shown] == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_is_read_and_printed_as_it_stands(page: Callable[[str], Any], kind: str) -> None:
    """Each example decodes, and an export prints the same bytes; so does the standard `json`, as the page says."""
    (line,) = [one for one in page(NAME).fences("json") if json.loads(one)["kind"] == kind]
    recorded = parse_line(line.encode(), NAME)
    assert type(decode(recorded)) is KINDS[kind]
    assert export_line(recorded) == line.encode()
    assert json.dumps(json.loads(line), sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n" == line


def test_the_lists_of_reasons_are_complete(page: Callable[[str], Any]) -> None:
    """Every reason for a degraded diagnosis, every stop of our own and every topic has its row."""
    degraded = [row[0] for row in page(NAME).table("`degraded`")]
    assert degraded == [f"`{reason}`" for reason in get_args(Degraded)]
    stops = " ".join(row[0] for row in page(NAME).table("`stop`"))
    source = (Path(__file__).parents[2] / "runtime/execution.py").read_text()
    own = {*ENVIRONMENT_STOPS, MODEL_STOP, *re.findall(r'stop = "(\w+)"', source), "done", "context"}
    assert [word for word in sorted(own) if f"`{word}`" not in stops] == []
    rows = " ".join(row[0] for row in page(NAME).table("event"))
    topics = (STOPPED, OPERATIONAL, "recall_differs", TOPIC, CAPABILITIES, MODEL_CHANGED)
    for word in ("pause", "resume", "cancel", *topics):
        assert f"`{word}`" in rows


def words(page: Callable[[str], Any], head: str) -> set[str]:
    """The names in the first cells of the table under that head."""
    return {name for row in page(NAME).table(head) for name in re.findall(r"`(\w+)`", row[0])}


def test_a_folder_written_by_the_pages_words_is_read(page: Callable[[str], Any], tmp_path: Path) -> None:
    """Segments of three lines, manifest, chain and bodies made with `json`, `hashlib` and zstd alone."""
    lines = GOLDEN[0].read_bytes().splitlines(keepends=True)
    chain, segments = "", list[dict[str, Any]]()
    for start in range(0, len(lines), 3):
        held = lines[start : start + 3]
        name, raw = f"{len(segments) + 1:06}.jsonl.zst", b"".join(held)
        (tmp_path / name).write_bytes(zstandard.compress(held[0]) + zstandard.compress(b"".join(held[1:])))
        sha = hashlib.sha256(raw).hexdigest()
        chain = hashlib.sha256((chain + sha).encode("ascii")).hexdigest()
        segments.append({"file": name, "first": start + 1, "last": start + len(held), "sha256": sha, "chain": chain})
    run = json.loads(lines[0])["run"]
    manifest = {"format": 1, "run": run, "events": len(lines), "segments": segments}
    text = json.dumps(manifest, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n"
    (tmp_path / "manifest.json").write_text(text)
    assert set(manifest) == words(page, "manifest") == set(Manifest.__struct_fields__)
    assert set(segments[0]) == words(page, "segment") == set(Segment.__struct_fields__)
    body = b"a trajectory"
    sha = hashlib.sha256(body).hexdigest()
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / f"{sha}.zst").write_bytes(zstandard.compress(body))

    async def read() -> tuple[list[bytes], bytes]:
        found = [export_line(one) for one in await SegmentLog(tmp_path).read(Position(0), len(lines))]
        return found, await ExportedBlobs(tmp_path).get(run, sha)

    assert anyio.run(read) == (lines, body)
    assert words(page, "record") == set(CallRecord.__struct_fields__)


def test_the_cap_is_the_codes(page: Callable[[str], Any]) -> None:
    """The page's size limit is the one that the codec enforces."""
    assert f"`data` may be {EVENT_CAP:,} bytes at most" in page(NAME).text


def test_the_digest_of_empty_banks_is_the_one_printed(page: Callable[[str], Any]) -> None:
    """Nothing hashes to what the page prints."""
    assert hashlib.sha256(b"").hexdigest() == NOTHING
    assert NOTHING in page(NAME).text


@each
def test_the_pages_words_give_every_digest_of_a_golden_log(page: Callable[[str], Any], path: Path) -> None:
    """Operations applied and hashed as the page says, with `json` and `hashlib` only, give each recorded digest."""
    keys = {row[0].strip("`") for row in page(NAME).table("key")}
    checked = 0
    for items, folded in _versions(path):
        assert all(set(item) == keys for item in items)
        assert _digest(items) == folded["digest"]
        checked += 1
    assert checked > 0


def _versions(path: Path) -> Iterator[tuple[list[Item], dict[str, Any]]]:
    """The live items after each `folded`, and its data."""
    bank: dict[str, Item] = {}
    diagnosed: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        event = json.loads(line)
        data = event["data"]
        match event["kind"]:
            case "seeded":
                bank |= {item["id"]: _seeded(item) for item in data["items"]}
            case "diagnosed":
                diagnosed[event["stream"]] = data
            case "folded":
                news = diagnosed.get(f"episode-{data['episode']}", {})
                for operation in data["operations"]:
                    _apply(bank, operation, data["bank_version"], news)
                yield sorted(bank.values(), key=lambda item: _order(item["id"])), data


def _seeded(item: Item) -> Item:
    return item | {
        "scenario_vector": _vector(item["scenario_vector"]),
        "experience_vectors": [_vector(one) for one in item["experience_vectors"]],
        "inserted_at": 0,
        "changed_at": 0,
        "seeded_sources": len(item["sources"]),
    }


def _apply(bank: dict[str, Item], operation: dict[str, Any], version: int, diagnosed: dict[str, Any]) -> None:
    """One row of "folded.operations" and "Content rules"."""
    if operation["op"] in ("noop", "discard"):
        return
    if operation["op"] == "prune":
        del bank[operation["id"]]
        return
    if operation["op"] == "value":
        item = bank[operation["id"]]
        item |= {"delta_sum": operation["delta_sum"], "n": operation["n"], "changed_at": version}
        return
    stage = operation["bank"]
    new = diagnosed["experiences"][stage]
    vector = _vector(new["experience_vector"])
    if operation["op"] == "insert":
        bank[operation["id"]] = {
            "bank": stage, "bullets": 0, "changed_at": version, "delta_sum": 0, "experience": new["experience"],
            "experience_vectors": [vector], "id": operation["id"], "inserted_at": version, "n": 0,
            "scenario": new["scenario"], "scenario_vector": _vector(new["scenario_vector"]), "seeded_sources": 0,
            "sources": [operation["source"]],
        }  # fmt: skip
        return
    item = bank[operation["id"]]
    item |= {"sources": [*item["sources"], operation["source"]], "changed_at": version}
    if operation["how"] == "rewritten":
        item |= {"experience": diagnosed["merge_proposals"][stage]["text"], "bullets": 0}
    elif operation["how"] == "appended":
        item |= {"experience": f"{item['experience']}\n- {new['experience']}", "bullets": item["bullets"] + 1}
    if operation["how"] != "recorded":
        item["experience_vectors"] = [*item["experience_vectors"], vector]


def _vector(vector: dict[str, Any]) -> str:
    return hashlib.sha256(base64.b64decode(vector["q24"])).hexdigest()


def _order(memory: str) -> tuple[bool, str, bool, int, int]:
    """Origin (none first, then by code points), planning before execution, t, k (none first)."""
    origin, dot, own = memory.rpartition(".")
    stage, t, *k = own.split("-")
    return bool(dot), origin, stage == "execution", int(t), int(k[0]) if k else -1


def _digest(items: list[Item]) -> str:
    """Hex SHA-256 over the item hashes in id order."""
    hashes = b"".join(
        hashlib.sha256(json.dumps(item, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()).digest()
        for item in items
    )
    return hashlib.sha256(hashes).hexdigest()
