"""What may differ when a run goes on: addresses, time-outs, slots, limits, budget, recording and bank store."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from events.errors import BadInput
from events.kinds import RunConfig, RunStarted
from runtime.ports import Role
from runtime.settings import Budget, BudgetSettings, EndpointSettings, ModelSettings
from workers.bank_store import named_store
from workers.budget import asked_models, budget_in, budget_part
from workers.configuration import NOWHERE, ROLES, RecordingSettings
from workers.layers import EMBEDDER, Resolved
from workers.recording import recording_in

#: limits that end an episode sooner or later; the others change what a model sees
LIMITS = ("max_steps", "max_errors", "budget_s", "environment_attempts")

#: part of the operational ones: settings that flags gave when the run was started
FLAGS = "flags"

#: sections of settings that change what a run means
_SEMANTIC = frozenset({"policy", "run", "episode", "embedder", "models", "roles"})

#: a setting that somebody has given for this run, not a default
_GIVEN = ("flag", "environment", "file")

#: and one that a file, a variable or a flag gives by the name of a preset; it says what a run means
_MEANT = (*_GIVEN, "preset")


def resumed_operational(resolved: Resolved, there: Mapping[str, Any], config: RunConfig) -> dict[str, Any]:
    """The operational part of a run that goes on: as it is `there`, and what the configuration says differently.

    Args:
        resolved: the configuration.
        there: as the run was last resumed with.
        config: of its header.

    Raises:
        BadInput: its cost is bounded from now on, and a model has no price; or what is not recorded is to be asked
            for, and it has no endpoint.
    """
    configuration = resolved.configuration
    endpoints: dict[Role, dict[str, Any]] = {role: dict(there.get("endpoints", {}).get(role, {})) for role in ROLES}
    for role in ROLES:
        for name in EndpointSettings.__struct_fields__:
            if _given(resolved, f"roles.{role}.{name}", _GIVEN) or _given(resolved, f"models.{name}", _GIVEN):
                endpoints[role][name] = configuration.role(role)[name]
    now = {**there, "endpoints": endpoints}
    if "embedder" in there:
        for name in there["embedder"]:
            if _given(resolved, f"embedder.{name}", _GIVEN) and _of_its_embedder(resolved, f"embedder.{name}", config):
                now["embedder"] = {**now["embedder"], name: getattr(configuration.embedder, name)}
    if _given(resolved, "run.slots", _GIVEN):
        now["slots"] = configuration.run.slots
    if _given(resolved, "bank.store", _GIVEN) and configuration.bank.store != named_store(there):
        now["bank"] = {"store": configuration.bank.store}
    limits = {
        name: getattr(configuration.episode, name) for name in LIMITS if _given(resolved, f"episode.{name}", _GIVEN)
    }
    if limits:
        now["limits"] = {**there.get("limits", {}), **limits}
    now |= _budget(resolved, budget_in(there), asked_models(config.models)) | _recording(resolved, recording_in(there))
    _assert_answered(endpoints, recording_in(now))
    return now


def _assert_answered(endpoints: Mapping[Role, Mapping[str, Any]], recording: RecordingSettings) -> None:
    """Somebody can be asked for whatever is not played.

    Raises:
        BadInput: nobody can.
    """
    if recording.replay and not recording.loose:
        return
    if any(endpoint.get("base_url") == NOWHERE for endpoint in endpoints.values()):
        raise BadInput("the run was played from recorded answers and has no endpoint: give --base-url URL")


def _budget(resolved: Resolved, there: Budget, models: Mapping[Role, str]) -> dict[str, Any]:
    """Bounds that somebody has given for this run, the others as they are; prices as they are now, where there are."""
    configuration = resolved.configuration
    names = [name for name in BudgetSettings.__struct_fields__ if _given(resolved, f"budget.{name}", _GIVEN)]
    bounds = replace(there, **{name: getattr(configuration.budget, name) for name in names})
    now = budget_part(bounds, {**there.prices, **configuration.prices}, models)
    # What is no longer wanted must be said: a note adds to what stands in the header.
    return now or ({} if there == Budget() else {"budget": {}})


def _recording(resolved: Resolved, there: RecordingSettings) -> dict[str, Any]:
    """What somebody has given for this run, the rest as it is."""
    given = resolved.configuration.recording
    names = [name for name in RecordingSettings.__struct_fields__ if _given(resolved, f"recording.{name}", _GIVEN)]
    now = replace(there, **{name: getattr(given, name) for name in names})
    # What is no longer wanted must be said: a note adds to what stands in the header.
    return {"recording": msgspec.to_builtins(now)} if names else {}


def given_by_flags(resolved: Resolved) -> list[str]:
    """Semantic settings that the command line gives, over whatever file and variables say; the header keeps them."""
    return [key for key in resolved.origins if key.partition(".")[0] in _SEMANTIC and _given(resolved, key, ("flag",))]


def refused(resolved: Resolved, header: RunStarted) -> list[str]:
    """What this command's configuration would change about what the run means, as `setting: there -> wanted`.

    A flag that the run was started with stood over file and variables, so that these say nothing about it now.
    """
    told = [
        f"{key}: {there} -> {wanted}{_said_by(resolved, key)}"
        for key, there, wanted in _semantic(resolved, header)
        if there != wanted
    ]
    # A setting of [models] is that of every role.
    return list(dict.fromkeys(told))


def _semantic(resolved: Resolved, header: RunStarted) -> Iterator[tuple[str, object, object]]:
    """(setting, what the run has, what somebody has given now)."""
    config, configuration = header.config, resolved.configuration
    has: dict[str, object] = {
        "policy.name": config.policy.name,
        **{f"policy.{name}": value for name, value in config.policy.parameters.items()},
        "run.concurrency": config.concurrency,
        "run.epochs": config.epochs,
        "embedder.name": config.agent.get("embedder"),
        **{f"embedder.{name}": value for name, value in config.agent.get("embedder_options", {}).items()},
        **{f"episode.{name}": value for name, value in config.limits.items() if name not in LIMITS},
    }
    begun_with = config.operational.get(FLAGS)

    def asked(key: str, *others: str) -> bool:
        # Of a run that does not say what it was started with, only flags count.
        over = begun_with is None or not {key, *others}.isdisjoint(begun_with)
        return _given(resolved, key, ("flag",) if over else _MEANT)

    for key, there in has.items():
        if asked(key) and _of_its_embedder(resolved, key, config):
            yield key, there, resolved.values[key]
    if asked("run.lag", "run.concurrency"):
        lag = configuration.run.lag
        yield "run.lag", config.lag, 2 * config.concurrency if lag == "auto" else lag
    for role in ROLES:
        for name in ModelSettings.__struct_fields__:
            own, common = f"roles.{role}.{name}", f"models.{name}"
            # A role's own setting stands over that of all roles, even over a flag for these.
            for key in (own, common):
                if asked(key, own):
                    yield key, config.models.get(role, {}).get(name), configuration.role(role)[name]


def _of_its_embedder(resolved: Resolved, key: str, config: RunConfig) -> bool:
    """Whether `key` may be about the run: options that stand beside another embedder's name are that one's."""
    if not key.startswith("embedder.") or key == EMBEDDER:
        return True
    return resolved.configuration.embedder.name == config.agent.get("embedder") or _given(resolved, key, ("flag",))


def _said_by(resolved: Resolved, key: str) -> str:
    origin = resolved.origins[key]
    return "" if origin.kind == "flag" else f" ({origin.text})"


def _given(resolved: Resolved, key: str, kinds: tuple[str, ...]) -> bool:
    origin = resolved.origins.get(key)
    return origin is not None and origin.kind in kinds
