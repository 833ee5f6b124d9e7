"""A sentence-transformers model as its files describe it, without torch: what the command line needs to know of it.

Imported by name where an embedder needs it; part of the extra `st`.
"""

from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from msgspec import Struct

from events.errors import BadInput
from runtime.errors import EmbedderUnavailable

#: what a model is made of; weights in other formats, pictures and examples are not fetched
_NEEDED = ["*.json", "*.txt", "*.model", "*.safetensors", "*/config.json", "*/*.safetensors"]
#: whose version may change what a model makes of a text
_LIBRARIES = ("sentence-transformers", "transformers", "tokenizers", "torch")


class Files(Struct, frozen=True, kw_only=True):
    """A model on this machine."""

    folder: Path
    #: the commit; of a folder, the start of the SHA-256 of what is in it
    revision: str


def located(model: str, revision: str) -> Files:
    """The files of `model`: a folder, or an id at the hub, fetched once into its cache.

    Raises:
        BadInput: no such model or revision, or a folder that holds none.
        EmbedderUnavailable: not here yet, and the hub does not answer.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if revision:
            raise BadInput(f"embedder.revision: {model} is a folder; a revision is of a model at the hub")
        return Files(folder=folder, revision=f"sha256:{_content_sha256(folder)[:16]}")
    if model.startswith((".", "/", "~")):
        raise BadInput(f"embedder.model: there is no folder {model}")
    try:
        found = Path(snapshot_download(model, revision=revision or None, allow_patterns=_NEEDED))
    except LocalEntryNotFoundError as error:
        told = f"model {model} is not on this machine and cannot be fetched: {_line(error)}"
        raise EmbedderUnavailable("not_fetched", told) from error
    except (HFValidationError, HfHubHTTPError) as error:
        raise BadInput(f"embedder.model: {model}{' at ' if revision else ''}{revision}: {_line(error)}") from error
    except OSError as error:
        raise EmbedderUnavailable("not_fetched", f"model {model} cannot be fetched: {_line(error)}") from error
    # The cache names a snapshot's folder by its commit.
    return Files(folder=found, revision=found.name)


def dimension_of(folder: Path) -> int:
    """How many components its vectors have.

    Raises:
        BadInput: the files do not say.
    """
    paths = [one["path"] for one in _read(folder / "modules.json", list) if isinstance(one, dict)]
    for path in [*reversed(paths), ""]:
        config = _read(folder / path / "config.json", dict)
        for name in ("out_features", "embedding_dimension", "word_embedding_dimension", "hidden_size"):
            if isinstance(value := config.get(name), int) and value > 0:
                return value
    raise BadInput(f"embedder.model: {folder} holds no sentence-transformers model: no file says its dimension")


def pooling_of(folder: Path) -> str:
    """How token vectors become one: `mean`, `cls`, `lasttoken`, ...; `mean` where the files do not say."""
    for module in _read(folder / "modules.json", list):
        if str(module.get("type", "")).endswith("Pooling"):
            config = _read(folder / module["path"] / "config.json", dict)
            if isinstance(mode := config.get("pooling_mode"), str):
                return mode
            flags = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
            short = (
                name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for name in flags
            )
            return "+".join(short) or "mean"
    return "mean"


def max_length_of(folder: Path) -> int:
    """The longest text the model takes by its own files, tokens; 0 where they do not say."""
    named = [_read(folder / "sentence_bert_config.json", dict).get("max_seq_length")]
    named.append(_read(folder / "config.json", dict).get("max_position_embeddings"))
    named.append(_read(folder / "tokenizer_config.json", dict).get("model_max_length"))
    # A tokenizer without a limit says 10^30.
    lengths = [value for value in named if isinstance(value, int) and 0 < value < 10**9]
    return lengths[0] if lengths else 0


def libraries() -> dict[str, str]:
    """The installed versions of what embeds."""
    return {name: version(name) for name in _LIBRARIES}


def _content_sha256(folder: Path) -> str:
    digest = sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and _is_needed(path)):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def _is_needed(path: Path) -> bool:
    return path.suffix in (".json", ".txt", ".model", ".safetensors")


def _read(path: Path, kind: type[Any]) -> Any:
    """The JSON in `path`; empty where it is not there.

    Raises:
        BadInput: it is not readable, or something else than `kind`.
    """
    try:
        found = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError) as error:
        raise BadInput(f"embedder.model: {path}: {error}") from error
    if not isinstance(found, kind):
        raise BadInput(f"embedder.model: {path} holds no {kind.__name__}")
    return found


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
