"""What a fold did to the banks, as `folded` records it: five operations, told apart by `op`."""

from typing import Literal

from msgspec import Struct

from events.ids import MemoryId, Stage
from events.ranges import Count, FeedbackE4, Ordinal

MergeHow = Literal["recorded", "rewritten", "appended"]
DiscardReason = Literal["missing", "confidence", "unacceptable", "not_novel"]


class ValueUpdated(Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="value"):
    """Equation (9) for one retrieved item."""

    bank: Stage
    id: MemoryId
    #: delta_{i,t} of equation (8)
    delta_e4: FeedbackE4
    #: sum of feedback after this operation, units of 1e-4
    delta_sum: int
    #: reuse count after this operation
    n: Ordinal


class Ignored(Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="noop"):
    """Feedback for an item that is no longer in the bank."""

    bank: Stage
    id: MemoryId
    reason: Literal["absent"] = "absent"


class Pruned(Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="prune"):
    """n >= n_min and v < theta_prune after this episode's feedback."""

    bank: Stage
    id: MemoryId


class Inserted(Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="insert"):
    """A new item with v = 0, n = 0: the second case of equation (10)."""

    bank: Stage
    id: MemoryId
    #: t of the episode it comes from
    source: Count


class Merged(Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="merge"):
    """The new experience joins its most similar item: the first case of equation (10)."""

    bank: Stage
    #: the target m_{i*}
    id: MemoryId
    #: c_new . c_target in units of 2^-48
    dot: int
    how: MergeHow
    source: Count


class Discarded(Struct, frozen=True, kw_only=True, gc=False, tag_field="op", tag="discard"):
    """The third case of equation (10); the first reason that applies."""

    bank: Stage
    reason: DiscardReason


Operation = ValueUpdated | Ignored | Pruned | Inserted | Merged | Discarded
