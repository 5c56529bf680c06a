"""Tables drawn by rich, fitted to the width of a terminal, and the bars of buckets in them.

Nothing is left out: if a table is too wide, its columns move together, then its texts are folded, and as a last resort
every row becomes a block with a line per field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .grid import Cell, Grid, Narrow, printable

GAPS = (3, 2, 1)
"""Columns between two fields: the first that fits is taken."""
_LEAST_TEXT = {2: 14, 1: 12}
"""By the gap between columns, how far texts are folded: what is narrower is easier to read on a line of its own."""
_LEAST_NAME = (14, 14, 10, 7, 1)
"""By the number of columns left out, how far names are shortened before one more is left out."""
_UNBOUND = 10_000
_EIGHTHS = " ▏▎▍▌▋▊▉"
_TRACK = "grey23"
_DEBT = "bright_red"


def fit_table(grid: Grid, width: int) -> Table:
    """Return a table of everything in ``grid``, at most ``width`` columns wide if possible."""
    natural = natural_widths(grid)
    for gap in GAPS:
        if sum(natural) + gap * (len(natural) - 1) <= width:
            return draw_table(grid, gap)
    if not grid.headers:
        return draw_table(grid)
    if grid.narrow is not None:
        return _spare_columns(grid, grid.narrow, width)
    elastic = [not _begin_with_digits(column) for column in zip(*grid.rows, strict=True)]
    for gap, least in _LEAST_TEXT.items():
        room = share_width(natural, elastic, width - gap * (len(elastic) - 1), least)
        if room is not None:
            return draw_table(grid, gap, room)
    return stack_rows(grid)


def _spare_columns(grid: Grid, narrow: Narrow, width: int) -> Table:
    """Return a table of as much of a grid as fits, each row on a line."""
    for gone in range(len(narrow.spared) + 1):
        kept = grid.without(*narrow.spared[:gone])
        elastic = [header in narrow.shortened for header in kept.headers]
        kept = replace(kept, headers=[narrow.headers.get(header, header) for header in kept.headers])
        for gap in GAPS[1:]:
            least = _LEAST_NAME[min(gone, len(_LEAST_NAME) - 1)]
            room = share_width(natural_widths(kept), elastic, width - gap * (len(elastic) - 1), least)
            if room is not None:
                cells = [zip(row, elastic, room, strict=True) for row in kept.rows]
                rows = [
                    [shorten(printable(str(cell)), size) if cut else cell for cell, cut, size in row] for row in cells
                ]
                return draw_table(Grid(list(map(shorten, kept.headers, room)), rows), gap, room)
    return draw_table(kept, gap)


def draw_table(grid: Grid, gap: int = GAPS[0], room: Sequence[int] | None = None) -> Table:
    """Return a table without its title. ``room`` is the width of each column, if not its natural one."""
    table = Table(
        box=box.SIMPLE_HEAD if grid.headers else None,
        show_header=bool(grid.headers),
        show_edge=False,
        pad_edge=False,
        padding=(0, gap // 2, 0, (gap - 1) // 2) if grid.headers else (0, 2, 0, 0),
        header_style="bold",
    )
    for number, (header, cells) in enumerate(zip(_headers(grid), zip(*grid.rows, strict=True), strict=True)):
        side: JustifyMethod = "right" if grid.headers and _are_numbers(cells) else "left"
        style = "" if number or grid.headers else "bold"
        width = None if room is None else room[number]
        table.add_column(header, justify=side, style=style, overflow="fold", width=width)
    for row in grid.rows:
        table.add_row(*(show_value(value) for value in row))
    return table


def stack_rows(grid: Grid) -> Table:
    """Return a table with a block per row and a line per field; empty fields are left out."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for number, row in enumerate(grid.rows):
        if number:
            table.add_row()
        for header, value in zip(grid.headers, row, strict=True):
            shown = show_value(value)
            if shown.plain.strip():
                table.add_row(header, shown)
    return table


def natural_widths(grid: Grid) -> list[int]:
    """Return the width of each column if nothing is folded or shortened."""
    rows = [[show_value(value).cell_len for value in row] for row in grid.rows]
    return [max(lengths) for lengths in zip(map(cell_len, _headers(grid)), *rows, strict=True)]


