"""What steers an episode and its models, as data: recorded at the head of the log, read by whoever works on the run.

Two kinds: what changes what a model sees or is judged by (`ModelSettings`, `EpisodeSettings`) is fixed for a run; where
an endpoint is and how patiently it is asked (`EndpointSettings`) may change on resume.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from runtime.ports import Role

Thinking = Literal["none", "dashscope", "vllm", "deepseek", "openai"]
#: `text`: described in the system text, and calls read from the answer's text
Tools = Literal["native", "text"]
#: `fixed`: the given rates and no more; `adaptive`: more and more at once until the endpoint refuses, then half
Pacing = Literal["fixed", "adaptive"]


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one role's model is asked with."""

    model: str
    #: 0 = greedy (Table 7)
    temperature: float = 0.0
    #: cap of one answer, tokens
    max_tokens: int = 1024
    #: how this endpoint is told not to think
    thinking: Thinking = "none"
    #: how tools are offered; some servers drop native ones without a word (`chime model probe`)
    tools: Tools = "native"


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a model server is, and how patiently it is asked."""

    #: ends in /v1
    base_url: str
    #: name of the environment variable that holds the key; "" = no key
    api_key_env: str = "OPENAI_API_KEY"
    #: one try, seconds
    timeout_s: float = 600.0
    connect_timeout_s: float = 5.0
    #: further tries after the first
    retries: int = 5
    #: first wait between tries, seconds; doubles, with jitter
    retry_base_s: float = 1.0
    #: one call with all its tries and waits, seconds
    deadline_s: float = 3600.0
    #: calls in a row without an answer, or refused alike, that an endpoint is given up for: a run stops, to be resumed
    stop_after: int = 5


class EndpointSettings(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one role's model is, and how it is asked."""

    #: until the first byte of an answer, seconds; 0 = as `timeout_s`, for an endpoint that writes its answer whole
    first_byte_timeout_s: float = 0.0
    #: further tries that the calls of a process may have spent at once, beside one for every ten answers; 0 = no bound
    retry_budget: int = 100
    #: whether answers are read as they are written
    stream: bool = False
    #: what the model can hold, tokens of prompt and answer; 0 = what the endpoint says, as far as it does
    context_tokens: int = 0
    #: over all workers of a run; 0 = no bound
    requests_per_minute: int = 0
    #: prompt and answer, over all workers of a run; 0 = no bound
    tokens_per_minute: int = 0
    #: requests at once, over all workers of a run; 0 = no bound
    max_concurrent: int = 0
    pacing: Pacing = "fixed"


class BudgetSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run may spend on its models, all roles and workers together; 0 = no bound. May change on resume."""

    #: USD
    max_cost: float = 0.0
    #: prompt and answer
    max_tokens: int = 0
    max_calls: int = 0


class Price(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """USD per million tokens."""

    input: float
    output: float
    #: of a prompt's tokens that the endpoint had read before; unset = as `input`
    cached: float | UnsetType = UNSET

    def usd(self, prompt: int, completion: int, cached: int = 0) -> float:
        """What so many tokens cost; `cached` of the prompt's."""
        seen = min(cached, prompt)
        kept = self.input if self.cached is UNSET else self.cached
        return ((prompt - seen) * self.input + seen * kept + completion * self.output) / 1_000_000


class Budget(BudgetSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run may spend, as it is recorded: with the prices that its cost is counted by."""

    #: model -> price: those of the run's models that have one; all of them where `max_cost` is a bound
    prices: dict[str, Price] = {}

    @property
    def is_free(self) -> bool:
        """Whether nothing is bounded."""
        return not (self.max_cost or self.max_tokens or self.max_calls)


class EpisodeSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one episode (defaults: Table 7)."""

    max_steps: int = 100
    max_errors: int = 10
    #: the whole act job, seconds
    budget_s: float = 3600.0
    #: handed to every reset
    seed: int = 42
    #: how much of the trajectory the gate sees, characters: head and tail
    trajectory_chars: int = 24_000
    #: attempts of the environment from reset, after a crash or timeout
    environment_attempts: int = 3


#: caps of one answer by role, tokens
MAX_TOKENS: dict[Role, int] = {"planner": 1024, "executor": 1024, "gate": 1536}


class IntakeSettings(Struct, frozen=True, kw_only=True):
    """Where a coordinator stops beginning episodes, until there is room again."""

    #: share of the server's `maxmemory` that is used, in (0, 1]; without `maxmemory` memory never stops it
    memory: float = 0.9
    #: free space of the disk that holds the home, MiB; a foreign server's disk cannot be seen from here
    disk_mib: int = 256
    #: jobs that wait in one queue
    queue: int = 10_000
