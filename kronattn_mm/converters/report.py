"""What became of every key, as text and as JSON."""

import json
import os
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, ConversionError
from .conversion import Conversion
from .target import Fit


def report_dict(
    source: Checkpoint, conversion: Conversion, fit: Fit | None, meta_dropped: dict[str, str]
) -> dict[str, Any]:
    """Return the whole report as plain values; see :func:`report_text` for what it holds."""
    fit = fit or Fit()
    mapped = [
        dict(key=key, origins=list(conversion.origins[key]), shape=list(value.shape))
        for key, value in conversion.state.items()
        if conversion.origins[key]
    ]
    made = [key for key, origins in conversion.origins.items() if not origins]
    return dict(
        source=str(source.path),
        counts=dict(
            mapped=len(mapped),
            renamed=len(conversion.renamed()),
            new=len(made) + len(fit.new),
            dropped=len(conversion.dropped),
            missing=len(fit.missing),
            unexpected=len(fit.unexpected),
            mismatched=len(fit.mismatched),
        ),
        mapped=mapped,
        made=made,
        new=list(fit.new),
        dropped=dict(conversion.dropped),
        missing=list(fit.missing),
        missing_allowed=list(fit.allowed),
        unexpected=list(fit.unexpected),
        mismatched=dict(fit.mismatched),
        entries_dropped=list(source.others),
        not_tensors=list(source.ignored),
        meta_dropped=meta_dropped,
        notes=list(conversion.notes),
    )


def report_text(report: dict[str, Any], checked: bool | None, verbose: bool = False) -> str:
    """Lay the report out: counts, what was left out, notes; every key if ``verbose``.

    Args:
        report (dict): Of :func:`report_dict`.
        checked (bool, optional): Whether the result was compared with a model; without one there
            is nothing to say of missing keys and shapes. None if there is nothing to compare.
        verbose (bool): List every key. Defaults to False.
    """
    counts = report['counts']
    same = counts['mapped'] - counts['renamed']
    lines = [
        f'{counts["mapped"]:6} mapped, {counts["renamed"]} of them renamed, '
        f'{same} made of others or as they were'
    ]
    if verbose:
        for entry in report['mapped']:
            origins = ' + '.join(entry['origins'])
            name = (
                entry['key']
                if [entry['key']] == entry['origins']
                else f'{origins} -> {entry["key"]}'
            )
            lines.append(f'         {name} {tuple(entry["shape"])}')
    lines.append(
        f'{counts["new"]:6} new'
        + (' (the model keeps what it starts with)' if report['new'] else '')
    )
    lines += [f'         {key}' for key in [*report['made'], *report['new']] if verbose]
    lines.append(f'{counts["dropped"]:6} dropped')
    if verbose:
        lines += [f'         {key}: {reason}' for key, reason in report['dropped'].items()]
    else:
        lines += _reasons(report['dropped'])
    if checked:
        for name, words in (
            ('missing', 'missing'),
            ('unexpected', 'not in the model'),
            ('mismatched', 'of another shape'),
        ):
            found = report[name]
            lines.append(f'{counts[name]:6} {words}')
            if verbose and isinstance(found, dict):
                lines += [f'         {key} {shapes}' for key, shapes in found.items()]
            elif verbose:
                lines += [f'         {key}' for key in found]
        if report['missing_allowed']:
            lines.append(f'       {len(report["missing_allowed"])} missing that may be')
    elif checked is not None:
        lines.append('       shapes and missing keys were not checked (no --config)')
    if report['entries_dropped']:
        lines.append(f'entries left out: {", ".join(report["entries_dropped"])}')
    lines += [
        f'left out of the metadata: {", ".join(keys)} ({why})'
        for why, keys in _by_reason(report['meta_dropped']).items()
    ]
    return '\n'.join([*lines, *(f'- {note}' for note in report['notes'])])


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write the report as JSON under a temporary name, and rename it.

    Raises:
        ConversionError: If the file cannot be written.
    """
    part = path.with_name(f'.{path.name}.{os.getpid()}.part')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(report, indent=2) + '\n', encoding='utf-8')
        part.replace(path)
    except OSError as error:
        raise ConversionError(f'the report cannot be written to {path}: {error}') from error
    finally:
        part.unlink(missing_ok=True)


def _reasons(dropped: dict[str, str]) -> list[str]:
    """One line for each reason, with its number of keys and the first of them."""
    return [
        f'         {keys[0]}{f" and {len(keys) - 1} more" if len(keys) > 1 else ""}: {reason}'
        for reason, keys in _by_reason(dropped).items()
    ]


def _by_reason(dropped: dict[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, reason in dropped.items():
        groups.setdefault(reason, []).append(key)
    return groups
