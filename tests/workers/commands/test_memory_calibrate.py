"""`chime memory calibrate`: from a server or an export, for people and programs, and as a picture."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from workers.calibration import Calibration, Firing, Histogram
from workers.views.similarities import bars, svg

SVG = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ET.Element:
    """The picture, if it is XML."""
    return ET.fromstring(text)  # noqa: S314 - our own words


def test_a_run_and_its_export_say_the_same(chime: Any, uploaded: Any, made_run: Any) -> None:
    """The log alone is read: no model, no server that the run was made on."""
    uploaded(made_run())
    here = chime.json("memory", "calibrate", "made")["data"]
    chime("log", "export", "made", "-o", "made.jsonl")
    assert chime.json("memory", "calibrate", "./made.jsonl")["data"] == here
    assert (here["run"], here["embedder"], here["version"], here["recalls"]) == ("made", "made", 6, 12)
    assert here["thresholds"] == {"floor": "0.3", "margin": "0.03", "novelty": "0.1", "theta_merge": "0.88"}
    assert [one["of"] for one in here["histograms"]] == [
        "query_scenario", "scenario_scenario", "experience_experience",
    ]  # fmt: skip
    assert all(sum(one["bars"]) == one["count"] for one in here["histograms"])
    assert [one["value"] for one in here["firings"] if one["own"]] == ["0.3", "0.03", "0.1", "0.88"]


def test_people_see_bars_and_shares(chime: Any, uploaded: Any, made_run: Any) -> None:
    """Each histogram with its threshold beside the bar it is in, then one line for each threshold and neighbour."""
    uploaded(made_run())
    out = chime("memory", "calibrate", "made")
    assert "\nqueries and scenarios: " in out
    assert "█" in out
    (own,) = [line for line in out.splitlines() if line.startswith("theta_merge") and "*" in line]
    assert "0.88" in own
    assert "experiences merge (" in own
    assert "\\n" not in out


def test_an_empty_run_has_nothing_to_show(chime: Any, uploaded: Any, made_run: Any) -> None:
    """A run that has only begun is no error."""
    made = made_run()
    made.events = made.events[:1]
    uploaded(made)
    data = chime.json("memory", "calibrate", "made", "-o", "empty.svg")["data"]
    assert [one["count"] for one in data["histograms"]] == [0, 0, 0]
    assert parsed(Path("empty.svg").read_text(encoding="utf-8")).tag == f"{SVG}svg"
    assert "none yet" in chime("memory", "calibrate", "made") + chime.err


def test_the_picture_stands_alone(chime: Any, uploaded: Any, made_run: Any) -> None:
    """Well-formed, named and told for those who do not see it, light and dark, small, and asking nobody."""
    uploaded(made_run())
    chime("memory", "calibrate", "made", "-o", "made.svg")
    text = Path("made.svg").read_text(encoding="utf-8")
    root = parsed(text)
    assert root.attrib["role"] == "img"
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert desc is not None
    assert root.attrib["aria-labelledby"] == f"{title.attrib['id']} {desc.attrib['id']}"
    assert title.text == "Similarities of run made"
    assert "theta_merge 0.88" in str(desc.text)
    assert "prefers-color-scheme:dark" in text
    assert text.replace("http://www.w3.org/2000/svg", "").count("//") == 0
    assert len(text.encode()) < 7_000
    assert len(root.findall(f"{SVG}path[@class='m']")) == 3
    chime("memory", "calibrate", "made", "-o", "nowhere/made.svg", code=2)
    chime("memory", "calibrate", "made", "-o", "made.png", code=2)
    assert "must end in .svg" in chime.err
    assert not Path("made.png").exists()


def calibration(**parts: Any) -> Calibration:
    """One with full bars, whose names are hostile."""
    histograms = [
        Histogram(of=of, among="recalls", count=40_000_000, bars=[10**6] * 40, least=-1.0, most=1.0)
        for of in ("query_scenario", "scenario_scenario", "experience_experience")
    ]
    whole = {
        "run": "r", "embedder": "<script>&\"'", "version": 1, "recalls": 1, "unread_recalls": 0, "decisions": 0,
        "thresholds": {"floor": "0.3", "margin": "0.03", "novelty": "0.1", "theta_merge": 1},
        "histograms": histograms,
        "firings": [Firing(threshold="floor", value="0.3", own=True, fired=0, asked=0)],
    }  # fmt: skip
    return Calibration(**(whole | parts))


def test_a_full_picture_stays_small_and_no_name_is_markup() -> None:
    """Forty bars in each histogram fit into 7 KB; what a log wrote is text."""
    text = svg(calibration())
    assert len(text.encode()) < 7_000
    root = parsed(text)
    assert [one.tag for one in root.iter() if "script" in one.tag] == []
    assert "<script>&" in "".join(root.itertext())


def test_no_bar_reaches_its_threshold_s_words() -> None:
    """The words stand between the title and the highest bar there can be."""
    root = parsed(svg(calibration()))
    words = [float(one.attrib["y"]) for one in root.findall(f"{SVG}text[@class='t']")]
    bases = [float(one.attrib["d"].split()[1].split("H")[0]) for one in root.findall(f"{SVG}path[@class='a']")]
    titles = [float(one.attrib["y"]) for one in root.findall(f"{SVG}text") if "pairs" in str(one.text)]
    assert len(words) == len(bases) == 3
    assert all(at < base - 96 for at, base in zip(words, bases, strict=True))
    assert words[0] - titles[0] >= 12


def test_the_longest_bar_is_whole_and_none_that_counts_is_empty() -> None:
    """Bars are rounded up to an eighth of a character; a threshold that is an edge marks the bar above it."""
    counts = [0] * 40
    counts[26], counts[27] = 1, 1_000_000
    one = Histogram(of="query_scenario", among="recalls", count=1_000_001, bars=counts, least=0.3, most=0.35)
    rows = list(bars(one, ("floor 0.3", 0.3)))
    assert rows == [("+0.30", 1, "▏  < floor 0.3"), ("+0.35", 1_000_000, "█" * 40)]
    assert list(bars(one, ("floor 0.35", 0.35)))[1][2].endswith("< floor 0.35")
