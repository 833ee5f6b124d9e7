"""The configuration, typed: built once at the process's edge by `workers.layers`, then handed in.

Every setting has one dotted name (`policy.theta_merge`), one variable (`CHIME_POLICY_THETA_MERGE`) and one origin.
A role's settings that are not given are those of `[models]`.
"""

import re
from collections.abc import Mapping
from math import inf
from pathlib import PurePath
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Struct, UnsetType

from events import policies
from events.errors import BadInput
from events.parameters import Parameters
from runtime.ports import Role
from runtime.protocol import Protocol
from runtime.settings import (
    MAX_TOKENS,
    BudgetSettings,
    EndpointSettings,
    EpisodeSettings,
    IntakeSettings,
    ModelSettings,
    Pacing,
    Price,
    Thinking,
    Tools,
)

ROLES: tuple[Role, ...] = get_args(Role)

#: more of anything is a slip of the finger
_MANY = 1_000_000_000
#: the endpoint of a run that is played from recorded answers and asks nobody; a name that never resolves (RFC 2606)
NOWHERE = "http://recorded.invalid/v1"
#: seeds go through JSON and other languages
_SEED = 2**63 - 1
#: the longest name of an environment variable that can be one and not a key
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class RedisSettings(Struct, frozen=True, kw_only=True):
    """Where the log is."""

    #: redis://, rediss:// or unix://; "" = the server of the home, started when needed
    url: str = ""
    #: what every key begins with, rq's too
    prefix: str = "chime"


