"""`chime memory reembed|calibrate`: a bank in another embedder's vectors, and thresholds looked at in its log."""

from collections.abc import Callable

import click
from msgspec import Struct

from events.errors import BadInput, Unreachable
from events.ids import BankVersion, RunId, run_id
from events.kinds import EmbedderIdentity, SeedBank
from infra import embedders
from infra.embedders import Around
from infra.embedding_cache import CachedEmbedder
from infra.embedding_identity import differences
from workers.bank_store import named_store
from workers.calibration import KINDS, Calibration, Calibrator, Firing
from workers.commands.memory_store import banked
from workers.connections import START
from workers.header import Head, begin, head, recorded_head
from workers.invocation import Invocation, chime_command, run_async
from workers.output import Output
from workers.reembedding import Threshold, reembedded_config, reembedded_items, thresholds
from workers.resuming import given_by_flags
from workers.sources import banks_at, newest_version, opened, server
from workers.stored_bank import built_again
from workers.tables import Column
from workers.views.banks import version_at
from workers.views.similarities import bars, marks, svg, title

_AT = click.option("--at", metavar="VERSION|PERCENT", help="A bank version or a share of the newest (default: newest).")
#: characters of a run's name
_NAME = 63


class Reembedded(Struct, frozen=True, kw_only=True):
    """What `chime memory reembed` made."""

    run: str
    #: where its version 0 comes from
    origin: str
    version: BankVersion
    digest: str
    items: int
    #: whose vectors the old bank holds, and whose the new one
    before: str
    now: str
    thresholds: list[Threshold]
    #: whether the run was not there before
    new: bool
    #: the bank in Weaviate, where it was built at once
    generation: str | None


@chime_command("reembed", short_help="Begin a run from a bank in another embedder's vectors.")
@click.argument("run", required=False)
@_AT
@click.option("--embedder", metavar="NAME", help="Whose vectors (embedder.name); its options with -s or chime.toml.")
@click.option("--run", "new", metavar="NEW", help="Id of the new run (default: RUN and the embedder's name).")
def reembed(invocation: Invocation, run: str | None, at: str | None, embedder: str | None, new: str | None) -> None:
    """Begin a run NEW over the tasks and configuration of RUN, for another embedder.

    Its version 0 is RUN's bank at a version: the same items, texts and values, embedded anew. RUN stays as it is. The
    thresholds of NEW are those of its embedder unless given. Nothing runs yet: `chime run resume NEW` does.
    """
    invocation = invocation.with_flags({"embedder.name": ("--embedder", embedder)})
    made = run_async(_reembed, invocation, run, at, new)
    invocation.output.data(made)
    _say(invocation.output, made)


async def _reembed(invocation: Invocation, run: str | None, at: str | None, new: str | None) -> Reembedded:
    settings = invocation.configuration.embedder
    around = Around(environ=invocation.environment, home=invocation.home())
    async with (
        opened(invocation, run) as source,
        embedders.opened(settings.name, settings.given(), around) as embedder,
        server(invocation, making=True) as there,
    ):
        # What can be said at once is said before anybody is asked for a vector.
        origin, version = await recorded_head(source.log), version_at(at, await newest_version(source.log))
        target = run_id(new) if new else _named(source.log.run, settings.name)
        if origin.started.prompts and source.blobs is None:
            raise BadInput("this export has no blobs beside it; export it with --with-blobs")
        _assert_other(source.log.run, origin, await embedder.identify())
        banks = await banks_at(source.log, version)
        rows = thresholds(invocation.resolved, origin.started.config.policy.parameters)
        options = embedders.options(settings.name, settings.given())
        flags = given_by_flags(invocation.resolved)
        config = reembedded_config(origin.started.config, settings.name, options, rows, flags)
        await embedder.start()
        # A bank of thousands takes minutes: the same command again goes on where it was cut short, with the same bits.
        kept = embedder if embedder.is_free else CachedEmbedder(embedder, there.embeddings, target)
        items = await reembedded_items(banks, source.log.run, kept, _progress(invocation.output))
        beginning = head(
            config,
            origin.tasks,
            origin.started.prompts,
            embedder.identity,
            SeedBank(run=source.log.run, version=banks.version, digest=banks.digest()),
            items,
        )
        await there.copy_blobs(source, target, origin.started.prompts.values())
        is_new = await begin(there.store.open(target), beginning)
    generation = await _generation(invocation, target) if named_store(config.operational) == "weaviate" else None
    return Reembedded(
        run=target,
        origin=source.log.run,
        version=banks.version,
        digest=banks.digest(),
        items=len(items),
        before=origin.started.embedder.fingerprint,
        now=embedder.identity.fingerprint,
        thresholds=rows,
        new=is_new,
        generation=generation,
    )


