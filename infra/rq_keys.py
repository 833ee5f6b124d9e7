"""rq under a prefix of our own: the connection, its queues, and how a job of ours is written as one of rq's.

rq 3.0 reads `RQ_KEY_PREFIX` once, when it is imported, so a process could serve one prefix only. Here every connection
carries its own: `PrefixedCommands` rewrites rq's keys as they are sent, `rq:...` to `<prefix>:rq:...`. Other processes
see the same keys with rq's own tools after `export RQ_KEY_PREFIX=<prefix>:rq`.
"""

import re
from collections.abc import Iterable
from typing import Any, cast

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.connection import HiredisRespSerializer
from redis.retry import Retry
from rq import Queue
from rq.defaults import RQ_KEY_PREFIX

from events.errors import BadInput
from events.ids import RunId, run_id
from infra.redis_client import COMMAND_S, CONNECT_S, DRIVER, RETRIES, redacted
from runtime.ports import Job, JobKind

#: the queue of each kind of job; one pool of workers serves one of them
QUEUES: dict[JobKind, str] = {"act": "chime-act", "diagnose": "chime-diagnose"}

#: what `job_id` makes
_JOB_ID = re.compile(r"(act|diagnose)-([a-z0-9][a-z0-9-]{0,62})-(0|[1-9][0-9]{0,17})-([1-9][0-9]{0,17})")
_PREFIX = re.compile(r"[A-Za-z0-9_.:{}-]+")
#: commands whose arguments are no keys: a password that starts with `rq:` is a password, and a subscriber is
#: answered with the channel's name as the server knows it, which redis-py compares with the name it sent
_KEYLESS = frozenset({"AUTH", "CLIENT", "HELLO", "SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE", "PUNSUBSCRIBE", "PUBLISH"})


class PrefixedCommands:
    """A redis-py command packer that sends rq's keys (`rq:...`) as `<prefix>:rq:...`.

    Every argument that starts like a key of rq is taken for one: rq stores keys of queues and workers as members of
    sets, which are to carry the prefix too.
    """

    def __init__(self, prefix: str) -> None:
        self._ours = (f"{RQ_KEY_PREFIX}:", f"{prefix}:rq:")
        self._bytes = (self._ours[0].encode(), self._ours[1].encode())
        self._packer = HiredisRespSerializer()

    def pack(self, *args: Any) -> list[bytes]:
        """The command in the Redis protocol."""
        name = args[0] if isinstance(args[0], str) else args[0].decode()
        if name.split(" ", 1)[0].upper() not in _KEYLESS:
            args = (args[0], *(self._prefixed(arg) for arg in args[1:]))
        return cast("list[bytes]", self._packer.pack(*args))

    def _prefixed(self, arg: Any) -> Any:
        if isinstance(arg, str):
            rqs, ours = self._ours
            return ours + arg[len(rqs) :] if arg.startswith(rqs) and not arg.startswith(ours) else arg
        if isinstance(arg, bytes):
            rqs_b, ours_b = self._bytes
            return ours_b + arg[len(rqs_b) :] if arg.startswith(rqs_b) and not arg.startswith(ours_b) else arg
        return arg


def rq_connection(url: str, prefix: str) -> Redis:
    """A blocking client for rq whose keys live under `<prefix>:rq`; it connects when first used.

    Raises:
        BadInput: a prefix with other characters than rq allows, or a URL that is none.
    """
    if not _PREFIX.fullmatch(prefix):
        raise BadInput(f"key prefix {prefix!r}: only letters, digits and _ . : - {{ }} are allowed")
    try:
        return Redis.from_url(
            url,
            command_packer=PrefixedCommands(prefix),
            socket_connect_timeout=CONNECT_S,
            socket_timeout=COMMAND_S,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), RETRIES),
            driver_info=DRIVER,
        )
    except ValueError as error:
        raise BadInput(f"{redacted(url)} is no Redis URL: {error}") from error


def rq_queue(kind: JobKind, connection: Redis) -> Queue:
    """The rq object for the queue of `kind`, with our serializer."""
    return Queue(QUEUES[kind], connection=connection, serializer="json")


def job_id(job: Job) -> str:
    """`<kind>-<run>-<episode>-<attempt>`: the same job has the same id, wherever it is made."""
    return f"{job.kind}-{job.run}-{job.episode}-{job.attempt}"


def job_of(args: Iterable[Any]) -> Job:
    """The job behind the arguments (kind, run, episode, attempt) of an rq job.

    Raises:
        BadInput: other arguments.
    """
    match list(args):
        case [("act" | "diagnose") as kind, str(run), int(episode), int(attempt)] if episode >= 0 and attempt >= 1:
            return Job(kind=kind, run=run_id(run), episode=episode, attempt=attempt)
        case other:
            raise BadInput(f"no job of ours: arguments {other!r}")


def job_named(id_: str) -> Job:
    """The job with this id.

    Raises:
        BadInput: an id that is not one of ours.
    """
    match = _JOB_ID.fullmatch(id_)
    if match is None:
        raise BadInput(f"no job of ours: {id_!r}")
    return job_of((match[1], match[2], int(match[3]), int(match[4])))


def run_of(id_: str) -> RunId | None:
    """The run of a job of ours; None for another id."""
    match = _JOB_ID.fullmatch(id_)
    return RunId(match[2]) if match else None


def asked_key(prefix: str, run: RunId) -> str:
    """What was asked for of the run's open episodes: a sorted set by episode, `<job id> <first> <told>` each."""
    return f"{prefix}:{{{run}}}:asked"


def asked_runs_key(prefix: str) -> str:
    """The names of the runs with an `asked_key`."""
    return f"{prefix}:asked"


def job_part(entry: bytes) -> str:
    """The job id of an entry `<job id>` or `<job id>:<execution id>` of rq's lists."""
    return entry.decode().split(":", 1)[0]
