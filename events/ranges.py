"""Plain ranges of what events record: the decoder refuses a number, text or list outside its range."""

from typing import Annotated, Literal

from msgspec import Meta

from events.ids import BankVersion

#: how many of something, from 0
Count = Annotated[int, Meta(ge=0)]
#: a number that counts from 1
Ordinal = Annotated[int, Meta(ge=1)]
#: the bank after so many folds, from 0
FoldedVersion = Annotated[BankVersion, Meta(ge=0)]
#: L, from 1, or `latest`
Lag = Ordinal | Literal["latest"]
#: a share in units of 1e-4, [0, 10000]
ShareE4 = Annotated[int, Meta(ge=0, le=10_000)]
#: feedback on one use in units of 1e-4, [-10000, 10000]
FeedbackE4 = Annotated[int, Meta(ge=-10_000, le=10_000)]
#: a benchmark's own number in [0, 1]
Reward = Annotated[float, Meta(ge=0, le=1)]
#: hex SHA-256; the length too, since `$` lets a last newline pass
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", min_length=64, max_length=64)]