class LoggingSettings(Struct, frozen=True, kw_only=True):
    """How processes tell what they do."""

    #: `auto`: console on a terminal, JSON otherwise
    format: Literal["auto", "console", "json"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class ModelDefaults(Struct, frozen=True, kw_only=True):
    """What the roles are asked with unless they say otherwise (`runtime.settings`)."""

    #: "" = not configured
    model: str = ""
    #: ends in /v1; "" = not configured
    base_url: str = ""
    api_key_env: str = EndpointSettings(base_url="").api_key_env
    temperature: float = ModelSettings(model="").temperature
    #: 0 = the role's own cap
    max_tokens: int = 0
    thinking: Thinking = ModelSettings(model="").thinking
    tools: Tools = ModelSettings(model="").tools
    timeout_s: float = EndpointSettings(base_url="").timeout_s
    connect_timeout_s: float = EndpointSettings(base_url="").connect_timeout_s
    first_byte_timeout_s: float = EndpointSettings(base_url="").first_byte_timeout_s
    retries: int = EndpointSettings(base_url="").retries
    retry_base_s: float = EndpointSettings(base_url="").retry_base_s
    deadline_s: float = EndpointSettings(base_url="").deadline_s
    stop_after: int = EndpointSettings(base_url="").stop_after
    retry_budget: int = EndpointSettings(base_url="").retry_budget
    stream: bool = EndpointSettings(base_url="").stream
    context_tokens: int = EndpointSettings(base_url="").context_tokens
    requests_per_minute: int = EndpointSettings(base_url="").requests_per_minute
    tokens_per_minute: int = EndpointSettings(base_url="").tokens_per_minute
    max_concurrent: int = EndpointSettings(base_url="").max_concurrent
    pacing: Pacing = EndpointSettings(base_url="").pacing


class RoleSettings(Struct, frozen=True, kw_only=True):
    """What one role does differently from `[models]`."""

    model: str | UnsetType = UNSET
    base_url: str | UnsetType = UNSET
    api_key_env: str | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    max_tokens: int | UnsetType = UNSET
    thinking: Thinking | UnsetType = UNSET
    tools: Tools | UnsetType = UNSET
    timeout_s: float | UnsetType = UNSET
    connect_timeout_s: float | UnsetType = UNSET
    first_byte_timeout_s: float | UnsetType = UNSET
    retries: int | UnsetType = UNSET
    retry_base_s: float | UnsetType = UNSET
    deadline_s: float | UnsetType = UNSET
    stop_after: int | UnsetType = UNSET
    retry_budget: int | UnsetType = UNSET
    stream: bool | UnsetType = UNSET
    context_tokens: int | UnsetType = UNSET
    requests_per_minute: int | UnsetType = UNSET
    tokens_per_minute: int | UnsetType = UNSET
    max_concurrent: int | UnsetType = UNSET
    pacing: Pacing | UnsetType = UNSET


class Roles(Struct, frozen=True, kw_only=True):
    planner: RoleSettings = RoleSettings()
    executor: RoleSettings = RoleSettings()
    gate: RoleSettings = RoleSettings()

    def of(self, role: Role) -> RoleSettings:
        return {"planner": self.planner, "executor": self.executor, "gate": self.gate}[role]


class PolicySettings(Struct, frozen=True, kw_only=True):
    """Which policy decides, and its parameters."""

    name: str = "credit"
    parameters: Parameters = Parameters()


class RunSettings(Struct, frozen=True, kw_only=True):
    """What a new run is started with."""

    #: episodes in flight
    concurrency: int = 16
    #: L; `auto` = 2 x concurrency
    lag: int | Literal["auto", "latest"] = "auto"
    #: passes over the task list
    epochs: int = 1
    #: seed of the order of tasks
    ordering_seed: int = 42
    protocol: Protocol = "all"
    #: episodes that one worker process plays at once
    slots: int = 16
    #: share of degraded diagnoses, of the last 50, above which the run warns
    warn_degraded: float = 0.2


class EmbedderSettings(Struct, frozen=True, kw_only=True):
    """What texts are compared with. An embedder has some of these options, each with the default that stands here."""

    #: `hash` needs no download
    name: str = "hash"
    #: Hugging Face id, folder, or what the server calls it
    model: str = ""
    #: "" = the newest at hand; recorded as what it is
    revision: str = ""
    #: of a vector; 0 = all that the model gives
    dimension: int = 0
    #: tokens of a text; 0 = the model's own
    max_length: int = 0
    #: characters of a text that are sent; 0 = all
    max_chars: int = 0
    #: stands before each query, as it is
    query_instruction: str = ""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    #: texts at once
    batch_size: int = 16
    #: auto, cpu, cuda, ...
    device: str = "auto"
    #: ends in /v1
    base_url: str = ""
    api_key_env: str = "OPENAI_API_KEY"
    #: one try, seconds
    timeout_s: float = 60.0
    connect_timeout_s: float = 5.0
    #: further tries after the first
    retries: int = 5
    #: first wait between tries, seconds; doubles, with jitter
    retry_base_s: float = 1.0
    #: one call with all its tries and waits, seconds
    deadline_s: float = 600.0
    #: calls in a row without an answer, or refused alike, that a server is given up for
    stop_after: int = 5

    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults; `infra.embedders` knows which embedder has which."""
        every, default = msgspec.structs.asdict(self), msgspec.structs.asdict(EmbedderSettings())
        return {name: value for name, value in every.items() if name != "name" and value != default[name]}


Store = Literal["replica", "weaviate"]


class BankSettings(Struct, frozen=True, kw_only=True):
    """Where workers recall from."""

    #: `replica`: in each process; `weaviate`: one server for all. Either gives the same candidates
    store: Store = "replica"


class WeaviateSettings(Struct, frozen=True, kw_only=True):
    """Where this process finds the Weaviate server of runs whose bank is there."""

    #: http:// or https://; "" = the server of the home, started when needed
    url: str = ""
    #: `host:port`, or `https://host:port`; "" = the host of `url`, port 50051
    grpc_url: str = ""
    #: name of the variable that holds the key
    api_key_env: str = "CHIME_WEAVIATE_API_KEY"


class RecordingSettings(Struct, frozen=True, kw_only=True):
    """Folders of recorded answers (`infra.cassette`); every worker of a run needs to see them under this path."""

    #: where the answers of a run are written down; "" = nowhere
    record: str = ""
    #: what is played instead of asking endpoints; "" = they are asked
    replay: str = ""
    #: whether an answer that is missing there is asked for, instead of stopping the run
    loose: bool = False


class Configuration(Struct, frozen=True, kw_only=True):
    """Every setting, typed."""

    #: folder with the embedded server's data, blobs and environments; relative to the file that names it
    home: str = ".chime"
    redis: RedisSettings = RedisSettings()
    log: LoggingSettings = LoggingSettings()
    models: ModelDefaults = ModelDefaults()
    roles: Roles = Roles()
    #: model, exactly as it is asked for -> price
    prices: dict[str, Price] = {}
    budget: BudgetSettings = BudgetSettings()
    recording: RecordingSettings = RecordingSettings()
    policy: PolicySettings = PolicySettings()
    run: RunSettings = RunSettings()
    episode: EpisodeSettings = EpisodeSettings()
    embedder: EmbedderSettings = EmbedderSettings()
    bank: BankSettings = BankSettings()
    weaviate: WeaviateSettings = WeaviateSettings()
    intake: IntakeSettings = IntakeSettings()

    def role(self, role: Role) -> dict[str, Any]:
        """Every setting of one role, inherited ones too, by name."""
        own = msgspec.structs.asdict(self.roles.of(role))
        merged = msgspec.structs.asdict(self.models) | {k: v for k, v in own.items() if v is not UNSET and v != ""}
        return merged | {"max_tokens": merged["max_tokens"] or MAX_TOKENS[role]}

    def model(self, role: Role) -> ModelSettings:
        """What `role`'s model is asked with.

        Raises:
            BadInput: no model is configured for it.
        """
        given = self.role(role)
        if not given["model"]:
            raise BadInput(f"no model for the {role}: give --model NAME, or set models.model in chime.toml")
        return ModelSettings(**{name: given[name] for name in ModelSettings.__struct_fields__})

    def endpoint(self, role: Role) -> EndpointSettings:
        """Where `role`'s model is.

        Raises:
            BadInput: no endpoint is configured for it.
        """
        given = self.role(role)
        if not given["base_url"] and self.recording.replay and not self.recording.loose:
            given["base_url"] = NOWHERE
        if not given["base_url"]:
            raise BadInput(
                f"no endpoint for the {role}: give --base-url URL, or set models.base_url in chime.toml "
                "(`chime model rehearse` serves one without a network)"
            )
        return EndpointSettings(**{name: given[name] for name in EndpointSettings.__struct_fields__})

    def lag(self) -> int | Literal["latest"]:
        """L, or `latest`."""
        return 2 * self.run.concurrency if self.run.lag == "auto" else self.run.lag


def check(configuration: Configuration) -> None:
    """Whether every number is in its range and every name has its form.

    Raises:
        BadInput: one is not; the message begins with its dotted name.
    """
    run, episode, policy = configuration.run, configuration.episode, configuration.policy
    embedder = configuration.embedder
    for name, fits, range_ in (
        ("run.concurrency", 1 <= run.concurrency <= 10_000, "1 to 10000"),
        ("run.lag", isinstance(run.lag, str) or 1 <= run.lag <= _MANY, f"1 to {_MANY}, auto or latest"),
        ("run.epochs", 1 <= run.epochs <= _MANY, f"1 to {_MANY}"),
        ("run.ordering_seed", abs(run.ordering_seed) <= _SEED, "a 63-bit integer"),
        ("run.slots", 1 <= run.slots <= 10_000, "1 to 10000"),
        ("run.warn_degraded", 0 <= run.warn_degraded <= 1, "0 to 1"),
        ("policy.top_k", policy.parameters.top_k <= policy.parameters.top_n,
         f"at most policy.top_n, which is {policy.parameters.top_n}"),
        ("episode.max_steps", 1 <= episode.max_steps <= _MANY, f"1 to {_MANY}"),
        ("episode.max_errors", 1 <= episode.max_errors <= _MANY, f"1 to {_MANY}"),
        ("episode.budget_s", 0 < episode.budget_s < inf, "a number above 0"),
        ("episode.seed", abs(episode.seed) <= _SEED, "a 63-bit integer"),
        ("episode.trajectory_chars", 1000 <= episode.trajectory_chars <= _MANY, f"1000 to {_MANY}"),
        ("episode.environment_attempts", 1 <= episode.environment_attempts <= _MANY, f"1 to {_MANY}"),
        ("embedder.dimension", 0 <= embedder.dimension <= _MANY, f"0 (all) to {_MANY}"),
        ("embedder.max_length", 0 <= embedder.max_length <= _MANY, f"0 (the model's own) to {_MANY}"),
        ("embedder.max_chars", 0 <= embedder.max_chars <= _MANY, f"0 (all) to {_MANY}"),
        ("embedder.batch_size", 1 <= embedder.batch_size <= 10_000, "1 to 10000"),
        ("intake.memory", 0 < configuration.intake.memory <= 1, "above 0, at most 1"),
        ("intake.disk_mib", 0 <= configuration.intake.disk_mib <= _MANY, f"0 to {_MANY}"),
        ("intake.queue", 1 <= configuration.intake.queue <= _MANY, f"1 to {_MANY}"),
        ("budget.max_cost", 0 <= configuration.budget.max_cost < inf, "a number, 0 (no bound) or more"),
        ("budget.max_tokens", 0 <= configuration.budget.max_tokens <= 10**15, "0 (no bound) to 10^15"),
        ("budget.max_calls", 0 <= configuration.budget.max_calls <= 10**15, "0 (no bound) to 10^15"),
        ("home", bool(configuration.home.strip()), "a folder"),
        ("redis.prefix", re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", configuration.redis.prefix) is not None,
         "1 to 64 of A-Z, a-z, 0-9 and _ . : -"),
    ):  # fmt: skip
        if not fits:
            raise BadInput(f"{name}: is out of its range; it must be {range_}")
    if policy.name not in policies.names():
        raise BadInput(f"policy.name: no policy {policy.name!r}; there is {', '.join(policies.names())}")
    for name in ("record", "replay"):
        folder = getattr(configuration.recording, name)
        if folder and not PurePath(folder).is_absolute():
            raise BadInput(f"recording.{name}: must be a path from /, as every worker of the run uses it")
    _check_address(configuration.redis.url)
    _check_weaviate(configuration.weaviate)
    for section in ("models", "embedder", *(f"roles.{role}" for role in ROLES)):
        _check_model(section, _section(configuration, section))
    for model, price in configuration.prices.items():
        for part, value in msgspec.structs.asdict(price).items():
            if value is not UNSET and not 0 <= value < inf:
                raise BadInput(f"prices.{model}.{part}: is out of its range; it must be a number, 0 or more")


def _check_address(url: str) -> None:
    # The address may hold a password, so it is not repeated.
    if not url:
        return
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise BadInput(f"redis.url: is no address: {str(error)[:1].lower()}{str(error)[1:]}") from error
    if scheme not in ("redis", "rediss", "unix"):
        raise BadInput("redis.url: must begin with redis://, rediss:// or unix://")


def _check_weaviate(given: WeaviateSettings) -> None:
    # An address may hold a password by mistake, so it is not repeated.
    _check_variable("weaviate", given.api_key_env)
    if given.grpc_url and not given.url:
        raise BadInput("weaviate.grpc_url: belongs to a server of yours; name that one with weaviate.url")
    places: list[tuple[str | None, int | None]] = []
    for name, url, schemes, form in (
        ("url", given.url, ("http", "https"), "http://host:port or https://host:port"),
        ("grpc_url", given.grpc_url, ("https", ""), "host:port or https://host:port"),
    ):
        if not url:
            continue
        try:
            parts = urlsplit(url if "://" in url else f"//{url}")
            # Reading the port checks it.
            fits = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError as error:
            raise BadInput(f"weaviate.{name}: is no address; it must be {form}") from error
        if not fits or parts.path.strip("/") or parts.query or parts.fragment or (not parts.scheme and not parts.port):
            raise BadInput(f"weaviate.{name}: is no address; it must be {form}")
        if "@" in parts.netloc:
            raise BadInput(f"weaviate.{name}: holds a user or password; the key stands in {given.api_key_env}")
        places.append((parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)))
    if len(places) > len(set(places)):
        raise BadInput("weaviate.grpc_url: is the address of weaviate.url; gRPC has a port of its own there")


def _section(configuration: Configuration, name: str) -> dict[str, Any]:
    roles = {f"roles.{role}": configuration.roles.of(role) for role in ROLES}
    struct = {"models": configuration.models, "embedder": configuration.embedder, **roles}[name]
    return {key: value for key, value in msgspec.structs.asdict(struct).items() if value is not UNSET}


def _check_model(section: str, given: Mapping[str, Any]) -> None:
    for name, fits, range_ in (
        ("temperature", 0 <= given.get("temperature", 0) <= 2, "0 to 2"),
        ("max_tokens", 0 <= given.get("max_tokens", 0) <= _MANY, f"0 (the role's own cap) to {_MANY}"),
        ("timeout_s", 0 < given.get("timeout_s", 1) < inf, "a number above 0"),
        ("connect_timeout_s", 0 < given.get("connect_timeout_s", 1) < inf, "a number above 0"),
        ("first_byte_timeout_s", 0 <= given.get("first_byte_timeout_s", 0) < inf, "a number, 0 (as timeout_s) or more"),
        ("retry_budget", 0 <= given.get("retry_budget", 0) <= _MANY, f"0 (no bound) to {_MANY}"),
        ("context_tokens", 0 <= given.get("context_tokens", 0) <= _MANY, f"0 (what the endpoint says) to {_MANY}"),
        ("requests_per_minute", 0 <= given.get("requests_per_minute", 0) <= _MANY, f"0 (no bound) to {_MANY}"),
        ("tokens_per_minute", 0 <= given.get("tokens_per_minute", 0) <= 10**12, "0 (no bound) to 10^12"),
        ("max_concurrent", 0 <= given.get("max_concurrent", 0) <= _MANY, f"0 (no bound) to {_MANY}"),
        ("retries", 0 <= given.get("retries", 0) <= _MANY, f"0 to {_MANY}"),
        ("retry_base_s", 0 <= given.get("retry_base_s", 0) < inf, "a number, 0 or more"),
        ("deadline_s", 0 < given.get("deadline_s", 1) < inf, "a number above 0"),
        ("stop_after", given.get("stop_after", 1) >= 1, "1 or more"),
        ("base_url", re.fullmatch(r"(https?://\S+)?", given.get("base_url", "")) is not None, "http:// or https://"),
    ):
        if not fits:
            raise BadInput(f"{section}.{name}: is out of its range; it must be {range_}")
    _check_variable(section, given.get("api_key_env", ""))


def _check_variable(section: str, variable: str) -> None:
    if variable and (not _VARIABLE.fullmatch(variable) or variable.startswith(("sk-", "sk_"))):
        # The value may be a key by mistake, so it is not repeated.
        raise BadInput(
            f"{section}.api_key_env: must be the name of an environment variable that holds the key, not a key"
        )