def share_width(natural: Sequence[int], elastic: Sequence[bool], width: int, least: int) -> list[int] | None:
    """Divide ``width`` among columns: only ``elastic`` ones give way, the widest first, and none below ``least``.

    None where that is not enough.

    >>> share_width([50, 20, 6], [True, True, False], 46, 14)
    [20, 20, 6]
    >>> share_width([50, 20, 6], [True, True, False], 20, 14)
    """
    widest = max((size for size, gives in zip(natural, elastic, strict=True) if gives), default=0)
    for most in range(max(widest, least), least - 1, -1):
        shares = [min(size, most) if gives else size for size, gives in zip(natural, elastic, strict=True)]
        if sum(shares) <= width:
            return shares
    return None


def shorten(text: str, width: int) -> str:
    """Cut a name in the middle: what tells names apart is often at their end.

    >>> shorten("customer-7f3a9b2c-000001", 12), shorten("key-1", 12)
    ('custom…00001', 'key-1')
    """
    if cell_len(text) <= width:
        return text
    tail = ""
    for letter in reversed(text):
        if cell_len(letter + tail) > (width - 1) // 2:
            break
        tail = letter + tail
    head = set_cell_size(text, max(0, width - 1 - cell_len(tail))).rstrip()
    return f"{head}…{tail}"


def measure(renderable: RenderableType) -> Measurement:
    """Return the least width without a broken word, and the greatest, independent of the terminal."""
    screen = Console(highlight=False, markup=False, emoji=False)
    return Measurement.get(screen, screen.options.update(max_width=_UNBOUND), renderable)


def show_value(value: object) -> Text:
    """Return the text of a cell: numbers with separators, None as a dash, no control characters."""
    match value:
        case Text():
            return value
        case None:
            return Text("-", style="dim")
        case bool():
            return Text("yes" if value else "no")
        case int():
            return Text(f"{value:,}", style="red" if value < 0 else "")
        case float():
            return Text(f"{value:,.1f}", style="red" if value < 0 else "")
        case Cell(text, style):
            return Text(printable(text), style=style)
        case _:
            return Text(printable(str(value)))


def _headers(grid: Grid) -> list[str]:
    return [str(header) for header in grid.headers or [""] * len(grid.rows[0])]


def _are_numbers(cells: Sequence[object]) -> bool:
    """Return whether a column holds numbers, or texts that are aligned like numbers."""
    given = [cell for cell in cells if cell is not None]
    kinds = [type(cell) for cell in given if not isinstance(cell, Text) or cell.justify != "right"]
    return bool(given) and all(kind in (int, float) for kind in kinds)


def _begin_with_digits(cells: Sequence[object]) -> bool:
    """Return whether a column holds numbers, rates or moments, which must not be folded."""
    texts = [show_value(cell).plain.lstrip("-") for cell in cells]
    return all(text[:1].isdigit() for text in texts if text.strip())


def bar(available: int, capacity: int, width: int, debt_width: int = 0) -> Text:
    """Return a bar of what is left in a bucket, with debt to the left of zero on the same scale."""
    scale = width / capacity
    text = Text()
    if debt_width:
        text.append_text(_debt(max(0, -available) * scale, debt_width))
        text.append("│", style=_DEBT if available < 0 else "grey50")
    return text.append_text(_balance(max(0, available) * scale, width, _colour(available, capacity)))


def used_bar(available: int, capacity: int, width: int) -> Text:
    """Return a bar of what is used of a bucket; full in debt."""
    return _balance((capacity - max(0, available)) * width / capacity, width, _colour(available, capacity))


def _colour(available: int, capacity: int) -> str:
    share = available / capacity
    return "green" if share > 0.5 else "yellow" if share > 0.15 else "red"


def _balance(cells: float, width: int, colour: str) -> Text:
    eighths = min(round(cells * 8), width * 8)
    whole, part = divmod(eighths, 8)
    drawn = "█" * whole + (_EIGHTHS[part] if part else "")
    return Text(drawn, style=f"{colour} on {_TRACK}").append(" " * (width - len(drawn)), style=f"on {_TRACK}")


def _debt(cells: float, width: int) -> Text:
    if cells > width:
        return Text("◀" + "█" * (width - 1), style=_DEBT)
    eighths = round(cells * 8)
    whole, part = divmod(eighths, 8)
    drawn = Text(" " * (width - whole - bool(part)))
    if part:
        # A block that is filled from the right: the same glyph, colours exchanged.
        drawn.append(_EIGHTHS[8 - part], style=f"{_DEBT} reverse")
    return drawn.append("█" * whole, style=_DEBT)
