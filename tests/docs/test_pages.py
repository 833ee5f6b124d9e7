"""What holds for every page: paths exist, links resolve, commands and options are the command line's own."""

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click

from workers.__main__ import chime
from workers.layers import SPECIAL_VARIABLES, settings

#: a path of the tree: something/with a known ending, or a folder of ours
_PATH = re.compile(r"(?:events|runtime|infra|workers|bench|docs|tests)/[\w./*-]*")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


def test_every_path_that_is_named_exists(pages: list[Any], root: Path) -> None:
    """A page sends nobody to a file that is not there."""
    for page in pages:
        named = [one for code in _CODE.findall(page.prose()) for one in _PATH.findall(code)]
        missing = [one for one in named if not list(root.glob(one.rstrip("/.")))]
        assert (page.path.name, missing) == (page.path.name, [])


def test_every_bare_file_of_the_walk_exists(page: Callable[[str], Any], root: Path) -> None:
    """Where the architecture names a file without its folder, some package has it."""
    known = {path.name for package in ("events", "runtime", "infra", "workers") for path in (root / package).rglob("*")}
    named = re.findall(r"`([a-z_]+\.(?:py|lua|md))`", page("docs/architecture.md").text)
    assert [one for one in named if one not in known] == []


def test_every_link_resolves(pages: list[Any]) -> None:
    """A link leads to a file of the project and, after #, to one of its headings; nothing points outside."""
    for page in pages:
        for target in _LINK.findall(page.prose()):
            file, _, anchor = target.partition("#")
            path = (page.path.parent / file) if file else page.path
            assert path.is_file(), f"{page.path.name}: {target}"
            if anchor:
                assert anchor in _anchors(path), f"{page.path.name}: {target}"


def test_every_command_that_is_named_exists(pages: list[Any]) -> None:
    """Commands, their options and settings after -s are the command line's own."""
    for page in pages:
        for line in _commands(page.text):
            _check(shlex.split(line, comments=True), f"{page.path.name}: {line}")


def test_every_variable_that_is_named_is_read(pages: list[Any]) -> None:
    """A CHIME_ variable is a setting's own, one of those that are read beside them, or one of tests and bench."""
    others = {"CHIME_TEST_WEAVIATE", "CHIME_BENCH_SCALE"}
    known = {*SPECIAL_VARIABLES, *others} | {"CHIME_" + name.upper().replace(".", "_") for name in settings()}
    for page in pages:
        named = set(re.findall(r"\bCHIME_[A-Z_]+[A-Z]\b", page.text))
        assert (page.path.name, named - known) == (page.path.name, set())


@cache
def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _commands(text: str) -> Iterator[str]:
    """`chime ...` in code, in indented lines and after a prompt."""
    for code in _CODE.findall(text):
        if code.startswith("chime ") and "|" not in code:
            yield code
    shell = False
    for line in text.split("\n"):
        if line.startswith("```"):
            shell = line == "```sh"
        found = re.match(r"(?:    |\$ |)(?:\w+=\$\()?(chime [^|>&]*)", line)
        if found and (shell or line.startswith(("    ", "$ "))):
            yield found[1]


def _check(words: list[str], where: str) -> None:
    command: click.Command = chime
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith(("-", ".")):
        found = command.get_command(click.Context(command), rest[0])
        assert found is not None, f"{where}: no command {rest[0]}"
        command, rest = found, rest[1:]
    known = {name: option for option in command.params for name in option.opts} | {"--help": None, "--version": None}
    for at, word in enumerate(rest):
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            assert word.partition("=")[0] in known, f"{where}: no option {word}"
        if word in ("-s", "--set"):
            assert rest[at + 1].partition("=")[0] in settings(), f"{where}: no setting {rest[at + 1]}"
