"""The project's pages, read once: their text, their fences, the paths and links they name."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """One page of the project."""

    path: Path
    text: str

    def fences(self, language: str) -> list[str]:
        """The bodies of its code fences in `language`, in order."""
        return [body for name, body in _FENCE.findall(self.text) if name == language]

    def prose(self) -> str:
        """The text without code fences."""
        return _FENCE.sub("", self.text)

    def table(self, head: str) -> list[list[str]]:
        """The cells of the table whose first header cell is `head`, without its header."""
        lines = self.text.split("\n")
        starts = [i for i, line in enumerate(lines[1:], 1) if line.startswith("|---")]
        at = next(i - 1 for i in starts if lines[i - 1].startswith(f"| {head} |"))
        rows = []
        for line in lines[at + 2 :]:
            if not line.startswith("|"):
                break
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
        return rows


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def page() -> Callable[[str], Page]:
    """The page of that path."""

    def read(name: str) -> Page:
        path = ROOT / name
        return Page(path, path.read_text(encoding="utf-8"))

    return read


@pytest.fixture(scope="session")
def pages(page: Callable[[str], Page]) -> list[Page]:
    """Every page people read."""
    names = ["README.md", "CHANGELOG.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))]
    return [page(name) for name in names]
