"""What a run's header says of it in a row: the same words wherever runs are listed or shown."""

from typing import Any

from events.kinds import RunStarted


def heading(header: RunStarted) -> dict[str, Any]:
    """The fields that a run's row and its summary share, by name."""
    config, seed = header.config, header.seed_bank
    return {
        "labels": list(config.labels),
        "environment": str(config.environment.get("name", "")),
        "policy": config.policy.name,
        "frozen": config.frozen,
        "lag": config.lag,
        "concurrency": config.concurrency,
        "epochs": config.epochs,
        "embedder": header.embedder.fingerprint,
        "models": {role: str(model.get("model", "")) for role, model in config.models.items()},
        "seed_bank": {"run": seed.run, "version": seed.version, "digest": seed.digest} if seed else None,
        "episodes_total": header.tasks_total * config.epochs,
    }
