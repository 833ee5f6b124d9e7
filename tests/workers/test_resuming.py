"""What a file says about a run that goes on: options of its embedder, not of another one; presets; flags over it."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from events.codec import decode_as
from events.kinds import RunStarted
from infra.embedders import Options
from workers.layers import Flags, Resolved, resolve
from workers.reembedding import Threshold, reembedded_config
from workers.resuming import given_by_flags, refused, resumed_operational

#: a file that names one embedder, with options that another one has too
FILE = "[embedder]\nname = 'sentence-transformers'\nmodel = 'a'\nmax_length = 9\nbatch_size = 3\n"


def resolved(*sets: str, file: str, folder: Path, environment: dict[str, str] | None = None) -> Resolved:
    """A configuration from -s flags and a chime.toml."""
    (folder / "chime.toml").write_text(file)
    return resolve(Flags(sets=sets), environment or {}, folder)


@pytest.fixture
def begun(made_run: Any, tmp_path: Path) -> Any:
    """Makes the header of a run that was started with these flags beside `FILE`, embedding with `openai`."""

    def begin(*sets: str) -> RunStarted:
        header = decode_as(made_run().events[0], RunStarted)
        agent = {**header.config.agent, "embedder": "openai", "embedder_options": {"model": "b", "dimension": 0}}
        flags = given_by_flags(resolved(*sets, file=FILE, folder=tmp_path))
        operational = {"embedder": {"batch_size": 7, "base_url": "http://b/v1"}, "flags": flags}
        return replace(header, config=replace(header.config, agent=agent, operational=operational))

    return begin


@pytest.mark.parametrize(
    ("sets", "file", "said"),
    [
        ((), FILE, []),
        ((), "[embedder]\nmodel = 'a'\n", []),
        (("embedder.dimension=8",), FILE, ["embedder.dimension: 0 -> 8"]),
        ((), "[embedder]\nname = 'openai'\nmodel = 'b'\n", []),
        ((), "[embedder]\nname = 'openai'\ndimension = 8\n", ["embedder.dimension: 0 -> 8 (file chime.toml:3)"]),
        ((), "[embedder]\nname = 'openai'\nmodel = 'a'\n", []),
    ],
)
def test_options_of_another_embedder_are_its_own(
    begun: Any, tmp_path: Path, sets: tuple[str, ...], file: str, said: list[str]
) -> None:
    """A run whose embedder a flag chose goes on beside the file that it was started beside; its model was a flag."""
    header = begun("embedder.name=openai", "embedder.model=b")
    assert refused(resolved(*sets, file=file, folder=tmp_path), header) == said


def test_a_file_that_names_another_embedder_is_refused_by_name(begun: Any, tmp_path: Path) -> None:
    """Where no flag stood over it; its options are no difference of their own."""
    assert refused(resolved(file=FILE, folder=tmp_path), begun()) == [
        "embedder.name: openai -> sentence-transformers (file chime.toml:2)"
    ]


def test_how_another_embedder_is_run_is_its_own_as_well(begun: Any, tmp_path: Path) -> None:
    """Batches and addresses are taken from a file that names the run's embedder, and from flags."""
    config = begun("embedder.name=openai").config
    there = {"endpoints": {}, **config.operational}

    def now(*sets: str, file: str) -> Any:
        return resumed_operational(resolved(*sets, file=file, folder=tmp_path), there, config)["embedder"]

    assert now(file=FILE) == {"batch_size": 7, "base_url": "http://b/v1"}
    assert now("embedder.batch_size=5", file=FILE)["batch_size"] == 5
    assert now(file="[embedder]\nname = 'openai'\nbatch_size = 3\n")["batch_size"] == 3


@pytest.mark.parametrize("by", ["file", "environment"])
def test_a_resume_refuses_a_preset_that_has_changed(made_run: Any, tmp_path: Path, by: str) -> None:
    """What a preset gives is given, but for what stands over it; one that the run was started with changes nothing."""
    header = decode_as(made_run().events[0], RunStarted)
    file, environment = ("preset = 'paper'\n", {}) if by == "file" else ("", {"CHIME_PRESET": "paper"})
    now = resolved(file=file, folder=tmp_path, environment=environment)
    begun = replace(header, config=replace(header.config, operational={"flags": ["embedder.name"]}))
    said = refused(now, begun)
    assert "run.concurrency: 1 -> 16 (preset paper)" in said
    assert not [one for one in said if one.startswith("embedder.")]
    flags = [one.partition(":")[0] for one in said]
    assert refused(now, replace(header, config=replace(header.config, operational={"flags": flags}))) == [
        "embedder.name: None -> sentence-transformers (preset paper)"
    ]


def test_a_bank_embedded_again_keeps_what_flags_gave(begun: Any) -> None:
    """Of the embedder and the thresholds decided with it, those of now; of all else, those of the run's start."""
    config = begun("embedder.name=openai", "policy.floor=0.2", "policy.margin=0.1", "run.concurrency=1").config
    changed = [
        Threshold(name="floor", before="0.2", now="0.3", origin="profile hash"),
        Threshold(name="margin", before="0.1", now="0.1", origin=""),
        Threshold(name="novelty", before="0.1", now="0.2", origin="flag -s policy.novelty"),
    ]
    now = ["embedder.model", "policy.novelty", "run.lag"]
    anew = reembedded_config(config, "hash", Options(semantic={}, operational={}), changed, now)
    assert anew.operational == {"flags": ["embedder.model", "policy.margin", "policy.novelty", "run.concurrency"]}
    silent = replace(config, operational={})
    assert reembedded_config(silent, "hash", Options(semantic={}, operational={}), [], now).operational == {}
