"""Where a command reads from: a run of the server (the home's own or one of yours), or an export on disk."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from events.bank import Banks
from events.errors import BadInput
from events.fold import REPLAY_KINDS, Replay
from events.ids import PROJECTOR_STREAM, BankVersion
from infra.blobs import FolderBlobs
from infra.calls import MemoryCalls
from infra.clock import SystemClock
from infra.exported_bodies import ExportedBlobs, ExportedCalls
from infra.list_log import ListLogStore
from infra.segments import SegmentLog
from runtime.ports import EventLog
from workers import paths
from workers.connections import START, Server, Source, connections
from workers.home import opened as opened_home
from workers.invocation import Invocation
from workers.logs import quiet_logs

#: what makes a word a path rather than a run: run ids have none of these
_PATH_SIGNS = ("/", ".")


def split_words(words: Sequence[str], names: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """`[RUN] NAME ...`: the run where one is given, and the rest.

    Raises:
        BadInput: too few or too many words.
    """
    if not len(names) <= len(words) <= len(names) + 1:
        raise BadInput(f"expected [RUN] {' '.join(names)}, got {len(words)} words; without RUN it is the newest run")
    return (words[0], tuple(words[1:])) if len(words) > len(names) else (None, tuple(words))


async def newest_version(log: EventLog) -> BankVersion:
    """The newest bank version that the log holds: one `folded` each."""
    index = (await log.index()).get(PROJECTOR_STREAM)
    return BankVersion(len(index.positions) if index else 0)


async def banks_at(log: EventLog, version: BankVersion) -> Banks:
    """The banks at `version`, rebuilt from the log as recorded: no search, no model.

    Where an archive holds the beginning of the log, and a checkpoint before that version, from there.

    Raises:
        FoldMismatch: a `folded` that does not fit.
        BadInput: the log does not reach that version.
    """
    begin = await log.checkpoint()
    past = begin.state if begin is not None and begin.state.banks.version <= version else None
    replay = Replay(past)
    async for page in log.pages(past.position if past is not None else START, REPLAY_KINDS):
        for recorded in page:
            if recorded.kind == "folded" and replay.version == version:
                return replay.banks
            replay.feed(recorded)
    if replay.version != version:
        raise BadInput(f"run {log.run} has no bank version {version}; the newest is {replay.version}")
    return replay.banks


def is_path(word: str) -> bool:
    """Whether `word` names an export rather than a run; write `./exports` for a folder of the working directory."""
    return any(sign in word for sign in _PATH_SIGNS)


@asynccontextmanager
async def server(invocation: Invocation, *, making: bool = False) -> AsyncIterator[Server]:
    """The server of the configuration: yours, or the home's own for as long as the body runs.

    Args:
        invocation: says which.
        making: make a home where there is none; otherwise a home that does not exist is an empty server.

    Raises:
        Unreachable: it does not answer, or no server program is found.
        BadInput: an address that is none, or a home that cannot be used.
    """
    configuration = invocation.configuration
    quiet_logs(configuration.log)
    redis, clock = configuration.redis, SystemClock()
    home = invocation.resolved.home
    if not redis.url and not making and not (home / "redis").is_dir():
        if not home.is_dir() and (home.is_symlink() or home.exists()):
            opened_home(home)  # says what is there in its place
        yield Server(
            store=ListLogStore(clock), blobs=FolderBlobs(home), calls=MemoryCalls(), url="", prefix=redis.prefix,
            where=f"home {home}",
        )  # fmt: skip
        return
    async with connections(home if redis.url else invocation.home(), redis.url, redis.prefix, clock) as there:
        yield there


@asynccontextmanager
async def opened(invocation: Invocation, target: str | None) -> AsyncIterator[Source]:
    """The log that `target` names: an export's path, a run of the server, or None for its newest run.

    Raises:
        BadInput: there is no such run or export; says how to find one.
        Unreachable: the server does not answer.
    """
    if target is not None and is_path(target):
        yield _export(invocation.folder, target)
        return
    async with server(invocation) as there:
        yield there.source(await there.existing(target) if target is not None else await there.newest())


def export_path(folder: Path, shown: str) -> Path:
    """The export that the user wrote as `shown`, relative to `folder`.

    Raises:
        BadInput: there is none.
    """
    path = paths.at(folder, shown)
    if not path.exists():
        raise BadInput(f"{shown}: no such export; `chime log export RUN -o {shown}` writes one")
    return path


def _export(folder: Path, shown: str) -> Source:
    path = export_path(folder, shown)
    blobs, calls = ExportedBlobs(path), ExportedCalls(path)
    return Source(log=SegmentLog(path), blobs=blobs if blobs.exist else None, calls=calls if calls.exist else None)