def _assert_other(run: RunId, origin: Head, here: EmbedderIdentity) -> None:
    """Raises: BadInput: the run's vectors are already those of this embedder."""
    if not differences(origin.started.embedder, here):
        raise BadInput(
            f"the bank of run {run} is in the vectors of {here.fingerprint} already; name another embedder, or say "
            f"chime memory fork {run} --run NEW"
        )


def _named(run: RunId, embedder: str) -> RunId:
    return run_id(f"{run[: _NAME - len(embedder) - 1].rstrip('-')}-{embedder}")


def _progress(output: Output) -> Callable[[int, int], None]:
    """Says each tenth of the way, once."""
    tenths = 0

    def told(done: int, total: int) -> None:
        nonlocal tenths
        if (now := 10 * done // total) > tenths:
            tenths = now
            output.note(f"embedded {done} of {total} texts")

    return told


async def _generation(invocation: Invocation, run: RunId) -> str | None:
    """The bank of a run that has just begun, built in Weaviate; None where that is away: whoever resumes builds it."""
    try:
        async with banked(invocation) as there:
            built = await built_again(there, await there.existing(run), BankVersion(0), apart=False)
    except (Unreachable, BadInput) as away:
        # The run has begun, which is what was asked for: its bank follows from it.
        invocation.output.note(f"no bank in Weaviate yet ({away}); it is built when the run goes on")
        return None
    return built.generation


def _say(output: Output, made: Reembedded) -> None:
    output.table(
        [Column("threshold"), Column("before", "right"), Column("now", "right"), Column("from")],
        [[one.name, one.before, one.now, one.origin or f"run {made.origin}"] for one in made.thresholds],
    )
    if not all(one.origin for one in made.thresholds):
        output.note(f"nobody has measured this embedder: look at chime memory calibrate {made.run} once it has run")
    word = "began" if made.new else "there is already"
    output.line(
        f"{word} run {made.run} from {made.items} items of {made.origin} at version {made.version}, in the vectors of "
        f"{made.now}"
    )
    if made.generation is not None:
        output.line(f"its bank in Weaviate is {made.generation}")
    output.line(f"next: chime run resume {made.run}")


@chime_command("calibrate", short_help="Show how a run's thresholds sit in its similarities.")
@click.argument("run", required=False)
@click.option("-o", "--output", "file", metavar="FILE.svg", help="Draw it into FILE.svg as well.")
def calibrate(invocation: Invocation, run: str | None, file: str | None) -> None:
    """Count the similarities of RUN (a run, an export file or folder; default: the newest run), from its log alone.

    What was compared in recalls and decisions, as histograms; and how often floor, near tie, novelty and merge fire at
    the run's thresholds and at their neighbours, over the recalls and decisions as they were made. Nothing is embedded.
    """
    if file is not None and not file.lower().endswith(".svg"):
        raise BadInput(f"-o {file}: must end in .svg, which is what is drawn")

    async def work() -> Calibration:
        calibrator = Calibrator()
        async with opened(invocation, run) as source:
            async for page in source.log.pages(START, KINDS):
                for recorded in page:
                    calibrator.feed(recorded)
        return calibrator.done()

    found = run_async(work)
    output = invocation.output
    if file is not None:
        output.write_file(file, svg(found))
    output.data(found)
    _draw(output, found)
    if file is not None:
        output.line(f"drew {file}")


def _draw(output: Output, found: Calibration) -> None:
    output.line(
        f"run {found.run}, {found.recalls} recalls, {found.decisions} decisions; embedded with {found.embedder}"
    )
    places = marks(found)
    for histogram in found.histograms:
        output.line()
        output.line(title(histogram))
        output.table(
            [Column("from", "right"), Column("count", "right"), Column("")],
            list(bars(histogram, places[histogram.of])),
            empty="none yet",
        )
    output.line()
    output.line("how often they fire; * = as the run has it")
    output.table(
        [Column("threshold"), Column("value", "right"), Column(""), Column("what", wide=True)],
        [
            [one.threshold, one.value, "*" if one.own else "", _fires(one, decided=found.decisions > 0)]
            for one in found.firings
            if one.asked
        ],
        empty="nothing was compared yet",
    )
    if found.unread_recalls:
        output.note(f"{found.unread_recalls} recalls of versions too far back were not counted")


def _fires(one: Firing, *, decided: bool) -> str:
    share = f" ({one.fired / one.asked:.0%})"
    match one.threshold:
        case "floor":
            return f"{one.fired} of {one.asked} pairs are below{share}; {one.recalls} recalls find nothing"
        case "margin":
            return f"{one.fired} of {one.asked} recalls in another order{share}; {one.recalls} with other items chosen"
        case "novelty":
            return f"{one.fired} of {one.asked} experiences {'are' if decided else 'would be'} not novel{share}"
        case _:
            return f"{one.fired} of {one.asked} experiences {'merge' if decided else 'would merge'}{share}"
