"""Which generation of a run's bank serves, and up to which version: a pointer in Redis beside the run's log.

A generation is a tenant of its own, built from the log by whoever holds the run's lease, or by a rebuild. Whoever
begins one is its owner; the one before goes on serving what it has until the new one is whole, and no more.
"""

import re
import secrets
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any, cast

from msgspec import Struct
from redis.asyncio import Redis
from typing_extensions import override

from events.errors import VersionGap
from events.ids import BankVersion, RunId
from infra.banks.errors import DeadGeneration
from infra.redis_client import Script, our_errors
from infra.redis_log import index_key, log_key
from runtime.ports import Basis

#: a generation's name is a tenant's: 1 to 64 of A-Z, a-z, 0-9, '_' and '-'
_LONGEST = 64
#: of that: `_<deployment>_<number>-<nonce>`, where numbers have seven digits at most
_TAIL = 1 + 8 + 1 + 7 + 1 + 6
#: of a run id that is too long: its beginning, and hex digits of its SHA-256 after a '_', which no run id holds
_BEGINNING, _DIGITS = 23, 16

#: a generation, or a bank apart
_NAME = re.compile(r"(?P<run>.+)_(?P<deployment>[0-9a-f]{8})_(at)?\d+-[0-9a-f]*")

_BEGIN = Script((files("infra") / "banks" / "begin_generation.lua").read_text())
_PUBLISH = Script((files("infra") / "banks" / "publish_generation.lua").read_text())
#: KEYS the run's bank; ARGV generation, reason: noted where that generation serves; whether it does
_DOUBT = Script("""
local serving = redis.call('HGET', KEYS[1], 'serving')
if not serving or string.match(serving, '^%S+') ~= ARGV[1] then return 0 end
redis.call('HSETNX', KEYS[1], 'doubt', ARGV[2])
return 1
""")
#: KEYS the run's bank; ARGV ms: the generations that have been retired for longer
_RETIRED = Script("""
local time = redis.call('TIME')
local before = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(ARGV[1])
local found, row = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #row, 2 do
  local generation = string.match(row[i], '^retired/(.+)$')
  if generation and tonumber(row[i + 1]) <= before then found[#found + 1] = generation end
end
return found
""")


class Serving(Struct, frozen=True, kw_only=True):
    """What readers of a run's bank go by."""

    #: the tenant
    generation: str
    #: the newest version published there
    version: BankVersion
    #: why the next one is wanted; "" for no doubt
    doubt: str = ""


class Standing(Struct, frozen=True, kw_only=True):
    """All that is known of a run's generations."""

    #: None = none has ever been whole
    serving: Serving | None
    #: the one that was begun last; "" for none
    owner: str
    #: others that may still exist, oldest first
    retired: list[str]


def bank_key(prefix: str, run: RunId) -> str:
    """The run's pointer: a hash."""
    return f"{prefix}:{{{run}}}:bank"


def deployment_key(prefix: str) -> str:
    """Eight hex digits that tell the tenants of this server and prefix from those of others."""
    return f"{prefix}:bank-deployment"


def stem(run: RunId, deployment: str) -> str:
    """What the names of the run's generations begin with; no other run's do."""
    if len(run) + _TAIL > _LONGEST:
        # No run id holds a '_': nobody's short name is read as somebody's whole one.
        run = RunId(f"{run[:_BEGINNING]}_{sha256(run.encode()).hexdigest()[:_DIGITS]}")
    return f"{run}_{deployment}_"


class Parts(Struct, frozen=True, kw_only=True):
    """What a generation's name says."""

    #: the run, or the beginning of its name and a hash where that is long
    run: str
    #: as `Generations.deployment`
    deployment: str


def parted(name: str) -> Parts | None:
    """What `name` says; None where it is no generation's."""
    found = _NAME.fullmatch(name)
    return Parts(run=found["run"], deployment=found["deployment"]) if found is not None else None


class Generations:
    """The generations of every run of a server and prefix. Every method raises Unreachable where it does not answer."""

    def __init__(self, redis: Redis, prefix: str, where: str) -> None:
        self._redis, self._prefix, self._where = redis, prefix, where
        self._deployment: str | None = None

    def of(self, run: RunId) -> "RunGenerations":
        """Those of one run."""
        return RunGenerations(self, self._redis, self._prefix, run, self._where)

    async def deployment(self) -> str:
        """Eight hex digits, the same as long as the server keeps its keys."""
        if self._deployment is None:
            key = deployment_key(self._prefix)
            with our_errors(self._where):
                await self._redis.set(key, secrets.token_hex(4), nx=True)
                found = cast("bytes", await self._redis.get(key))
            self._deployment = found.decode()
        return self._deployment


