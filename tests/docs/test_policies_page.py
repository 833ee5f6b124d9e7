"""docs/policies.md against the parameters and policies there are."""

import re
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

from events import policies
from events.parameters import Parameters

NAME = "docs/policies.md"


def test_every_parameter_stands_with_its_default(page: Callable[[str], Any]) -> None:
    """The table holds every parameter once, in the code's order, with the default a header records."""
    listed: dict[str, str] = {}
    for names, defaults, _ in page(NAME).table("name"):
        listed |= dict(zip(re.findall(r"`(\w+)`", names), defaults.split(", "), strict=True))
    assert listed == {name: str(value) for name, value in Parameters().recorded().items()}


def test_the_events_page_gives_the_same_defaults(page: Callable[[str], Any]) -> None:
    """The format's own list of parameters names every one with its default."""
    text = " ".join(page("docs/events.md").text.split())
    for name, value in Parameters().recorded().items():
        assert f"`{name}` {value}" in text


def test_every_mode_is_named(page: Callable[[str], Any]) -> None:
    """Where a parameter is a choice, the page names all that can be chosen, on a line with the parameter."""
    lines = page(NAME).text.split("\n")
    for name, kind in get_type_hints(Parameters).items():
        named = " ".join(line for line in lines if f"`{name}`" in line)
        assert [mode for mode in get_args(kind) if not re.search(rf"\b{mode}\b", named)] == []


def test_every_policy_is_described(page: Callable[[str], Any]) -> None:
    """The table of policies is the folder of policies."""
    assert [row[0].strip("`") for row in page(NAME).table("policy")] == policies.names()
