"""A run's bank embedded again for another embedder: a new run whose version 0 holds the same items in new vectors.

An item keeps id, texts, value, uses and sources, under an id that names its origin as in a fork. It holds one
experience vector, of its whole experience. Thresholds stay with the embedder that they belong to.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from events.bank import Banks
from events.errors import BadInput
from events.ids import RunId
from events.kinds import RunConfig, RunStarted, SeededItem
from events.policies import recorded
from events.seeding import seed_items
from infra import embedders
from infra.embedders import Around, Options
from infra.embedding_identity import differences, short
from runtime.ports import Embedder
from workers.invocation import Invocation
from workers.layers import Resolved
from workers.profiles import THRESHOLDS
from workers.resuming import FLAGS

#: texts between two reports of progress
_CHUNK = 64


class Threshold(Struct, frozen=True, kw_only=True):
    """One threshold of the new run."""

    name: str
    before: int | str
    now: int | str
    #: where it comes from, as in `config show --origin`; "" = it is the old run's, for nobody knows better
    origin: str


async def assert_embedder_kept(invocation: Invocation, run: RunId, header: RunStarted) -> None:
    """Whether a flag of this command asks for other vectors than the run's; a file may belong to other runs.

    Raises:
        BadInput: it does; names both.
        UnknownName, EmbedderUnavailable, RunStopped: what it asks for cannot be had.
    """
    origins, settings = invocation.resolved.origins, invocation.configuration.embedder
    if not any(key.startswith("embedder.") and origin.kind == "flag" for key, origin in origins.items()):
        return
    around = Around(environ=invocation.environment)
    async with embedders.opened(settings.name, settings.given(), around) as embedder:
        here = await embedder.identify()
    if different := differences(header.embedder, here):
        there, now = header.embedder.fingerprint, short(here.fingerprint)
        raise BadInput(
            f"the bank of run {run} is in the vectors of {there}, not of {now}: {'; '.join(different)}; "
            f"chime memory reembed {run} begins one in others"
        )


def thresholds(resolved: Resolved, there: Mapping[str, int | str]) -> list[Threshold]:
    """The thresholds of a run that embeds as the configuration says: given ones, its profile's, else those `there`."""
    rows: list[Threshold] = []
    for name in THRESHOLDS:
        origin, value = resolved.origins[f"policy.{name}"], resolved.values[f"policy.{name}"]
        known = origin.kind != "default"
        now = value if known and isinstance(value, int | str) else there[name]
        rows.append(Threshold(name=name, before=there[name], now=now, origin=origin.text if known else ""))
    return rows


def reembedded_config(
    config: RunConfig, name: str, options: Options, changed: Sequence[Threshold], flags: Sequence[str]
) -> RunConfig:
    """`config` with another embedder and its thresholds.

    Args:
        config: of the old run.
        name: of the new embedder.
        options: of the new embedder.
        changed: as `thresholds`.
        flags: as `given_by_flags`, of the command that embeds.

    Raises:
        UnknownName, BadInput: the policy or its parameters are none of this code's.
    """
    parameters = {**config.policy.parameters, **{one.name: one.now for one in changed}}
    policy = recorded(replace(config.policy, parameters=parameters))
    operational = _with(config.operational, {"embedder": options.operational})
    if FLAGS in operational:
        decided = {f"policy.{one.name}" for one in changed if one.origin}
        operational[FLAGS] = _stood_over(operational[FLAGS], flags, decided)
    return replace(
        config,
        policy=policy.config(),
        agent=_with(config.agent, {"embedder": name, "embedder_options": options.semantic}),
        operational=operational,
    )


def _stood_over(before: Sequence[str], now: Sequence[str], decided: Collection[str]) -> list[str]:
    """What flags gave: `now` of the embedder and the thresholds that are `decided` with it, `before` of all else."""

    def is_anew(key: str) -> bool:
        return key.startswith("embedder.") or key in decided

    return sorted({key for key in before if not is_anew(key)} | {key for key in now if is_anew(key)})


def _with(section: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """`section` with these parts; an empty one is left out."""
    kept = {key: value for key, value in section.items() if key not in parts}
    return kept | {key: value for key, value in parts.items() if value}


async def reembedded_items(
    banks: Banks, origin: RunId, embedder: Embedder, progress: Callable[[int, int], None]
) -> list[SeededItem]:
    """Every item of `banks` as a seed whose vectors `embedder` made, in id order.

    Args:
        banks: of the run `origin`.
        origin: goes before ids that have no origin yet.
        embedder: ready.
        progress: is told how many texts of how many are embedded.

    Raises:
        EmbeddingFailed, ModelUnavailable, RunStopped: as `Embedder.embed`.
    """
    items = seed_items(banks, origin)
    texts = [text for item in items for text in (item.scenario, item.experience)]
    vectors = []
    for start in range(0, len(texts), _CHUNK):
        vectors += await embedder.embed(texts[start : start + _CHUNK], "document")
        progress(len(vectors), len(texts))
    pairs = zip(vectors[::2], vectors[1::2], strict=True)
    return [
        replace(item, scenario_vector=scenario, experience_vectors=[experience])
        for item, (scenario, experience) in zip(items, pairs, strict=True)
    ]
