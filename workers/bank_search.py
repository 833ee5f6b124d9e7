"""What a person searches a run's bank for: by meaning, exactly; by words or both, as Weaviate ranks them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from events.bank import Banks, Item
from events.errors import BadInput, Mismatch, Unreachable
from events.ids import BankVersion, MemoryId, Stage
from events.vectors import DOT_ONE, Vector
from infra.banks.errors import DoubtfulAnswer
from infra.banks.prunes import Prunes
from infra.banks.serving import Mode
from infra.embedders import Around
from runtime.ports import EventLog
from workers.bank_store import named_store
from workers.connections import Server
from workers.embedding import embedded_query
from workers.header import recorded_head
from workers.operational import operational_of
from workers.sources import banks_at, newest_version
from workers.stored_bank import REBUILD, StoredBank, pruned_by
from workers.views.banks import ItemRow, item_row

#: how many more rows are asked for than are wanted: some may have been pruned
_SPARE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched for."""

    text: str
    stages: tuple[Stage, ...]
    mode: Mode
    limit: int


class SearchHit(Struct, frozen=True, kw_only=True):
    """One item that was found."""

    item: ItemRow
    #: of the text's embedding and the item's scenario, exact: nearest float64 of dot / 2^48; None where no text was
    #: embedded
    similarity: float | None
    #: what Weaviate makes of it; None where it was not asked
    score: float | None


class Searched(Struct, frozen=True, kw_only=True):
    """What a search gave."""

    run: str
    version: BankVersion
    mode: Mode
    #: `weaviate`, or `replica`: the log, folded by this command
    source: str
    #: the generation that was searched; "" for a replica
    generation: str
    hits: list[SearchHit]
    #: what a reader should know
    notes: list[str] = []


async def searched(
    there: Server, log: EventLog, asked: Search, version: BankVersion | None, around: Around | None = None
) -> Searched:
    """What the run's bank gives for a search.

    Args:
        there: the server.
        log: of the run.
        asked: what is searched for.
        version: which; None for the newest that the bank has.
        around: what the run's embedder is handed.

    Raises:
        BadInput: words are searched for in a bank that is not in Weaviate; the run embeds with something else.
        Unreachable: words are searched for, and Weaviate does not answer.
        Mismatch: words are searched for in a bank that is not on the server any more; it is ahead of its log.
    """
    if asked.mode == "vector":
        return await _by_meaning(there, log, asked, version, around)
    return await _by_words(there, log, asked, version, around)


async def _embedded(log: EventLog, text: str, around: Around | None) -> Vector:
    header = (await recorded_head(log)).started
    return await embedded_query(header, await operational_of(log, header), text, around)


async def _by_meaning(
    there: Server, log: EventLog, asked: Search, version: BankVersion | None, around: Around | None
) -> Searched:
    query = await _embedded(log, asked.text, around)
    serving = await there.generations.of(log.run).serving() if there.generations is not None else None
    notes: list[str] = []
    if serving is not None and version in (None, serving.version):
        stored = StoredBank(there, log)
        banks, pruned = await pruned_by(log, serving.version)
        prunes = Prunes()
        prunes.add(pruned)
        try:
            server = await stored.server()
            bank = server.bank(stored.generations.named(serving.generation), prunes, len(query.exact()))
            dots = [
                (one.id, one.dot)
                for stage in asked.stages
                for one in await bank.search(stage, query, asked.limit, serving.version)
            ]
        except Unreachable as away:
            notes.append(f"{away}; the log answers in its place")
        except DoubtfulAnswer as wrong:
            notes.append(f"{_anew(wrong, log)}; the log answers in its place")
        else:
            return Searched(
                run=log.run, version=serving.version, mode=asked.mode, source="weaviate",
                generation=serving.generation, hits=_ranked(banks, dots, asked.limit),
                notes=await left_behind(there, log, serving.version),
            )  # fmt: skip
    banks = await banks_at(log, await newest_version(log) if version is None else version)
    dots = [pair for stage in asked.stages for pair in _nearest(banks, stage, query, asked.limit)]
    return Searched(
        run=log.run, version=banks.version, mode=asked.mode, source="replica", generation="",
        hits=_ranked(banks, dots, asked.limit), notes=notes,
    )  # fmt: skip


def _anew(wrong: DoubtfulAnswer, log: EventLog) -> str:
    """What a bank that cannot be right has answered, and what helps."""
    return f"{wrong} (chime memory rebuild {log.run} builds the bank anew)"


async def left_behind(there: Server, log: EventLog, version: BankVersion) -> list[str]:
    """What to know of a bank at `version` that nobody brings up to its log."""
    newest = await newest_version(log)
    if version >= newest or await there.leases.holder(log.run) is not None:
        return []
    return [f"the bank is at version {version}, the log at {newest}: chime memory rebuild {log.run}"]


def _nearest(banks: Banks, stage: Stage, query: Vector, limit: int) -> list[tuple[MemoryId, int]]:
    """The live items of one bank with the largest dots, ties at the cut included."""
    rows = banks.shelf(stage).scenarios
    dots = rows.dots(query.exact())
    live = np.flatnonzero(dots > -np.inf)
    if live.size > limit:
        cut = np.partition(dots[live], -limit)[-limit]
        live = live[dots[live] >= cut]
    return [(rows.owner(row), int(dots[row])) for row in live.tolist()]


def _ranked(banks: Banks, dots: Sequence[tuple[MemoryId, int]], limit: int) -> list[SearchHit]:
    found = [(item, dot) for one, dot in dots if (item := banks.get(one)) is not None]
    found.sort(key=lambda pair: (-pair[1], pair[0].order))
    return [SearchHit(item=item_row(item), similarity=dot / DOT_ONE, score=None) for item, dot in found[:limit]]


async def _by_words(
    there: Server, log: EventLog, asked: Search, version: BankVersion | None, around: Around | None
) -> Searched:
    stored = StoredBank(there, log)
    serving = await stored.generations.serving()
    if serving is None:
        store = named_store(await operational_of(log, (await recorded_head(log)).started))
        raise BadInput(
            f"--mode {asked.mode} is Weaviate's, and run {log.run} has no bank there (its store is {store}); "
            f"{REBUILD.format(run=log.run)}, and --mode vector does without it"
        )
    at = serving.version if version is None else version
    banks = await banks_at(log, min(at, await newest_version(log)))
    query = await _embedded(log, asked.text, around) if asked.mode == "hybrid" else None
    server, scores = await stored.server(), list[tuple[Item, float]]()
    for stage in asked.stages:
        try:
            found = await server.look_up(
                serving.generation, stage, asked.text, query, asked.mode, asked.limit + _SPARE, banks.version
            )  # fmt: skip
        except DoubtfulAnswer as wrong:
            raise Mismatch(_anew(wrong, log)) from wrong
        scores += [(item, one.score) for one in found if (item := banks.get(one.id)) is not None]
    scores.sort(key=lambda pair: (-pair[1], pair[0].order))
    notes = await left_behind(there, log, serving.version)
    if at < serving.version:
        notes.append(f"what was pruned since version {at} is found by --mode vector only")
    return Searched(
        run=log.run, version=banks.version, mode=asked.mode, source="weaviate", generation=serving.generation,
        hits=[SearchHit(item=item_row(item), similarity=_similarity(banks, item, query), score=score)
              for item, score in scores[: asked.limit]],
        notes=notes,
    )  # fmt: skip


def _similarity(banks: Banks, item: Item, query: Vector | None) -> float | None:
    if query is None:
        return None
    return int(query.exact() @ banks.scenario_vector(item).exact()) / DOT_ONE
