"""Thresholds by embedder: similarities of two embedders are different scales, so a threshold belongs to one of them.

How each number was found stands in docs/embedders.md. A setting that is given anywhere wins over its profile.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: the parameters of a policy that are compared with similarities
THRESHOLDS = ("floor", "margin", "novelty", "theta_merge")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The thresholds of one embedder."""

    name: str
    #: threshold -> its decimal
    values: Mapping[str, str]


#: any embedder that nobody has measured has those of the paper too, without their being its own
PROFILES: Mapping[str, Profile] = {
    one.name: one
    for one in (
        # What runs without a model have always had.
        Profile(name="hash", values={"floor": "0.3", "margin": "0.03", "novelty": "0.1", "theta_merge": "0.88"}),
        Profile(name="minilm", values={"floor": "0.4", "margin": "0.03", "novelty": "0.1", "theta_merge": "0.85"}),
        # The paper's own embedder: its Table 7.
        Profile(name="qwen3", values={"floor": "0.3", "margin": "0.03", "novelty": "0.1", "theta_merge": "0.88"}),
    )
}

#: a model by any of its names (`Qwen/Qwen3-Embedding-0.6B`, a folder, what a server calls it) -> its profile
_MODELS = (
    (re.compile(r"qwen3[-_]?embedding", re.IGNORECASE), "qwen3"),
    (re.compile(r"all[-_]?minilm[-_]?l6", re.IGNORECASE), "minilm"),
)


def profile_of(name: str, model: str) -> Profile | None:
    """The profile of embedder `name` with `model` ("" where it has none to choose); None where nobody measured it."""
    if name in PROFILES:
        return PROFILES[name]
    return next((PROFILES[known] for pattern, known in _MODELS if pattern.search(model)), None)
