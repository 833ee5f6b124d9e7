"""A table on a terminal, cut to its width."""

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from workers.output import Column


def draw(out: TextIO, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    """Draw it on `out`; nothing in a cell is interpreted."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(column.title), justify=column.align, overflow="ellipsis", no_wrap=True,
                         ratio=1 if column.wide else None)  # fmt: skip
    for row in cells:
        table.add_row(*map(Text, row))
    Console(file=out, markup=False, highlight=False, emoji=False).print(table)
