"""docs/embedders.md against the code: embedders, extras, options and the thresholds of every profile."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra import embedders
from workers.configuration import EmbedderSettings
from workers.profiles import PROFILES, THRESHOLDS

NAME = "docs/embedders.md"


def test_every_embedder_has_a_row(page: Callable[[str], Any]) -> None:
    """The table of embedders names those there are."""
    rows = page(NAME).table("`embedder.name`")
    assert sorted(row[0].strip("`") for row in rows) == embedders.names()


def test_the_extras_that_it_names_exist(page: Callable[[str], Any], root: Path) -> None:
    """What a reader is told to install can be installed."""
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set(re.findall(r"chime-runtime\[(\w+)\]", page(NAME).text))
    assert named
    assert named <= set(extras)


def test_the_profiles_are_the_codes(page: Callable[[str], Any]) -> None:
    """Each profile's row holds the thresholds that runs get."""
    head, *_ = [line for line in page(NAME).text.split("\n") if line.startswith("| profile |")]
    assert [cell.strip() for cell in head.strip("|").split("|")][2:] == list(THRESHOLDS)
    rows = {row[0].strip("`"): row[2:] for row in page(NAME).table("profile")}
    assert rows == {name: [profile.values[one] for one in THRESHOLDS] for name, profile in PROFILES.items()}


def test_the_example_is_a_configuration(page: Callable[[str], Any]) -> None:
    """The options of the example are those of the section, and of the embedder that it names."""
    (example,) = page(NAME).fences("toml")
    given = tomllib.loads(example)["embedder"]
    assert set(given) <= set(EmbedderSettings.__struct_fields__)
    options = embedders.options(given.pop("name"), given)
    assert options.semantic["query_instruction"].endswith("\nQuery:")
