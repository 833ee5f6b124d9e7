import errno
import io
import json
from pathlib import Path
from unicodedata import category

import pytest
from rich.cells import cell_len

from runtime.hostile import seen
from workers.output import Output, json_text
from workers.tables import Column
from workers.terminal import clipped, printable, printable_block


class Terminal(io.StringIO):
    def isatty(self):
        return True


HOSTILE = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202egnp\u2066 [bold]x[/] :smile: \r\ud800 a\tb"


def test_controls_become_escapes():
    """No control, direction or surrogate character passes; everything else does."""
    text = printable(HOSTILE + "\n")
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in text)
    assert "\\x1b[31mred" in text
    assert text.endswith("\\n")
    assert "\\u202e" in text
    assert printable("a\u200bb\U000e0041\u2028") == "a\\u200bb\\U000e0041\\u2028"
    assert printable("λ 中文 é 🧠") == "λ 中文 é 🧠"
    assert printable_block("a\nb\x1b") == "a\nb\\x1b"


def test_what_shows_nothing_is_an_escape():
    """What the lint of experiences knows as invisible is seen on a terminal; private characters and signs aside."""
    signs = {0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    hidden = {
        one
        for one in map(chr, range(0x20, 0x110000))
        if category(one) not in ("Co", "Cs") and ord(one) not in signs and not seen(one)
    }
    assert {one for one in hidden if printable(one) == one} == set()


def test_clipping_says_that_something_is_missing():
    """A clipped text ends in an ellipsis and is never longer than asked."""
    assert (clipped("abc", 3), clipped("abcd", 3), clipped("abcd", 0)) == ("abc", "ab…", "…"[:1])


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_tables_interpret_nothing(stream):
    """Neither a terminal nor a pipe gets markup, emoji names or control characters interpreted."""
    out = stream()
    Output(out=out, err=io.StringIO()).table([Column("a"), Column("b", "right")], [[HOSTILE, 1], ["[red]", 20]])
    text = out.getvalue()
    assert "[bold]x[/] :smile:" in text
    assert "[red]" in text
    assert "\\x1b[31mred" in text
    assert "\x9b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("width", [20, 40, 60, 200])
def test_tables_give_way_where_nothing_is_lost(width, monkeypatch):
    """On a narrow terminal long texts are cut, the longest first; ids and numbers stay whole, whatever the width."""
    monkeypatch.setenv("COLUMNS", str(width))
    out = Terminal()
    columns = [Column("id"), Column("value", "right"), Column("scenario", wide=True), Column("experience", wide=True)]
    rows = [["planning-17", "+0.370", "中" * 30, "word " * 6], ["execution-4", "-1.000", "short", "[red]"]]
    Output(out=out, err=io.StringIO()).table(columns, rows)
    titles, first, second = out.getvalue().splitlines()
    assert [word in titles for word in ("id", "value", "scenario", "experience")] == [True] * 4
    assert first.startswith("planning-17  +0.370  中")
    assert second.startswith("execution-4  -1.000  short")
    assert "[red]" in second
    assert ("…" in first) == (width < 200)
    least = len("planning-17  +0.370  ") + 12 + 2 + 12
    assert cell_len(first) <= max(width, least)


@pytest.mark.parametrize(("stream", "shown"), [(io.StringIO, False), (Terminal, True)])
def test_a_product_is_escaped_on_a_terminal_only(stream, shown):
    """A line of an export goes into a pipe byte for byte; on a terminal it says the same in escapes."""
    out, line = stream(), json.dumps({"a": "\x9b2J\u202e\U000e0041 é"}, ensure_ascii=False)
    Output(out=out, err=io.StringIO()).raw(line)
    assert (out.getvalue() != line) == shown
    assert ("\x9b" not in out.getvalue()) == shown
    assert json.loads(out.getvalue()) == json.loads(line)


def test_plain_tables_are_aligned_by_width():
    """In a pipe, columns are aligned by the width of their characters, two spaces apart, nothing at line ends."""
    out = io.StringIO()
    Output(out=out, err=io.StringIO()).table([Column("name"), Column("n", "right")], [["中文", 1], ["abcdef", 20]])
    assert out.getvalue() == "name     n\n中文     1\nabcdef  20\n"


def test_envelope():
    """With --json there is one object with schema, as_of and data, and nothing for people."""
    out, err = io.StringIO(), io.StringIO()
    output = Output(json=True, out=out, err=err)
    output.line("not this")
    output.facts({"nor": "this"})
    output.table([Column("nor")], [["this"]])
    output.note("progress")
    output.data([{"a": "\x9b\ud800"}])
    body = json.loads(out.getvalue())
    assert (body["schema"], body["data"]) == (1, [{"a": "\x9b\ud800"}])
    assert body["as_of"].endswith("Z")
    assert "\x9b" not in out.getvalue()
    assert err.getvalue() == "progress\n"


def test_fields_at_the_top_of_an_envelope():
    """A command may put fields beside the envelope's own; then there is no `data`."""
    out = io.StringIO()
    Output(json=True, out=out, err=io.StringIO()).data(version=3, items=[])
    body = json.loads(out.getvalue())
    assert body.keys() == {"schema", "as_of", "version", "items"}


def test_a_narrow_encoding_gets_escapes():
    """A stream that cannot hold a character gets its escape instead of an exception."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Output(out=out, err=io.StringIO()).line("θ \ud800")
    assert raw.getvalue() == b"\\u03b8 \\ud800\n"


def test_json_has_no_nan():
    """What JSON has no form for is an error, not an invalid document."""
    with pytest.raises(ValueError, match="JSON"):
        json_text(float("nan"))


def test_an_empty_table_says_so_beside_the_output():
    """Where there is no row, the hint goes to stderr and stdout stays empty."""
    out, err = io.StringIO(), io.StringIO()
    Output(out=out, err=err).table([Column("a")], [], empty="no runs yet")
    assert (out.getvalue(), err.getvalue()) == ("", "no runs yet\n")


def test_a_file_on_a_read_only_file_system_is_named_as_it_was_given(tmp_path, monkeypatch):
    """Such a file system refuses to clean up as well; the user's own name is told, not that of our half file."""

    def refused(self, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "write_text", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    file = str(tmp_path / "bank.json")
    with pytest.raises(OSError, match="Read-only file system") as got:
        Output(out=io.StringIO(), err=io.StringIO()).write_file(file, "x")
    assert got.value.filename == file
