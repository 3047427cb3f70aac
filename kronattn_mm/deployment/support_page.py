"""The support table as a page in Markdown, and what a page says, read back."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .support import STATES, TITLES, TOLERANCES, Row

# Of each, the distribution that is installed.
_PACKAGES = (
    ('torch',),
    ('onnx',),
    ('onnxscript',),
    ('onnxruntime',),
    ('onedl-mmcv', 'mmcv', 'mmcv-lite'),
)
_MEASURED = 'Measured with '
_ITSELF = ' (†)'
_NOTHING_FOLDED = ' (*)'
WRITTEN_BY = '<!-- Written by `kronattn support'
_HEAD = f"""\
# Which layer works in which form?

{WRITTEN_BY} --page docs/support.md`; edits here are lost. -->

Every cell was measured by the command that wrote this page: the layer in that form, on three inputs
of different height, width and batch, against its straightforward form in float64. The figure is the
largest difference, in units of the largest value. A cell above its tolerance, or a form that cannot
be had, is in bold letters and makes the command fail; a test runs it and compares.

{{setting}}

{{table}}

{{legend}}
"""
_LEGEND = {
    'eager': 'the layer as it is, float32, in inference',
    'compile': '`torch.compile(fullgraph=True, dynamic=True)`: one graph for all three inputs',
    'export': '`torch.export.export` with batch and all sizes left open',
    'onnx': '`torch.onnx.export(dynamo=True)` with the sizes of the example, run by onnxruntime',
    'onnx-dynamic': 'the same with batch and all sizes left open',
    'fused': '`kronattn_mm.plugging.fused` on a convolution, its batch norm and the layer (for '
    'attended convolutions: the layer and its batch norm)',
    'bf16': 'weights and input in bfloat16',
    'fp16': 'weights and input in float16',
}


@dataclass(frozen=True)
class Page:
    """What a page says.

    Attributes:
        setting: The sentence on versions and hardware.
        rows: For each layer its cells as text, in the order of :data:`STATES`.
    """

    setting: str
    rows: Mapping[str, tuple[str, ...]]

    def states(self) -> dict[tuple[str, str], bool]:
        """Say for each layer and form whether it passes."""
        return {
            (name.removesuffix(_ITSELF), state): not cell.startswith('**')
            for name, cells in self.rows.items()
            for state, cell in zip(STATES, cells, strict=True)
        }


def setting(compiler: str) -> str:
    """Say with which versions and on what the cells are measured."""
    versions = []
    for names in _PACKAGES:
        for name in names:
            try:
                versions.append(f'{name} {importlib.metadata.version(name)}')
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return (
        f'{_MEASURED}{", ".join(versions)}, Python {platform.python_version()}; torch.compile with '
        f'the backend {compiler}; {_processor()}, {os.cpu_count()} cores.'
    )


def cells_of(row: Row) -> tuple[str, ...]:
    """Write the cells of a row as text."""
    texts = []
    for cell in row.cells:
        if cell.problem:
            text = f'**fails**: {cell.problem}'.replace('|', r'\|')
        elif not cell.passes:
            text = f'**{cell.difference:.1e}, above {TOLERANCES[cell.state]:.1e}**'
        else:
            text = f'{cell.difference:.1e}' + (_NOTHING_FOLDED if cell.note else '')
        texts.append(text)
    return tuple(texts)


def name_of(row: Row) -> str:
    """Write the name of a row as the page has it."""
    return f'`{row.name}`' + ('' if row.oracle else _ITSELF)


def page_text(page: Page) -> str:
    """Lay out a page."""
    lines = [
        f'| layer | {" | ".join(TITLES[state] for state in STATES)} |',
        f'| --- |{" --- |" * len(STATES)}',
        *(f'| {name} | {" | ".join(cells)} |' for name, cells in page.rows.items()),
    ]
    legend = [
        '| form | is | tolerance |',
        '| --- | --- | --- |',
        *(f'| {TITLES[state]} | {_LEGEND[state]} | {TOLERANCES[state]:.1e} |' for state in STATES),
    ]
    if any(name.endswith(_ITSELF) for name in page.rows):
        legend += [
            '',
            '(†): no straightforward form of this layer is written down yet; it is compared with '
            'itself in float64.',
        ]
    if any(cell.endswith(_NOTHING_FOLDED) for cells in page.rows.values() for cell in cells):
        legend += ['', "(*): nothing is folded, as mmcv's `fuse_conv_bn` knows two axes only."]
    return _HEAD.format(setting=page.setting, table='\n'.join(lines), legend='\n'.join(legend))


def read_page(path: str | Path) -> Page:
    """Read a page that :func:`page_text` laid out.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is another kind of page.
    """
    text = Path(path).read_text(encoding='utf-8')
    found = re.search(rf'^{_MEASURED}.*$', text, re.M)
    head, separator, rest = text.partition(f'| layer | {TITLES[STATES[0]]} |')
    if found is None or not separator:
        raise ValueError(f'{path} is no page of the support table')
    rows = {}
    for line in rest.partition('\n\n')[0].splitlines()[2:]:
        name, *cells = re.split(r' (?<!\\)\| ', line.removeprefix('| ').removesuffix(' |'))
        if len(cells) != len(STATES):
            raise ValueError(f'{path} has a row of {len(cells)} forms, not {len(STATES)}: {name}')
        rows[name] = tuple(cells)
    return Page(found[0], rows)


def differences(wanted: Page, measured: Page) -> list[str]:
    """Say what a page says differently from what was measured: layers, and what works.

    Args:
        wanted (Page): What a page says.
        measured (Page): What was measured now; layers that were not measured are passed over.
    """
    before, now = wanted.states(), measured.states()
    there = {name for name, _ in before}
    lines = [f'{name} is not in the page' for name, _ in now if name not in there]
    lines = list(dict.fromkeys(lines))
    for (name, state), passes in now.items():
        if (name, state) in before and before[name, state] != passes:
            verb = 'works' if passes else 'does not work'
            lines.append(f'{name}, {TITLES[state]}: it {verb}, and the page says otherwise')
    return lines


def merged(before: Page, new: Page, names: Sequence[str]) -> Page:
    """Exchange rows of a page.

    Args:
        before (Page): What the page says.
        new (Page): What was measured anew, in the same setting.
        names (Sequence[str]): All layers with their arguments, in order; rows of others are left
            out.
    """
    found = {}
    for name in names:
        for page in (before, new):
            for row in (f'`{name}`', f'`{name}`{_ITSELF}'):
                if row in page.rows:
                    found[name] = (row, page.rows[row])
    return Page(new.setting, dict(found.values()))


def missing_layers(page: Page, names: Sequence[str]) -> list[str]:
    """Say which of some layers have no row in a page."""
    there = {re.sub(r'[`(].*', '', name.removeprefix('`')) for name in page.rows}
    return [name for name in names if name not in there]


def _processor() -> str:
    """The processor as the kernel calls it: Python often knows no more than x86_64."""
    try:
        text = Path('/proc/cpuinfo').read_text()
    except OSError:
        text = ''
    found = re.search(r'^model name\s*: (.+)$', text, re.M)
    threads = torch.get_num_threads()
    name = found[1].strip() if found else platform.processor() or platform.machine()
    return f'{name}, {threads} thread{"s" * (threads > 1)}'
