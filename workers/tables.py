"""Tables: cut to the width of a terminal, aligned text elsewhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.cells import cell_len

from events.late import Late

# Drawing loads 0.05 s of rich, which a pipe does not need.
console, text = Late("rich.console"), Late("rich.text")

#: columns are so far apart
_BETWEEN = 2
#: a wide column gives way no further
_LEAST = 12


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    align: Literal["left", "right"] = "left"
    #: gives way where a terminal is narrow; the others stay whole
    wide: bool = False


def draw(out: TextIO, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    """Draw a table on the terminal `out`; nothing in a cell is interpreted."""
    screen = console.Console(file=out, markup=False, highlight=False, emoji=False)
    widths = _fitted(columns, cells, screen.width)
    cut = [[_cut(cell, width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    titles, *lines = aligned(columns, cut)
    # What is wider than the terminal all the same goes on in its next line, whole: nobody can copy half an id.
    screen.print(text.Text(titles, style="bold"), soft_wrap=True)
    for line in lines:
        screen.print(text.Text(line), soft_wrap=True)


def _fitted(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """The width of each column on a terminal of `width`: wide columns give way, the widest of them first."""
    widths = [max(map(cell_len, (column.title, *(row[at] for row in cells)))) for at, column in enumerate(columns)]
    giving = {at for at, column in enumerate(columns) if column.wide and widths[at] > _LEAST}
    over = sum(widths) + _BETWEEN * (len(widths) - 1) - width
    while over > 0 and giving:
        widest = max(giving, key=widths.__getitem__)
        widths[widest] -= 1
        over -= 1
        if widths[widest] <= _LEAST:
            giving.remove(widest)
    return widths


def _cut(cell: str, width: int) -> str:
    if cell_len(cell) <= width:
        return cell
    shorter = text.Text(cell)
    shorter.truncate(width, overflow="ellipsis")
    return str(shorter.plain)


def aligned(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, titles first, without their ends."""
    rows = [[column.title for column in columns], *cells]
    widths = [max(cell_len(row[at]) for row in rows) for at in range(len(columns))]
    for row in rows:
        padded = [_padded(cell, widths[at], columns[at].align) for at, cell in enumerate(row)]
        yield (" " * _BETWEEN).join(padded).rstrip()


def _padded(cell: str, width: int, align: Literal["left", "right"]) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if align == "right" else cell + space
