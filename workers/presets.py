"""Settings under one name, and what every setting means: the rows of `config show` and of a new chime.toml."""

from collections.abc import Mapping

#: name -> dotted setting -> value; a preset replaces defaults, so whatever is given elsewhere still counts
PRESETS: Mapping[str, Mapping[str, str | int | float]] = {
    # Table 7 of the paper
    "paper": {
        "models.temperature": 0,
        "models.max_tokens": 16_384,
        "models.timeout_s": 2400,
        "models.retries": 15,
        "models.retry_base_s": 50,
        "policy.name": "credit",
        "policy.lambda": 3,
        "policy.alpha": 1,
        "policy.beta": "0.2",
        "policy.top_n": 20,
        "policy.top_k": 3,
        "policy.floor": "0.3",
        "policy.margin": "0.03",
        "policy.theta_conf": "0.5",
        "policy.novelty": "0.1",
        "policy.theta_merge": "0.88",
        "policy.n_min": 3,
        "policy.theta_prune": "-0.1",
        "run.concurrency": 16,
        "run.protocol": "table1",
        "run.ordering_seed": 42,
        "episode.max_steps": 100,
        "episode.max_errors": 10,
        "episode.seed": 42,
        "episode.budget_s": 3600,
    }
}

#: section -> what stands above it in a new chime.toml
SECTIONS: Mapping[str, str] = {
    "": "Where things are kept.",
    "redis": "The log, queues and locks.",
    "log": "What processes print about themselves.",
    "models": "What every role is asked with. Any OpenAI-compatible endpoint will do.",
    "roles.planner": "What one role does differently; every key of [models] is allowed.",
    "roles.executor": "",
    "roles.gate": "",
    "policy": "How the banks learn: symbols and equations as in the CHIME paper.",
    "run": "What a new run is started with.",
    "episode": "The limits of one episode.",
    "embedder": "What texts are compared with; thresholds belong to an embedder and do not travel.",
    "bank": "Where workers recall from.",
    "intake": "Where a coordinator stops beginning episodes, until there is room again.",
}

#: dotted setting (roles as in `models`) -> meaning, the paper's symbol first
MEANINGS: Mapping[str, str] = {
    "home": "folder with the embedded server's data, blobs and environments",
    "redis.url": 'redis://, rediss:// or unix://; "" = a server of this home, started when needed',
    "redis.prefix": "what every key begins with",
    "log.format": "auto (console on a terminal, JSON otherwise), console, json",
    "log.level": "debug, info, warning, error",
    "models.model": "the model's name at the endpoint",
    "models.base_url": "ends in /v1",
    "models.api_key_env": "NAME of the variable that holds the key; the key itself never stands here",
    "models.temperature": "0 = greedy",
    "models.max_tokens": "cap of one answer, tokens; 0 = the role's own cap",
    "models.thinking": "how the endpoint is told not to think: none, dashscope, vllm, deepseek, openai",
    "models.timeout_s": "one try, seconds",
    "models.connect_timeout_s": "seconds",
    "models.retries": "further tries after the first",
    "models.retry_base_s": "first wait between tries, seconds; doubles, with jitter",
    "models.deadline_s": "one call with all its tries and waits, seconds",
    "models.stop_after": "calls in a row without an answer after which the run stops; it can be resumed",
    "policy.name": "credit = CHIME, outcome = no gate",
    "policy.lambda": "λ, smoothing constant of ṽ = v n / (n + λ), equation (5)",
    "policy.alpha": "α, value weight, equation (5); 0 = no credit rerank",
    "policy.beta": "β, bound of the value effect, equation (5)",
    "policy.top_n": "N, candidates a stage",
    "policy.top_k": "K, memories handed to a stage",
    "policy.floor": "similarity a candidate needs, inclusive",
    "policy.margin": "near-tie margin: how far apart two scores are still a tie",
    "policy.near_tie": "what near ties are made of: score, off, similarity",
    "policy.theta_conf": "θ_conf, confidence γ an experience needs, inclusive",
    "policy.novelty": "experience-addition threshold: 1 - cos to the nearest experience",
    "policy.theta_merge": "θ_merge, similarity above which experiences merge, equation (10)",
    "policy.n_min": "n_min, uses before an item can be pruned",
    "policy.theta_prune": "θ_prune, value below which an item is pruned",
    "policy.bullets": "bullets an item may hold beside its base text",
    "policy.lint_min": "shortest experience, code points",
    "policy.lint_max": "longest experience, code points",
    "policy.merge_text": "append (a bullet), rewrite (proposed by the gate's model)",
    "policy.addition": "what makes an experience worth adding: novelty, usefulness",
    "policy.misleading": "whether a misleading memory is penalised in any stage or in attributed ones",
    "policy.neutral": "whether feedback 0 is a use under label none: count, skip_none",
    "policy.conf_values": "whether γ < θ_conf makes every feedback 0: off, on",
    "run.concurrency": "episodes in flight",
    "run.lag": "L: episode t reads bank version max(0, t+1-L); auto = 2 x concurrency, 1 = the paper's formula, latest",
    "run.epochs": "passes over the task list",
    "run.ordering_seed": "seed of the order of tasks",
    "run.protocol": "how tasks are split: all (one stream), table1, text (the paper's two readings)",
    "run.slots": "episodes that one worker process plays at once",
    "episode.max_steps": "steps of the executor",
    "episode.max_errors": "failed steps before it is stopped",
    "episode.budget_s": "the whole act job, seconds",
    "episode.seed": "handed to every reset of the environment",
    "episode.trajectory_chars": "how much of the trajectory the gate sees, characters: head and tail",
    "episode.environment_attempts": "attempts from reset, after the environment crashed",
    "embedder.name": "hash (lexical, no download), sentence-transformers, openai",
    "bank.store": "replica (exact, in each process)",
    "intake.memory": "share of the server's maxmemory in use at which no new episode is begun",
    "intake.disk_mib": "free space of the home's disk, MiB, below which no new episode is begun",
    "intake.queue": "jobs waiting in one queue at which no new episode is begun",
}


def meaning(key: str) -> str:
    """What a setting means; that of `[models]` for a role's."""
    return MEANINGS.get(f"models.{key.rsplit('.', 1)[1]}" if key.startswith("roles.") else key, "")
