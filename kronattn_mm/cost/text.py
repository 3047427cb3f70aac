"""Reports and the paper's tables as plain text: 100 columns, unless a name is very long."""

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .paper_tables import TABLE_2_COLUMNS, TABLE_2_PRINTED, Check
from .quantity import quantity
from .report import NO_FORMULA, CostReport, LayerReport

# Wide enough that nothing is folded: a name in a pipe has to stay in one piece.
_WIDTH = 400
_NONE = '-'


def cost_text(report: CostReport) -> str:
    """Lay out a cost report: one line a layer, totals, shares, and what the columns mean."""
    if not report.layers and not report.convs:
        return nothing_inserted(report)
    blocks = ([_layers_text(report)] if report.layers else []) + (
        [_convs_text(report)] if report.convs else []
    )
    return '\n'.join(['\n\n'.join(blocks), *_notes(report), *_shares(report)])


def _layers_text(report: CostReport) -> str:
    rows = []
    for layer in report.layers:
        paper = layer.paper
        rows.append(
            [
                _name(layer),
                layer.layer,
                _shape(layer),
                quantity(layer.executed.params),
                _NONE if paper is None else quantity(paper.macc),
                _macc(layer),
                quantity(paper.memory) if paper and paper.memory else _NONE,
                *_memory(layer),
            ]
        )
    paper, run = report.paper_total, report.executed_total
    rows.append(
        [
            'total',
            '',
            '',
            quantity(run.params),
            quantity(paper.macc),
            quantity(run.macc),
            quantity(paper.memory),
            quantity(run.allocated),
            quantity(run.kept),
        ]
    )
    lines = [
        plain_table(
            [
                'point',
                'layer',
                'feature map',
                'params',
                'MACC\npaper',
                'MACC\nrun',
                'bytes\npaper',
                'bytes\nrun',
                'bytes\nkept',
            ],
            rows,
            left=3,
            total=True,
        ),
        '',
        f"paper  the accounting of the layer's paper: {paper.params:,} parameters,",
        f'       {paper.macc:,} multiply-accumulates, {paper.memory:,} bytes',
        f'run    what this implementation executes: {run.params:,} parameters,',
        f'       {run.macc:,} multiply-accumulates, {run.allocated:,} bytes in all',
        '       tensors that a forward pass makes (fewer at any one time)',
        f"kept   {run.kept:,} bytes kept for the backward pass, without each layer's input",
        '       All for one image, float32; softmax, norms and sums are no multiply-accumulates.',
    ]
    without = [layer for layer in report.layers if layer.paper is None]
    if without:
        names = ', '.join(sorted({layer.layer for layer in without}))
        lines.append(
            f"{_NONE}      {NO_FORMULA}: {names}; not in the total of the paper's accounting"
        )
    if any(layer.with_cp for layer in report.layers):
        lines.append('       With with_cp a layer keeps nothing but its input, and is run twice')
    return '\n'.join(lines)


def _convs_text(report: CostReport) -> str:
    rows = []
    for conv in report.convs:
        paper = conv.paper
        rows.append(
            [
                _name(conv),
                conv.layer,
                _shape(conv),
                quantity(conv.executed.params),
                _NONE if paper is None else quantity(paper.params),
                _NONE if paper is None else quantity(paper.macc),
                _macc(conv),
            ]
        )
    paper, run = report.convs_paper_total, report.convs_executed_total
    rows.append(
        [
            'total',
            '',
            '',
            quantity(run.params),
            quantity(paper.params),
            quantity(paper.macc),
            quantity(run.macc),
        ]
    )
    return '\n'.join(
        [
            plain_table(
                [
                    'replaced convolution',
                    'by',
                    'input',
                    'params',
                    'params\nadded',
                    'MACC\nadded',
                    'MACC\nrun',
                ],
                rows,
                left=3,
                total=True,
            ),
            '',
            "added  what the attention adds to the convolutions, in its paper's accounting:",
            f'       {paper.params:,} parameters, {paper.macc:,} multiplications for one image',
            'run    what the convolutions execute, attention included: '
            f'{run.macc:,} multiply-accumulates',
        ]
    )


def summary_text(report: CostReport) -> str:
    """Lay out what sits where: inserted layers, replaced convolutions, totals and shares."""
    if not report.layers and not report.convs:
        return nothing_inserted(report)
    lines = []
    if report.layers:
        rows = [
            [
                _name(layer),
                layer.layer,
                _shape(layer),
                f'{layer.executed.params:,}',
                _macc(layer),
                _settings(layer),
            ]
            for layer in report.layers
        ]
        total = report.executed_total
        rows.append(['total', '', '', f'{total.params:,}', quantity(total.macc), ''])
        settings = any(_settings(layer) for layer in report.layers)
        header = ['point', 'layer', 'feature map', 'parameters', 'MACs', 'settings']
        if not settings:
            header, rows = header[:-1], [row[:-1] for row in rows]
        lines.append(plain_table(header, rows, left=3, total=True))
    if report.convs:
        rows = [
            [_name(conv), conv.layer, _shape(conv), f'{conv.executed.params:,}', _macc(conv)]
            for conv in report.convs
        ]
        lines += [''] * bool(lines) + [
            plain_table(['replaced convolution', 'by', 'input', 'parameters', 'MACs'], rows, left=3)
        ]
    return '\n'.join(lines + _notes(report) + _shares(report))


