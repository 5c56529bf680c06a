"""Where records live: the names of all keys, and the cells that they are spread over.

Every key carries the number of its cell as a hash tag, so that a Redis Cluster keeps a cell in one slot. A cell holds
records with their index and their expiries; a commit inside one cell is atomic. A single server has one cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from ...records.algebra import Key, Query
from ...records.keys import owner, owners

CLUSTER_CELLS = 64
"""As many as spread well over a dozen nodes; part of the stored format."""


class Layout:
    """The key names of one prefix, in lists by cell.

    ``records[cell] % key`` is the name of the string that holds a record: no part of a key contains a control
    character. ``indexes`` and ``expiries`` are the sorted sets of index entries, and of records that will expire.
    """

    def __init__(self, prefix: str, cells: int) -> None:
        starts = [f"{prefix}:{{{cell}}}:" for cell in range(cells)]
        self.prefix = prefix
        self.cells = cells
        self.records = [f"{start}%s\t%s" for start in starts]
        self.indexes = [f"{start}index" for start in starts]
        self.expiries = [f"{start}expiries" for start in starts]

    def cell(self, key: Key) -> int:
        """Return the cell of a record."""
        return 0 if self.cells == 1 else self._cell_of(owner(key))

    def cells_of(self, query: Query) -> Iterable[int]:
        """Return the cells in which a query can find anything."""
        whose = owners(query)
        if self.cells == 1 or whose is None:
            return range(self.cells)
        return {self._cell_of(name) for name in whose}

    def _cell_of(self, name: str) -> int:
        return crc32(name.encode()) % self.cells
