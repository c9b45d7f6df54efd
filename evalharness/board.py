"""What a leaderboard is made of: tables, rows, and what may be shown beside a main value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evalharness.shown import Record, Score

RankSet = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class BoardRow:
    """Hold one encoder's scores by column, whether it is ranked, and the places that cannot be excluded for it."""

    encoder: str
    scores: dict[str, Score]
    ranked: bool
    reason: str | None = None
    rank: RankSet | None = None

    @property
    def rank_text(self) -> str:
        """Return the rank set as tables show it; a dash where there is none."""
        return "–" if self.rank is None else rank_text(self.rank)


def rank_text(rank: RankSet) -> str:
    """Return a rank set in as few characters as it takes.

    >>> rank_text((1, 1)), rank_text((2, 4))
    ('1', '2–4')
    """
    return str(rank[0]) if rank[0] == rank[1] else f"{rank[0]}–{rank[1]}"


@dataclass(slots=True, kw_only=True)
class BoardTable:
    """Hold one table: a suite and modality, or one axis of one task."""

    title: str
    columns: dict[str, str]  # key -> heading
    rows: list[BoardRow]
    notes: list[str] = field(default_factory=list)
    records: Sequence[Record] = field(default_factory=list)

    @property
    def has_ranks(self) -> bool:
        """Say whether the table shows a rank column."""
        return any(row.rank is not None for row in self.rows)


@dataclass(slots=True, kw_only=True)
class Board:
    """Hold all tables of a leaderboard."""

    tables: list[BoardTable]


def interval_notes(used: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the line that says what the intervals of a table cover."""
    scopes = sorted({f"{record['scope']} ({record['method']})" for record in used if record["scope"]})
    level = next((record["level"] for record in used if record["level"]), None)
    return [f"Intervals: {level:.0%}, over {'; '.join(scopes)}."] if scopes and level else []
