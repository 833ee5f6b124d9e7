"""Tables: cut to the width of a terminal, aligned text elsewhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.cells import cell_len

from events.late import Late

# Drawing loads 0.05 s of rich, which a pipe does not need.
console, table, text = Late("rich.console"), Late("rich.table"), Late("rich.text")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    align: Literal["left", "right"] = "left"
    #: gives way first where a terminal is narrow
    wide: bool = False


def draw(out: TextIO, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    """Draw a table on the terminal `out`; nothing in a cell is interpreted."""
    drawn = table.Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(text.Text(column.title), justify=column.align, overflow="ellipsis", no_wrap=True,
                         ratio=1 if column.wide else None)  # fmt: skip
    for row in cells:
        drawn.add_row(*map(text.Text, row))
    console.Console(file=out, markup=False, highlight=False, emoji=False).print(drawn)


def aligned(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, titles first, without their ends."""
    rows = [[column.title for column in columns], *cells]
    widths = [max(cell_len(row[at]) for row in rows) for at in range(len(columns))]
    for row in rows:
        padded = [_padded(cell, widths[at], columns[at].align) for at, cell in enumerate(row)]
        yield "  ".join(padded).rstrip()


def _padded(cell: str, width: int, align: Literal["left", "right"]) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if align == "right" else cell + space
