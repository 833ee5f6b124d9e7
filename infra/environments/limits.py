"""How patiently an environment is asked, and how many of its hosts there are."""

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time limits of the operations, seconds, and the size of the pool. They end an operation from outside."""

    #: from the start of a host to its first answer
    boot_s: float = 180.0
    #: `tasks` and `reset`
    reset_s: float = 120.0
    #: one step; a simulated user thinks inside it
    step_s: float = 600.0
    evaluate_s: float = 600.0
    #: what a host gets to end by itself
    close_s: float = 3.0
    #: hosts at a time, at least 1; one more episode waits for a free one
    max_hosts: int = 4
    #: episodes after which a host is replaced; benchmarks leak
    episodes_per_host: int = 200


def of_operation(limits: Limits, op: str) -> float:
    """The time limit of `op`, seconds."""
    match op:
        case "describe":
            return limits.boot_s
        case "step":
            return limits.step_s
        case "evaluate":
            return limits.evaluate_s
        case "close":
            return limits.close_s
        case _:
            return limits.reset_s