def heading(path: str, model: str, report: CostReport, source: str) -> str:
    """Say which model is reported on and where the size of the image comes from."""
    height, width = report.image_shape
    return f'{path}: {model}, one image of {height} x {width}\n({source})\n'


def nothing_inserted(report: CostReport) -> str:
    """Say that there is nothing to count."""
    return f'no layer is inserted into this model ({report.model_params:,} parameters)'


def paper_table_2_text(rows: Sequence[Sequence[Check]]) -> str:
    """Lay out the cost columns of Table 2: ours, the printed figure, and whether they agree."""
    header = ['layers'] + [f'{column}\nours = paper' for column in TABLE_2_COLUMNS]
    body = [
        [name, *(f'{cell.ours} {_mark(cell)} {cell.printed}' for cell in row)]
        for name, row in zip(TABLE_2_PRINTED, rows, strict=True)
    ]
    return '\n'.join(
        [
            'Efficient Attention, Table 2: cost of the attention modules for one 896 x 1280 image.',
            'EA: efficient attention, NL: non-local; memory in bytes.',
            '',
            plain_table(header, body, left=1),
            '',
            _verdict(cell for row in rows for cell in row),
        ]
    )


def paper_examples_text(checks: Sequence[Check]) -> str:
    """Lay out the examples in the paper's text beside ours."""
    body = [
        [check.what, check.printed, check.ours, 'agrees' if check.matches else 'DIFFERS']
        for check in checks
    ]
    return '\n'.join(
        [
            'Efficient Attention, examples: d = d_v = 2 d_k = 64 (32 in Table 7), no reprojection.',
            '',
            plain_table(['example', 'paper', 'ours', ''], body, left=1),
            '',
            _verdict(checks),
        ]
    )


def plain_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int, total: bool = False
) -> str:
    """Lay out a table; ``left`` columns are aligned left, a row of totals is ruled off."""
    # Lines of ASCII, so that the text survives any pipe and locale.
    table = Table(
        box=box.Box('    \n    \n -- \n    \n -- \n -- \n    \n    \n', ascii=True),
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, title in enumerate(header):
        justify = 'left' if index < left or title == 'settings' else 'right'
        table.add_column(Text(title), justify=justify, no_wrap=True)
    rows = list(rows)
    for index, row in enumerate(rows):
        table.add_row(*map(Text, row), end_section=total and index == len(rows) - 2)
    stream = io.StringIO()
    Console(file=stream, width=_WIDTH, color_system=None, highlight=False).print(table)
    return '\n'.join(line.rstrip() for line in stream.getvalue().rstrip('\n').split('\n'))


def _name(layer: LayerReport) -> str:
    return layer.name if layer.reached else f'{layer.name} *'


def _shape(layer: LayerReport) -> str:
    return 'unknown' if layer.shape is None else 'x'.join(map(str, layer.shape[1:]))


def _macc(layer: LayerReport) -> str:
    if layer.shape is None:
        return _NONE
    return ('' if layer.executed.complete else '> ') + quantity(layer.executed.macc)


def _memory(layer: LayerReport) -> tuple[str, str]:
    if layer.shape is None:
        return _NONE, _NONE
    return quantity(layer.executed.allocated), quantity(layer.executed.kept)


def _settings(layer: LayerReport) -> str:
    return ' '.join(name for name in ('norm_eval', 'with_cp') if getattr(layer, name))


def _notes(report: CostReport) -> list[str]:
    items = report.layers + report.convs
    notes = []
    if not all(item.reached for item in items):
        notes = [
            f'*      not run by {" + ".join(report.parts)} (but by a second stage, perhaps):',
            '       one call, on the shape that it saw when the model was built',
        ]
    if not all(item.executed.complete for item in items):
        notes.append('>      a lower bound: it runs an operator that torch cannot see into')
    return notes


def _shares(report: CostReport) -> list[str]:
    if not report.layers:
        return ['', f'whole model: {report.model_params:,} parameters']
    params = report.executed_total.params
    lines = [
        '',
        f'share of the model: {_percent(report.params_share)} of {report.model_params:,} '
        f'parameters ({_increase(params, report.model_params)})',
    ]
    share = report.macc_share
    if share is None:
        lines += [
            f'multiply-accumulates of {" + ".join(report.parts)} cannot be counted without data:',
            f'    {report.problem.partition(". ")[0]}',
        ]
    else:
        lines.append(
            f'                    {_percent(share)} of {report.model_macc:,} '
            f'multiply-accumulates of {" + ".join(report.parts)}'
        )
        change = _increase(share * report.model_macc, report.model_macc)
        lines.append(f'                    ({change})')
    return lines


def _increase(part: float, whole: float) -> str:
    if part == whole:
        return 'nothing else has any'
    return f'+{_percent(part / (whole - part))} over the model without them'


def _percent(share: float) -> str:
    return f'{share:.1%}' if share >= 0.01 else f'{share:.2%}'


def _mark(check: Check) -> str:
    return '=' if check.matches else '!='


def _verdict(checks: Iterable[Check]) -> str:
    checks = list(checks)
    wrong = [check.what for check in checks if not check.matches]
    text = f'{len(checks) - len(wrong)} of {len(checks)} figures agree'
    return f'{text}; these do not: {"; ".join(wrong)}' if wrong else text
