"""Every row of the table can be measured: the tiny variant of each file yields whole rows."""

from pathlib import Path

import pytest

from bench.__main__ import ROWS, measured
from infra.banks import weaviate_edge

#: tiny: this says that a row works, nothing about how fast
SHARE = 0.001


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.timeout(300)
def test_a_tiny_variant(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It has figures or goals for all that is ours; what stands beside it and is not installed says so."""
    monkeypatch.setenv("CHIME_BENCH_PEERS", str(tmp_path))
    monkeypatch.setenv("CHIME_BENCH_ST", str(tmp_path))
    # A row of recalls from Weaviate takes none from elsewhere, however late a busy server answers.
    for limit in ("READ_S", "_GREET_S"):
        monkeypatch.setattr(weaviate_edge, limit, 60.0)
    rows = list(measured(name, SHARE))
    assert rows
    for row in rows:
        assert row.group == name
        if row.not_run:
            assert row.beside, row.not_run
            assert any(why in row.not_run for why in ("make bench", "make test-st", "no package"))
        else:
            assert row.what
            assert row.figure is not None
            assert row.unit
            assert (row.met is None) == (not row.goal)


def test_every_file_is_a_row_or_none():
    """A row's file that the table does not name would never be measured."""
    folder = Path(__file__).parents[2] / "bench"
    files = {path.stem for path in folder.glob("*.py") if "\ndef rows(" in path.read_text()}
    assert files == set(ROWS)
