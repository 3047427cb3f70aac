"""What a check of data found, as text and as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..cost.text import plain_table
from .findings import ERROR, KINDS, WARNING, Finding

_NONE = '-'


@dataclass(frozen=True)
class EntryReport:
    """What was found in one data set.

    Attributes:
        name: Where it stands in the config.
        kind: Its class.
        pictures: Number of pictures that are listed.
        objects: Number of boxes, None for sets without.
        used: Number of pictures that the library keeps, None if that was not found out.
        findings: What is wrong.
        same_as: The data set before it that has the same files.
    """

    name: str
    kind: str
    pictures: int = 0
    objects: int | None = None
    used: int | None = None
    findings: tuple[Finding, ...] = ()
    same_as: str | None = None

    def count(self, level: str) -> int:
        """Number of findings of a level."""
        return sum(finding.level == level for finding in self.findings)


@dataclass(frozen=True)
class DataReport:
    """What was found in all data sets of a config.

    Attributes:
        entries: One for each data set, in the order of the config.
    """

    entries: tuple[EntryReport, ...]

    def count(self, level: str) -> int:
        """Number of findings of a level."""
        return sum(entry.count(level) for entry in self.entries)

    @property
    def exit_code(self) -> int:
        """1 if there is an error, 0 if there are at most warnings."""
        return int(self.count(ERROR) > 0)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return dict(
            errors=self.count(ERROR),
            warnings=self.count(WARNING),
            datasets=[
                dict(
                    name=entry.name,
                    type=entry.kind,
                    same_as=entry.same_as,
                    pictures=entry.pictures,
                    objects=entry.objects,
                    used=entry.used,
                    findings=[
                        dict(
                            level=finding.level,
                            kind=finding.kind,
                            place=finding.place,
                            message=finding.message,
                        )
                        for finding in entry.findings
                    ],
                )
                for entry in self.entries
            ],
        )


def report_text(report: DataReport, examples: int = 3) -> str:
    """Lay a report out: a line a data set, then findings by kind with some of each.

    Args:
        report (DataReport): What was found.
        examples (int): How many findings of a kind are written out, 0 for all. Defaults to 3.
    """
    lines = [_table(report.entries), '']
    for entry in report.entries:
        for kind in KINDS:  # errors first
            lines += _group(entry, kind, examples)
    total = f'{report.count(ERROR)} errors, {report.count(WARNING)} warnings'
    return '\n'.join([*lines, total])


def _table(entries: Sequence[EntryReport]) -> str:
    rows = []
    for entry in entries:
        if entry.same_as is not None:
            counts = [str(entry.count(level)) for level in (ERROR, WARNING)]
            rows.append([entry.name, f'as {entry.same_as}', *[_NONE] * 3, *counts])
            continue
        rows.append(
            [
                entry.name,
                entry.kind,
                f'{entry.pictures:,}',
                _NONE if entry.objects is None else f'{entry.objects:,}',
                _NONE if entry.used is None else f'{entry.used:,}',
                f'{entry.count(ERROR):,}',
                f'{entry.count(WARNING):,}',
            ]
        )
    header = ['data set', 'type', 'pictures', 'objects', 'kept', 'errors', 'warnings']
    return plain_table(header, rows, left=2)


def _group(entry: EntryReport, kind: str, examples: int) -> list[str]:
    found = [finding for finding in entry.findings if finding.kind == kind]
    if not found:
        return []
    lines = [f'{KINDS[kind]}: {entry.name}: {kind} ({len(found):,})']
    shown = found[: examples or None]
    lines += [f'    {finding.place}: {finding.message}' for finding in shown]
    if len(found) > len(shown):
        lines.append(f'    and {len(found) - len(shown):,} more')
    return lines
