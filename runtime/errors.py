"""What can go wrong in an episode, by condition (roots: `events.errors`).

Mismatch
└── MissingBlob             a body that the log names is not in the blob store, or is damaged
Unreachable
├── ModelUnavailable        no usable answer from the endpoint within the retries
├── EmbedderUnavailable     the embedder's server or model cannot be reached: a later try may fare better
├── StoreAway               the log's server, or where bodies are kept, does not answer or is full: worth waiting for
├── RunGone                 there is no log any more of a run that is played: not worth waiting for
├── EnvironmentUnavailable  the benchmark's environment is not installed or its host does not start
└── RunStopped              nothing on this endpoint can work: no connection, key, quota, unknown model, call after call
BadInput
└── NotServed               a run that this process cannot work on: other code, benchmark or embedder
BudgetSpent
└── RunSpent                a bound of the run's budget is reached: no further call is made
ChimeError
├── RunEnded                the log ends with `run_finished`: nothing is written after it
├── ModelRefused            the endpoint will not answer this request
├── UnreadableAnswer        an answer that a stage cannot use; says why, for the repair turn
├── EmbeddingFailed         an embedder's answer that is not one unit vector per text
├── EnvironmentCrashed      the host ended; exit code and the tail of its stderr
├── EnvironmentTimeout      the host did not answer in time and was killed
└── EnvironmentFailed       the host answered with an error; it lives on
"""

from events.errors import BadInput, BudgetSpent, ChimeError, Mismatch, Unreachable
from runtime.ports import TokenUsage


class MissingBlob(Mismatch):
    """A body that the log names is not in the blob store, or is damaged."""

    def __init__(self, run: str, sha256: str, reason: str) -> None:
        self.run, self.sha256, self.reason = run, sha256, reason
        super().__init__(f"blob {sha256} of run {run}: {reason}")


class NotServed(BadInput):
    """A run that this process cannot work on: other code, benchmark or embedder. Its jobs are for another worker."""


class RunGone(Unreachable):
    """There is no log of `run` any more, which was there when it was taken up: waiting does not bring it back."""

    def __init__(self, run: str) -> None:
        self.run = run
        back = "chime log import brings an export of it back"
        super().__init__(f"run {run} is gone: it was deleted, or its server has lost the whole log; {back}")


class StoreAway(Unreachable):
    """The log's server, or where bodies are kept, does not answer or is full: worth waiting for."""


class ModelUnavailable(Unreachable):
    """No usable answer from the endpoint within the retries.

    `kind` is the error class, a short word; `status` the HTTP status of the last try, where there was one; `usage` what
    its tries came to, where the endpoint has said so.
    """

    usage: TokenUsage | None = None

    def __init__(self, kind: str, reason: str, status: int | None = None) -> None:
        self.kind, self.reason, self.status = kind, reason, status
        super().__init__(f"model: {reason}")


class EmbedderUnavailable(Unreachable):
    """The embedder's server gives no usable answer within the retries, or its model cannot be fetched.

    `kind` and `status` as in `ModelUnavailable`.
    """

    def __init__(self, kind: str, reason: str, status: int | None = None) -> None:
        self.kind, self.reason, self.status = kind, reason, status
        super().__init__(f"embedder: {reason}")


class RunStopped(Unreachable):
    """Nothing on this endpoint can work: the run pauses and can be resumed.

    `kind` is `unreachable`, `endpoint_down` (one call after the other gets no answer), `endpoint_refuses` (one after
    the other is refused alike), `key`, `quota`, `model_not_found`, `not_found` or `redirect`; `status` as in
    `ModelUnavailable`.
    """

    usage: TokenUsage | None = None

    def __init__(self, kind: str, reason: str, status: int | None = None) -> None:
        self.kind, self.reason, self.status = kind, reason, status
        super().__init__(reason)


class RunSpent(BudgetSpent):
    """A bound of the run's budget is reached: no further call is made until it is raised.

    `what` is `calls`, `tokens` or `cost` (USD); `kind` what a stop over it is noted as.
    """

    kind = "budget"

    def __init__(self, what: str, spent: float, bound: float) -> None:
        self.what, self.spent, self.bound = what, spent, bound
        told = f"${spent:.4f} of ${bound:g}" if what == "cost" else f"{spent:,.0f} of {bound:,.0f} {what}"
        super().__init__(f"the budget is spent: {told} (max_{what})")


class RunEnded(ChimeError):
    """The log of `run` ends with `run_finished`: nothing is written after it."""

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"run {run} is finished; nothing is written to its log any more")


class ModelRefused(ChimeError):
    """The endpoint will not answer this request; asking again unchanged is useless.

    `kind` is the error class, a short word (`context`, `content_filter` ...), or how an answer that a stage needs ended
    (`refusal`, `content_filter`, `length`, `empty`); `status` as in `ModelUnavailable`.
    """

    usage: TokenUsage | None = None

    def __init__(self, kind: str, reason: str, status: int | None = None) -> None:
        self.kind, self.reason, self.status = kind, reason, status
        super().__init__(f"model refused: {reason}")


class UnreadableAnswer(ChimeError):
    """An answer that a stage cannot use. `kind` is a short word for counts, `reason` is shown to the model."""

    def __init__(self, kind: str, reason: str) -> None:
        self.kind, self.reason = kind, reason
        super().__init__(reason)


class EmbeddingFailed(ChimeError):
    """An embedder's answer that is not one unit vector per text."""


class EnvironmentUnavailable(Unreachable):
    """The benchmark's environment is not installed, or its host does not start."""


class EnvironmentCrashed(ChimeError):
    """The host ended by itself."""

    def __init__(self, exit_code: int | None, stderr_tail: str) -> None:
        self.exit_code, self.stderr_tail = exit_code, stderr_tail
        last = stderr_tail.strip().splitlines()[-1:] or [""]
        super().__init__(f"environment host ended with {exit_code}: {last[0]}")


class EnvironmentTimeout(ChimeError):
    """The host did not answer in time; its process group was killed."""

    def __init__(self, op: str, limit_s: float) -> None:
        self.op, self.limit_s = op, limit_s
        super().__init__(f"environment did not answer {op} within {limit_s:g} s")


class EnvironmentFailed(ChimeError):
    """The host answered with an error; it lives on. `kind` is the host's word."""

    def __init__(self, op: str, kind: str, message: str, *, retryable: bool = False) -> None:
        self.op, self.kind, self.message, self.retryable = op, kind, message, retryable
        super().__init__(f"environment {op}: {kind}: {message}")
