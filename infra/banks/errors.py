"""What can go wrong between a run's banks and the store that mirrors them.

Unreachable
└── BankAway            the store does not answer, refuses the key, is full or too old: the replica answers meanwhile
Mismatch
├── DoubtfulAnswer      an answer that cannot be right: a row that is missing, unknown or another one
│   └── AnswerTooLong   one that is longer than a message may be
├── UncleanWrite        a write without a clean answer: nobody knows what is there, the generation is lost
└── DeadGeneration      a newer generation has begun; nothing is published in this one any more
"""

from events.errors import Mismatch, Unreachable


class BankAway(Unreachable):
    """The store does not answer, refuses the key, is full or too old. `kind` is a short word for log lines."""

    def __init__(self, where: str, kind: str, reason: str) -> None:
        self.where, self.kind, self.reason = where, kind, reason
        super().__init__(f"Weaviate at {where}: {reason}")


class DoubtfulAnswer(Mismatch):
    """An answer of the bank `bank` that cannot be right."""

    def __init__(self, bank: str, reason: str) -> None:
        self.bank, self.reason = bank, reason
        super().__init__(f"bank {bank}: {reason}")


class AnswerTooLong(DoubtfulAnswer):
    """An answer longer than one message may be: whoever asks for fewer rows gets it."""


class UncleanWrite(Mismatch):
    """A write into the bank `bank` without a clean answer: the next generation is built beside it."""

    def __init__(self, bank: str, reason: str) -> None:
        self.bank, self.reason = bank, reason
        super().__init__(f"bank {bank}: a write without a clean answer: {reason}")


class DeadGeneration(Mismatch):
    """The bank `bank` is not its run's newest generation: whoever writes there has been replaced."""

    def __init__(self, bank: str) -> None:
        self.bank = bank
        super().__init__(f"bank {bank}: a newer generation has begun")
