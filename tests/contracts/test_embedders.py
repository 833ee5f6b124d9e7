"""What every embedder's module offers: options with defaults, split by what they change, and none that it has not."""

import msgspec
import pytest

from events.errors import BadInput, UnknownName
from infra import embedders
from infra.embedders import EmbedderModule, _module

#: values for the options that have no default
NEEDED = {"model": "m", "base_url": "http://h/v1"}


def needed(module: EmbedderModule) -> dict[str, str]:
    """The options that must be given."""
    return {one.name: NEEDED[one.name] for one in msgspec.structs.fields(module.Settings) if one.required}


@pytest.mark.parametrize("name", embedders.names())
def test_options_are_split_without_a_rest(name: str) -> None:
    """Every option is either of the header or may change; each comes back as it was given."""
    module = _module(name)
    found = embedders.options(name, needed(module))
    assert {*found.semantic, *found.operational} == set(module.Settings.__struct_fields__)
    assert set(found.operational) == module.OPERATIONAL & set(module.Settings.__struct_fields__)
    assert not set(found.semantic) & set(found.operational)
    assert embedders.options(name, {**found.semantic, **found.operational}) == found


@pytest.mark.parametrize("name", embedders.names())
def test_an_option_that_it_has_not_is_refused_by_name(name: str) -> None:
    """The line begins with the setting's dotted name."""
    with pytest.raises(BadInput, match=rf"^embedder\.colour: the {name} embedder has no such option; it has "):
        embedders.load(name, {**needed(_module(name)), "colour": "red"})


def test_an_unknown_name_lists_those_there_are() -> None:
    """Four of them, by the names that people write."""
    assert embedders.names() == ["hash", "minilm", "openai", "sentence-transformers"]
    with pytest.raises(UnknownName, match="hash, minilm, openai, sentence-transformers"):
        embedders.load("magic")
