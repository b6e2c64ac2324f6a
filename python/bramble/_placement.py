"""How a matrix is spread over the machines of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """Each machine holds whole rows (``axis=0``) or whole columns (``axis=1``).

    ``units``: one whole number for each machine that may hold a part, in whose proportion the matrix is cut, at multiples of 256 rows
    or columns; by measured speed if it is ``None``. The machines are those of ``Cluster.nodes``, so this process comes first, but
    it holds no part if the workers are its own (``local``) or the cluster has a ``strategy``. Raises ``ValueError`` for another axis
    and for negative units.
    """

    axis: int
    units: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.axis not in (0, 1):
            raise ValueError(f"Shard(axis={self.axis!r}): a matrix has axes 0 (rows) and 1 (columns)")
        if self.units is not None:
            units = tuple(int(unit) for unit in self.units)
            if any(unit < 0 for unit in units):
                raise ValueError(f"Shard(units={units}): units are whole numbers from 0 on, one for each machine")
            object.__setattr__(self, "units", units)


@dataclass(frozen=True)
class Replicate:
    """Each machine holds a whole copy."""


Placement = Shard | Replicate


def native(placement: Placement | str | None) -> tuple[int | None, list[int] | None] | None:
    """The placement as the compiled module takes it."""
    match placement:
        case None | "auto":
            return None
        case Shard(axis, units):
            return axis, None if units is None else list(units)
        case Replicate():
            return None, None
        case _:
            raise TypeError(f"placement={placement!r}: use bramble.Shard(0), bramble.Shard(1), bramble.Replicate() or 'auto'")
