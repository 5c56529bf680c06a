"""Where records live: the names of all keys, and the cells that they are spread over.

Every key carries the number of its cell as a hash tag, so that a Redis Cluster keeps a cell in one slot. A cell holds
records with their index and their expiries; a commit inside one cell is atomic. A single server has one cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from ...records.keys import owner, owners

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...records.algebra import Key, Query

CLUSTER_CELLS = 64
"""As many as spread well over a dozen nodes; part of the stored format."""


class Layout:
    """The key names of one prefix."""

    def __init__(self, prefix: str, cells: int) -> None:
        self.prefix = prefix
        self.cells = cells
        self._starts = [f"{prefix}:{{{cell}}}:" for cell in range(cells)]

    def cell(self, key: Key) -> int:
        """Return the cell of a record."""
        return 0 if self.cells == 1 else self._cell_of(owner(key))

    def record(self, key: Key, cell: int) -> str:
        """Return the name of the string that holds a record. No part of a key contains a control character."""
        return f"{self._starts[cell]}{key[0]}\t{key[1]}"

    def index(self, cell: int) -> str:
        """Return the name of the sorted set of a cell's index entries."""
        return f"{self._starts[cell]}index"

    def expiries(self, cell: int) -> str:
        """Return the name of the sorted set of a cell's records that will expire."""
        return f"{self._starts[cell]}expiries"

    def cells_of(self, query: Query) -> Iterable[int]:
        """Return the cells in which a query can find anything."""
        whose = owners(query)
        if self.cells == 1 or whose is None:
            return range(self.cells)
        return {self._cell_of(name) for name in whose}

    def _cell_of(self, name: str) -> int:
        return crc32(name.encode()) % self.cells
