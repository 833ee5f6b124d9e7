"""A run's header as a chime.toml that starts the same run again."""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec

from events.kinds import RunStarted
from infra.escapes import json_escaped
from runtime.prompting import load_prompts
from runtime.protocol import Protocol
from runtime.settings import BudgetSettings, EpisodeSettings
from workers.bank_store import named_store
from workers.budget import budget_in
from workers.configuration import ROLES, EmbedderSettings, ModelDefaults
from workers.layers import defaults
from workers.operational import operational_in
from workers.template import toml_value
from workers.terminal import printable


def run_file(header: RunStarted) -> str:
    """The settings that the header records; what belongs to the command line stands above as comments.

    Raises:
        BadInput: the header was made by hand, or by other code.
    """
    config, operational = header.config, operational_in((), header)
    sections: dict[str, dict[str, object]] = {
        "policy": {"name": config.policy.name, **config.policy.parameters},
        "run": {
            "concurrency": config.concurrency,
            "lag": config.lag,
            "epochs": config.epochs,
            **({"ordering_seed": config.ordering["seed"]} if isinstance(config.ordering.get("seed"), int) else {}),
        },
        "episode": _known(EpisodeSettings.__struct_fields__, config.limits),
    }
    if isinstance(config.agent.get("embedder"), str):
        options = {**config.agent.get("embedder_options", {}), **operational.get("embedder", {})}
        given = _known(EmbedderSettings.__struct_fields__, options)
        sections["embedder"] = {"name": config.agent.get("embedder", ""), **given}
    sections["bank"] = {"store": named_store(operational)}
    if config.protocol.get("name") in get_args(Protocol):
        sections["run"]["protocol"] = config.protocol["name"]
    endpoints: Mapping[str, Any] = operational.get("endpoints", {})
    roles = {
        role: _known(ModelDefaults.__struct_fields__, {**config.models.get(role, {}), **endpoints.get(role, {})})
        for role in ROLES
    }
    first = roles[ROLES[0]]
    common = {name: value for name, value in first.items() if all(roles[role].get(name) == value for role in ROLES)}
    sections["models"] = common
    for role in ROLES:
        sections[f"roles.{role}"] = {name: value for name, value in roles[role].items() if name not in common}
    budget = budget_in(operational)
    if not budget.is_free:
        sections["budget"] = {name: getattr(budget, name) for name in BudgetSettings.__struct_fields__}
    for model, price in budget.prices.items():
        sections[f"prices.{json.dumps(model, ensure_ascii=False)}"] = msgspec.to_builtins(price)
    return "\n".join([_head(header), *_sections(sections)])


def _head(header: RunStarted) -> str:
    config = header.config
    lines = [
        f"# Configuration of a run made with chime {header.code}.",
        f"# environment: {config.environment.get('name', '')} {config.environment.get('version', '')}".rstrip(),
        f"# tasks: {header.tasks_total}; frozen: {str(config.frozen).lower()}; embedder: {header.embedder.fingerprint}",
    ]
    if header.seed_bank is not None:
        lines.append(f"# seed bank: {header.seed_bank.run}@{header.seed_bank.version}")
    lines.append(f"# begin another one beside this file: {shlex.join(_command(header))}")
    lines.append("# not in that command: tasks that were named one by one (--task)")
    ours = load_prompts().sha256s()
    if others := [name for name, sha256 in sorted(header.prompts.items()) if sha256 != ours.get(name)]:
        lines.append(f"# not in that command: prompts that are not this version's own (--prompt): {', '.join(others)}")
    # A log may come from anywhere: a comment stays on its line.
    return "\n".join(map(printable, lines)) + "\n"


def _command(header: RunStarted) -> Iterator[str]:
    """The command whose arguments say what is no setting, but for --task and --prompt: a header does not say them."""
    config = header.config
    yield from ("chime", "run", "start", str(config.environment.get("name", "")))
    for domain in config.environment.get("domains", []):
        yield from ("--domain", str(domain))
    if (limit := config.protocol.get("limit")) is not None:
        yield from ("--limit", str(limit))
    if config.protocol.get("part") == "eval" and config.protocol.get("name") != "all":
        yield from ("--part", "eval")
    if config.ordering.get("by") == "canonical":
        yield from ("--ordering", "canonical")
    if header.seed_bank is not None:
        yield from ("--seed-bank", f"{header.seed_bank.run}@{header.seed_bank.version}")
    if config.frozen:
        yield "--frozen"
    for name, value in _leaves(config.environment.get("options", {})):
        yield from ("--env-option", f"{name}={json_escaped(json.dumps(value, ensure_ascii=False))}")


def _leaves(options: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Each option by its dotted name; what holds a name that cannot stand in one is a single JSON value."""
    for name, value in options.items():
        if isinstance(value, dict) and value and all(map(_is_part, value)):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _is_part(name: str) -> bool:
    """Whether `name` can stand in a dotted one, on a comment's line."""
    return bool(name) and name == printable(name) and "." not in name and "=" not in name


def _known(names: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, object]:
    return {name: given[name] for name in names if name in given and isinstance(given[name], str | int | float)}


def _plain(value: object) -> str:
    """`value` as TOML writes it; a text stays one, whatever it looks like: a commit may be all digits."""
    if not isinstance(value, str):
        return toml_value(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _sections(sections: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    known = {key for key in defaults() if key.startswith("policy.")}
    for section, values in sections.items():
        lines = [
            f"{name} = {toml_value(value) if section == 'policy' else _plain(value)}\n"
            for name, value in values.items()
            if section != "policy" or f"policy.{name}" in known
        ]
        if lines:
            yield f"[{section}]\n{''.join(lines)}"
