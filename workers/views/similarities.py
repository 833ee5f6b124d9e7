"""The picture of a calibration: bars in a terminal, and one small SVG that stands alone."""

from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

from workers.calibration import BARS, BARS_PER_ONE, Calibration, Histogram, Of
from workers.terminal import clipped

#: what a histogram is of, for people
TITLES: Mapping[Of, str] = {
    "query_scenario": "queries and scenarios",
    "scenario_scenario": "scenarios and the nearest one",
    "experience_experience": "experiences and the nearest one",
}
_AMONG = {"recalls": "pairs in recalls", "decisions": "new ones", "bank": "live items"}

#: characters of the longest bar in a terminal
_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"


def title(histogram: Histogram) -> str:
    """`queries and scenarios: 7116 pairs in recalls`."""
    return f"{TITLES[histogram.of]}: {histogram.count} {_AMONG[histogram.among]}"


def marks(calibration: Calibration) -> dict[Of, tuple[str, float]]:
    """Where each histogram's threshold stands: its words and the similarity."""
    values = {name: float(value) for name, value in calibration.thresholds.items()}
    return {
        "query_scenario": (f"floor {values['floor']:g}", values["floor"]),
        "scenario_scenario": (f"theta_merge {values['theta_merge']:g}", values["theta_merge"]),
        "experience_experience": (f"1 - novelty = {1 - values['novelty']:g}", 1 - values["novelty"]),
    }


def bars(histogram: Histogram, mark: tuple[str, float]) -> Iterator[tuple[str, int, str]]:
    """(from which similarity, how many, the bar) for each bar from the lowest to the highest that is not empty."""
    words, at = mark
    filled = [k for k, count in enumerate(histogram.bars) if count]
    most = max(histogram.bars)
    for k in range(filled[0], filled[-1] + 1) if filled else ():
        count = histogram.bars[k]
        eighths = -(-count * _WIDTH * 8 // most)
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        low = (k - BARS_PER_ONE) / BARS_PER_ONE
        # A threshold that is an edge belongs to the bar above it, whatever the floats say.
        here = round(at * BARS_PER_ONE * 1000) // 1000 == k - BARS_PER_ONE
        yield f"{low:+.2f}", count, f"{bar}  < {words}".strip() if here else bar


_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.b{fill:#2f6fb0}.m{stroke:#b42318;stroke-width:1.5;"
    "stroke-dasharray:4 3}.t{fill:#b42318}.a{stroke:#8c959f}@media(prefers-color-scheme:dark){text{fill:#e6edf3}"
    ".b{fill:#6cb6ff}.m{stroke:#ff9d8f}.t{fill:#ff9d8f}.a{stroke:#6e7681}}"
)
_LEFT, _RIGHT, _TOP, _HEIGHT, _PANEL, _HEAD = 16, 624, 38, 96, 178, 48
#: characters of a fingerprint that fit beside each other
_FINGERPRINT = 80


def svg(calibration: Calibration) -> str:
    """The histograms above each other as one SVG of a few kilobytes; light or dark as its reader's system is."""
    named = escape(f"Similarities of run {calibration.run}")
    told = escape("; ".join(_told(one, mark) for one, mark in _panels(calibration)))
    height = _HEAD + _PANEL * len(calibration.histograms)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" width="640" height="{height}" role="img" '
        f'aria-labelledby="t d"><title id="t">{named}</title><desc id="d">{told}</desc><style>{_STYLE}</style>',
        f'<text x="{_LEFT}" y="20">{named}</text>',
        f'<text x="{_LEFT}" y="36">embedded with {escape(clipped(calibration.embedder, _FINGERPRINT))}</text>',
    ]
    for place, (histogram, mark) in enumerate(_panels(calibration)):
        parts += _panel(histogram, mark, _HEAD + place * _PANEL)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panels(calibration: Calibration) -> Iterator[tuple[Histogram, tuple[str, float]]]:
    places = marks(calibration)
    return ((one, places[one.of]) for one in calibration.histograms)


def _told(histogram: Histogram, mark: tuple[str, float]) -> str:
    if histogram.least is None or histogram.most is None:
        return f"{title(histogram)}, {mark[0]}"
    return f"{title(histogram)}, from {histogram.least:.2f} to {histogram.most:.2f}, {mark[0]}"


def _panel(histogram: Histogram, mark: tuple[str, float], top: int) -> Iterator[str]:
    filled = [k for k, count in enumerate(histogram.bars) if count]
    first = min([BARS_PER_ONE, *filled])
    step = (_RIGHT - _LEFT) / (BARS - first)
    base = top + _TOP + _HEIGHT

    def x(similarity: float) -> float:
        return round(_LEFT + ((similarity + 1) * BARS_PER_ONE - first) * step, 1)

    most = max(histogram.bars) or 1
    heights = {k: max(1.0, histogram.bars[k] / most * _HEIGHT) for k in filled}
    path = "".join(
        f"M{_LEFT + (k - first) * step:.1f} {base}v-{h:.1f}h{step - 1:.1f}V{base}z" for k, h in heights.items()
    )
    yield f'<text x="{_LEFT}" y="{top + 14}">{escape(title(histogram))}</text>'
    yield f'<path class="b" d="{path}"/>' if path else ""
    yield f'<path class="a" d="M{_LEFT} {base}H{_RIGHT}"/>'
    for fifth in range(-5, 6):
        if x(fifth / 5) >= _LEFT:
            yield f'<text x="{x(fifth / 5)}" y="{base + 16}" text-anchor="middle">{fifth / 5:g}</text>'
    words, at = mark
    side, gap = ("end", -4) if x(at) > (_LEFT + _RIGHT) / 2 else ("start", 4)
    yield f'<path class="m" d="M{x(at)} {top + _TOP - 14}V{base}"/>'
    yield f'<text class="t" x="{x(at) + gap}" y="{top + _TOP - 5}" text-anchor="{side}">{escape(words)}</text>'