class RunGenerations:
    """The generations of one run."""

    def __init__(self, all_runs: Generations, redis: Redis, prefix: str, run: RunId, where: str) -> None:
        self._all, self._redis, self._run, self._where = all_runs, redis, run, where
        self._key = bank_key(prefix, run)
        self._keys = [self._key, index_key(prefix, run), log_key(prefix, run)]

    @property
    def run(self) -> RunId:
        return self._run

    async def serving(self) -> Serving | None:
        """The generation that readers go by."""
        with our_errors(self._where):
            return _serving(*cast("list[bytes | None]", await self._redis.hmget(self._key, ["serving", "doubt"])))

    async def standing(self) -> Standing:
        """All that is known."""
        with our_errors(self._where):
            row = cast("Mapping[bytes, bytes]", await self._redis.hgetall(self._key))
        retired = sorted((int(at), field) for field, at in row.items() if field.startswith(b"retired/"))
        return Standing(
            serving=_serving(row.get(b"serving"), row.get(b"doubt")),
            owner=row.get(b"owner", b"").decode(),
            retired=[field.decode().removeprefix("retired/") for _, field in retired],
        )

    async def begin(self, term: int | None = None) -> "Generation":
        """A new generation, ours: what was begun before is published in no more.

        Args:
            term: of the run's lease, which the caller holds; None for a rebuild by hand.

        Raises:
            DeadGeneration: somebody of a later term has begun one.
        """
        beginning = await self.beginning()
        arguments = [beginning, secrets.token_hex(3), "" if term is None else term]
        with our_errors(self._where):
            name = cast("bytes | None", await _BEGIN.run(self._redis, self._keys[:1], arguments))
        if name is None:
            raise DeadGeneration(f"{beginning}*, term {term}")
        return Generation(self, name.decode())

    async def beginning(self) -> str:
        """What the names of the run's banks begin with, and no others do."""
        return stem(self._run, await self._all.deployment())

    def named(self, name: str) -> "Generation":
        """The generation of that name, to read in."""
        return Generation(self, name)

    async def apart(self, version: BankVersion) -> "Apart":
        """A name for a bank at `version` that serves nobody, and that no generation has."""
        beginning = await self.beginning()
        return Apart(self, f"{beginning}at{version}-{secrets.token_hex(3)}"[:_LONGEST])

    async def publish(self, name: str, version: BankVersion, basis: Basis | None) -> None:
        """As `Generation.publish`."""
        arguments: list[Any] = [name, version]
        arguments += [basis.stream, basis.version, basis.sha256] if basis is not None else ["", "", ""]
        with our_errors(self._where):
            answer = cast("bytes", await _PUBLISH.run(self._redis, self._keys, arguments))
        if answer == b"dead":
            raise DeadGeneration(name)
        if answer == b"unfounded":
            raise VersionGap(f"bank {name}, whose log has lost version {version}", 0, version)

    async def doubt(self, name: str, reason: str) -> bool:
        """Ask for the next generation, where `name` is the one that serves; whether it is."""
        with our_errors(self._where):
            return bool(await _DOUBT.run(self._redis, self._keys[:1], [name, reason]))

    async def retired(self, for_s: float) -> list[str]:
        """Generations that have served nobody for so long."""
        with our_errors(self._where):
            found = cast("list[bytes]", await _RETIRED.run(self._redis, self._keys[:1], [int(for_s * 1000)]))
        return sorted(one.decode() for one in found)

    async def dropped(self, name: str) -> None:
        """A retired generation exists no more."""
        with our_errors(self._where):
            await self._redis.hdel(self._key, f"retired/{name}")

    async def forget(self) -> None:
        """The run has no bank any more: the pointer goes."""
        with our_errors(self._where):
            await self._redis.delete(self._key)


class Generation:
    """One generation as its owner and its readers see it."""

    def __init__(self, generations: RunGenerations, name: str) -> None:
        self._generations, self.name = generations, name

    async def publish(self, version: BankVersion, basis: Basis | None = None) -> None:
        """Readers may ask for `version` now; this generation serves from now on.

        Args:
            version: the newest whose rows are all written.
            basis: the `folded` that made it, which the log must still hold.

        Raises:
            DeadGeneration: a newer one has begun.
            VersionGap: the log has lost that `folded`, or holds another one.
        """
        await self._generations.publish(self.name, version, basis)

    async def newest(self) -> BankVersion | None:
        """The newest version published in this generation; None where it does not serve."""
        serving = await self._generations.serving()
        return serving.version if serving is not None and serving.generation == self.name else None


class Apart(Generation):
    """A generation that no pointer names: for whoever knows its name. It is at `version`, or at none yet."""

    def __init__(self, generations: RunGenerations, name: str, version: BankVersion | None = None) -> None:
        super().__init__(generations, name)
        self._version = version

    @override
    async def publish(self, version: BankVersion, basis: Basis | None = None) -> None:
        """It has got to `version`."""
        self._version = version

    @override
    async def newest(self) -> BankVersion | None:
        """The version that it has got to."""
        return self._version


def _serving(row: bytes | None, doubt: bytes | None) -> Serving | None:
    if row is None:
        return None
    name, version = row.decode().split(" ")
    return Serving(generation=name, version=BankVersion(int(version)), doubt=(doubt or b"").decode())
