"""The report of any run of mmengine, finished or broken, from what it left in its work folder.

Scalars, pictures, the environment in the log, checkpoints and the dumped config are read; nothing
is trained or evaluated. What is not there is said or left out, never made up.
"""

import ast
import contextlib
import importlib.util
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config

from .report import axes_on, read_scalars, replacing, write_page

PICTURES = 8
_SIDE = 1400  # pixels; larger pictures are shrunk
_MARKS = 'osD^vPX*'
_LOSSES = 4
# How metrics are called on the page; others keep their names.
_METRICS = {
    'coco/bbox_mAP_50': 'box AP50',
    'coco/bbox_mAP': 'box AP',
    'coco/segm_mAP_50': 'mask AP50',
    'coco/segm_mAP': 'mask AP',
    'pascal_voc/mAP': 'mean AP',
    'mIoU': 'mean IoU, %',
    'aAcc': 'pixel accuracy, %',
    'mAcc': 'mean class accuracy, %',
    'accuracy/top1': 'top-1 accuracy, %',
    'accuracy/top5': 'top-5 accuracy, %',
    'single-label/f1-score': 'F1, %',
}
_NO_METRICS = ('data_time', 'time', 'step', 'epoch', 'iter', 'lr', 'base_lr', 'memory')
_ENVIRONMENT = (
    'Python',
    'PyTorch',
    'TorchVision',
    'MMEngine',
    'OpenCV',
    'CUDA available',
    'GPU',
    'CUDA_HOME',
    'NVCC',
    'GCC',
    'seed',
    'deterministic',
    'Distributed training',
    'GPU number',
)


class ReportError(ValueError):
    """A folder of which no report can be made; the message says why."""


@dataclass
class Run:
    """What a work folder holds.

    Attributes:
        folder: The folder.
        config: The config as mmengine dumped it; None if there is none.
        config_file: Where it was found.
        training: Training records, each with ``step``.
        validation: Validation records, each with ``step``.
        pictures: The last picture of each name, predictions first.
        attention: The last attention map of each name.
        checkpoints: Checkpoints, the newest last.
        environment: Names and values from the log.
        log: The newest log; None if there is none.
        problem: Why the config could not be read, if it could not.
    """

    folder: Path
    config: Config | None = None
    config_file: Path | None = None
    training: list[dict] = field(default_factory=list)
    validation: list[dict] = field(default_factory=list)
    pictures: list[Path] = field(default_factory=list)
    attention: list[Path] = field(default_factory=list)
    checkpoints: list[Path] = field(default_factory=list)
    environment: list[tuple[str, str]] = field(default_factory=list)
    log: Path | None = None
    problem: str = ''

    @property
    def by_epoch(self) -> bool:
        """Whether the run counts epochs."""
        train = (self.config or {}).get('train_cfg') or {}
        if 'by_epoch' in train:
            return bool(train['by_epoch'])
        return 'max_epochs' in train or bool(self.training and 'epoch' in self.training[0])

    @property
    def length(self) -> int | None:
        """How many epochs or iterations the config asks for."""
        train = (self.config or {}).get('train_cfg') or {}
        return train.get('max_epochs' if self.by_epoch else 'max_iters')

    @property
    def done(self) -> int:
        """How many of them are known to be done."""
        numbers = [
            int(match[1])
            for path in self.checkpoints
            if (match := re.fullmatch(r'(?:epoch|iter)_(\d+)\.pth', path.name))
        ]
        numbers += [record['step'] for record in self.validation]
        numbers += [
            record['epoch'] - 1 if self.by_epoch and 'epoch' in record else record['step']
            for record in self.training[-1:]
        ]
        return max(numbers, default=0)


def read_run(folder: str | Path) -> Run:
    """Read what mmengine left in a work folder.

    Raises:
        ReportError: If the folder does not exist or no run left anything in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ReportError(f'{folder} is not a folder')
    run = Run(folder)
    logs = sorted(folder.glob('*/*.log'))
    files = [
        *sorted(folder.glob('*.py'), key=lambda path: path.stat().st_mtime),
        *sorted(folder.glob('*/vis_data/config.py')),
    ]
    if not logs and not list(folder.glob('*/vis_data')):
        near = [path.parent for path in sorted(folder.glob('*/*/*.log'))][:1]
        hint = f'; did you mean {near[0].parent}?' if near else ''
        raise ReportError(
            f'{folder} is not the work folder of a run: it has no */*.log and no */vis_data{hint}'
        )
    if files:
        dumped = [path for path in files if path.parent == folder]
        run.config_file = dumped[-1] if dumped else files[-1]
        try:
            # What it imports is not needed to read it, and may be gone.
            run.config = Config.fromfile(str(run.config_file), import_custom_modules=False)
        except Exception as error:  # a config is a program
            run.problem = f'Its config {run.config_file.name} cannot be read: {error}'
    with contextlib.suppress(FileNotFoundError):
        run.training, run.validation = read_scalars(folder)
    run.log = logs[-1] if logs else None
    if run.log is not None:
        run.environment = _environment(run.log.read_text(encoding='utf-8', errors='replace'))
    run.checkpoints = sorted(folder.glob('*.pth'), key=lambda path: path.stat().st_mtime)
    newest = _newest_pictures(folder)
    run.attention = [path for name, path in newest.items() if name.startswith('attention_')]
    run.pictures = [path for name, path in newest.items() if not name.startswith('attention_')]
    return run


def _newest_pictures(folder: Path) -> dict[str, Path]:
    """The picture of the last step for each name that the visualizer was given."""
    newest: dict[str, tuple[int, Path]] = {}
    for path in sorted(folder.glob('*/vis_data/vis_image/*.png')):
        name, _, step = path.stem.rpartition('_')
        step = int(step) if step.isdigit() else 0
        if step >= newest.get(name, (-1, path))[0]:
            newest[name] = (step, path)
    return {name: path for name, (_, path) in newest.items()}


def _environment(log: str) -> list[tuple[str, str]]:
    """What the log says of the machine, in the order of :data:`_ENVIRONMENT`."""
    head = log.partition('Config:\n')[0]
    found = dict(re.findall(r'^    ([\w ,.]+): (.+)$', head, re.MULTILINE))
    rows = []
    for name in _ENVIRONMENT:
        rows += [
            (key, value)
            for key, value in found.items()
            if key == name or (name == 'GPU' and re.fullmatch(r'GPU [\d,]+', key))
        ]
    return rows


# ---------------------------------------------------------------- the page


def write_report(
    folder: str | Path,
    out: str | Path,
    source: str | Path | None = None,
    image_shape: tuple[int, int] | None = None,
    pictures: int = PICTURES,
) -> Run:
    """Write the report of a run as one HTML file.

    Args:
        folder (str or Path): The ``--work-dir`` of the run.
        out (str or Path): The HTML file.
        source (str or Path, optional): The config as it was written, for the differences to its
            base. Defaults to None: a config of the same name in the installed packages.
        image_shape (tuple[int, int], optional): Height and width of the image for shapes and cost.
            Defaults to None: what the config's test pipeline resizes to.
        pictures (int): Most pictures of predictions. Defaults to 8.

    Returns:
        Run: What was found.

    Raises:
        ReportError: If no run left anything in the folder.
    """
    run = read_run(folder)
    notes = _notes(run)
    with tempfile.TemporaryDirectory(prefix='report_') as temporary:
        drawings = Path(temporary)
        shown = [_shrunk(path, drawings) for path in _spread(run.pictures, pictures)]
        maps = [
            (name, [_shrunk(path, drawings) for path in paths])
            for name, paths in _by_layer(run.attention[:pictures]).items()
        ]
        told = dict(status='', differences=(), differences_note='', cost='')
        if run.config is not None:
            told |= inserted_and_changed(run.config_file, source, image_shape)
        text = '' if run.config is None else run.config.pretty_text
        write_page(
            out,
            title=_title(run),
            summary=_summary(run),
            notes=notes,
            figures=_figures(run),
            figures_note=_figures_note(run),
            curves=list(_curves(run, drawings)),
            predictions=shown,
            halves=False,
            attention=maps,
            gates=list(_gates(run, drawings)),
            predictions_note='The pictures that the run itself drew last of each of its images, '
            'spread over what it drew and not chosen by how well they came out. What is beside '
            'what in them is up to its visualizer: mostly ground truth left, prediction right.',
            cost_command='',
            environment=_rows(run),
            commands=[f'kronattn report {folder}'],
            config_name='',
            config_source='',
            config_full=text,
            insertion='',
            library=(run.config or {}).get('default_scope') or 'mmengine',
            log=_tail(run) if notes else '',
            **told,
        )
    return run


def inserted_and_changed(
    config_file: str | Path, source: str | Path | None, image_shape: tuple[int, int] | None = None
) -> dict[str, Any]:
    """The parts of a page that a config alone tells.

    Args:
        config_file (str or Path): The whole config.
        source (str or Path, optional): The config as written, with its ``_base_``; see
            :func:`write_report`.
        image_shape (tuple[int, int], optional): Height and width of the image.

    Returns:
        dict: ``status``, ``cost``, ``differences`` and ``differences_note`` for
        :func:`.report.write_page`.
    """
    told = _model_parts(config_file, image_shape)
    config = Config.fromfile(str(config_file), import_custom_modules=False)
    base, note = find_base(config_file, source)
    told['differences_note'] = note
    told['differences'] = [] if base is None else differences(base, config)
    return told


def _model_parts(config_file: str | Path, image_shape: tuple[int, int] | None) -> dict[str, str]:
    from ..cost.config import default_image_shape, load_model, quiet
    from ..cost.report import cost_report
    from ..cost.text import cost_text
    from ..listing.status import status_text

    try:
        model, config = load_model(config_file)
        shape, where = (
            default_image_shape(config) if image_shape is None else (image_shape, 'as given')
        )
        with quiet():
            status, cost = status_text(model, shape), cost_text(cost_report(model, shape))
    except Exception as error:  # of foreign code; the rest of the page does not depend on it
        return dict(status=f'not known: {error}', cost='')
    head = f'one image of {shape[0]} x {shape[1]} ({where}), on or off as the config says\n\n'
    return dict(status=head + status, cost=cost)


def _by_layer(pictures: Sequence[Path]) -> dict[str, list[Path]]:
    """Attention maps by the layer in their name, `attention_<layer>_<picture>_<step>.png`."""
    layers: dict[str, list[Path]] = {}
    for path in pictures:
        layers.setdefault(path.stem.split('_', 1)[1].rsplit('_', 2)[0], []).append(path)
    return layers


def _title(run: Run) -> str:
    name = (
        run.folder.resolve().name
        if run.config_file is None or run.config_file.name == 'config.py'
        else run.config_file.stem
    )
    kind = ((run.config or {}).get('model') or {}).get('type', '')
    return f'{name}: {kind}' if kind else name


def _summary(run: Run) -> str:
    unit = 'epochs' if run.by_epoch else 'iterations'
    if run.length is None:
        return f'A run in {run.folder.resolve().name}, whose length is not known.'
    return f'A run in {run.folder.resolve().name}: {run.done:,} of {run.length:,} {unit} are done.'


def _notes(run: Run) -> list[str]:
    notes = []
    if run.length is not None and run.done < run.length:
        notes.append(
            'This run has not finished, or it was stopped: what follows is how far it came.'
        )
    if not run.training:
        notes.append('It left no training scalars, so that there are no curves.')
    elif not all(math.isfinite(record.get('loss', 0)) for record in run.training):
        first = next(record for record in run.training if not math.isfinite(record['loss']))
        notes.append(f'Its loss is not a number from step {first["step"]:,} on.')
    if run.config is None:
        notes.append(run.problem or 'It left no config, so that nothing can be said of its model.')
    if run.training and not run.validation:
        notes.append('It was never validated, so that there is no metric.')
    if not run.checkpoints:
        notes.append('It left no checkpoint.')
    return notes


def _figures(run: Run) -> list[tuple[str, str]]:
    figures = []
    if run.validation:
        for key in _metric_names(run.validation)[:4]:
            values = [record[key] for record in run.validation if key in record]
            figures.append((_METRICS.get(key, key), _number(values[-1])))
    if run.training:
        figures.append(('last loss', _number(run.training[-1]['loss'])))
        if seconds := _seconds(run.training):
            figures.append(('training steps took', _duration(seconds)))
        memory = max((record.get('memory', 0) for record in run.training), default=0)
        if memory:
            figures.append(('GPU memory', f'{memory / 1024:.1f} GiB'))
    return figures


def _figures_note(run: Run) -> str:
    if not run.validation:
        return ''
    unit = 'epoch' if run.by_epoch else 'iteration'
    text = f'Metrics of the last validation, after {unit} {run.validation[-1]["step"]:,}.'
    for key in _metric_names(run.validation)[:1]:
        steps = {record['step']: record[key] for record in run.validation if key in record}
        best = max(steps, key=steps.get)
        if steps[best] > list(steps.values())[-1]:
            text += (
                f' {_METRICS.get(key, key)} was largest, {_number(steps[best])}, after '
                f'{unit} {best:,}.'
            )
    return text


def _seconds(training: Sequence[Mapping]) -> float:
    """Time of all steps: each record has the mean over those since the one before."""
    total, before = 0.0, 0
    for record in training:
        total += record.get('time', 0.0) * max(record['step'] - before, 0)
        before = record['step']
    return total


def _rows(run: Run) -> list[tuple[str, str]]:
    rows = list(run.environment)
    if run.log is not None:
        rows.append(('Log', run.log.name))
    if run.checkpoints:
        last = run.checkpoints[-1]
        rows.append(
            (
                'Checkpoints',
                f'{len(run.checkpoints)}, the newest {last.name} '
                f'({last.stat().st_size / 1e6:.1f} MB)',
            )
        )
    return rows


def _tail(run: Run, lines: int = 25) -> str:
    if run.log is None:
        return ''
    return '\n'.join(run.log.read_text(encoding='utf-8', errors='replace').splitlines()[-lines:])


# ---------------------------------------------------------------- curves and gates


def _curves(run: Run, drawings: Path) -> Iterator[tuple[Path, str]]:
    unit = 'epoch' if run.by_epoch else 'iteration'
    if run.training:
        x = _progress(run.training)
        parts = [
            key for key in run.training[-1] if 'loss' in key and key != 'loss' and 'acc' not in key
        ]
        size = {key: max(record.get(key, 0) for record in run.training) for key in parts}
        largest = sorted(parts, key=size.get, reverse=True)[:_LOSSES]
        lines = {'all losses': (x, [record.get('loss', math.nan) for record in run.training])}
        lines |= {
            key: (x, [record.get(key, math.nan) for record in run.training])
            for key in (largest if len(parts) > 1 else [])
        }
        yield (
            _draw(drawings / 'loss.png', 'Training loss', unit, 'loss', lines, dots=False),
            'Training loss',
        )
    for title, names in _metric_groups(run.validation):
        lines = {_METRICS.get(key, key): _points(run.validation, key) for key in names}
        yield (
            _draw(drawings / f'metrics {title}.png', 'Validation', unit, title, lines),
            f'Validation metrics: {", ".join(lines)}',
        )
    if run.training and 'lr' in run.training[0]:
        lines = {
            'learning rate': (
                _progress(run.training),
                [record.get('lr', math.nan) for record in run.training],
            )
        }
        yield (
            _draw(drawings / 'lr.png', 'Learning rate', unit, 'learning rate', lines, dots=False),
            'Learning rate',
        )


def _gates(run: Run, drawings: Path) -> Iterator[tuple[Path, str]]:
    unit = 'epoch' if run.by_epoch else 'iteration'
    shares = [
        key
        for key in ('gate/saturated', 'gate/attention_below', 'gate/trunk_below', 'gate/both_below')
        if any(key in item for item in run.validation)
    ]
    if shares:
        lines = {
            key.partition('/')[2].replace('_', ' '): _points(run.validation, key) for key in shares
        }
        yield (
            _draw(
                drawings / 'gates.png',
                'Channels whose gate passes no gradient',
                unit,
                'share of the channels',
                lines,
            ),
            'Saturation of gates over the run',
        )
    lambdas = _lambdas(run.checkpoints[-1]) if run.checkpoints else {}
    if lambdas:
        path = drawings / 'lambda.png'
        names = list(lambdas)
        height = max(3.2, 0.22 * len(names) + 1)
        with axes_on(
            path, f'Lambda in {run.checkpoints[-1].name}', 'lambda', '', size=(6.4, min(height, 14))
        ) as axes:
            for row, name in enumerate(names):
                values = lambdas[name]
                axes.plot([min(values), max(values)], [row, row], '-', color='#0b5394')
                axes.plot(sum(values) / len(values), row, 'o', color='#c2500a', markersize=4)
            axes.axvline(0, color='#777', linewidth=0.8)
            axes.set_yticks(range(len(names)), names, fontsize=7)
            axes.invert_yaxis()
        yield path, 'Mean (dot) and range (line) of lambda in each layer'


def _lambdas(checkpoint: Path) -> dict[str, list[float]]:
    """Lambda of each layer of a checkpoint: parameters `lambda_` of the attended layers."""
    import torch

    try:
        content = torch.load(checkpoint, map_location='cpu', weights_only=False)  # of this run
    except Exception:  # half a file can raise anything, and a report does not depend on it
        return {}
    state = content.get('state_dict', content)
    return {
        key.removesuffix('.lambda_').removesuffix('.attention'): value.flatten().tolist()
        for key, value in state.items()
        if key.endswith('lambda_')
    }


def _progress(training: Sequence[Mapping]) -> list[float]:
    """Epochs as they pass, where the records count them; else iterations."""
    if not all('epoch' in record for record in training):
        return [record['step'] for record in training]
    length = max(record['step'] / record['epoch'] for record in training)
    return [record['step'] / length for record in training]


def _points(records: Sequence[Mapping], key: str) -> tuple[list, list]:
    found = [(record['step'], record[key]) for record in records if key in record]
    return [step for step, _ in found], [value for _, value in found]


def _metric_names(validation: Sequence[Mapping]) -> list[str]:
    """The metrics of the records, those that the page has names for first."""
    names = dict.fromkeys(
        key
        for record in validation
        for key, value in record.items()
        if isinstance(value, (int, float))
        and key not in _NO_METRICS
        and not key.startswith('gate/')
    )
    known = [key for key in _METRICS if key in names]
    return known or list(names)


def _metric_groups(validation: Sequence[Mapping]) -> list[tuple[str, list[str]]]:
    """Put fractions and percentages into charts of their own."""
    groups: dict[str, list[str]] = {}
    for key in _metric_names(validation):
        values = [record[key] for record in validation if key in record]
        kind = 'metric (from 0 to 1)' if max(map(abs, values)) <= 1 else 'metric (percent)'
        groups.setdefault(kind, []).append(key)
    return [(kind, names[: len(_MARKS)]) for kind, names in groups.items()]


def _draw(
    path: Path,
    title: str,
    unit: str,
    label: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    dots: bool = True,
) -> Path:
    """Draw lines that differ in colour, dash and mark."""
    colours, dashes = ('#0b5394', '#c2500a', '#3d7a1f', '#7a3b94'), ('-', '--', ':', '-.')
    with axes_on(path, title, unit, label) as axes:
        for number, (name, (x, y)) in enumerate(lines.items()):
            axes.plot(
                x,
                y,
                dashes[number % 4],
                color=colours[number % 4],
                label=name,
                marker=_MARKS[number % len(_MARKS)] if dots else None,
                markersize=5,
                linewidth=2.2 if number == 0 else 1.5,
            )
        if len(lines) > 1:
            axes.legend(fontsize=8)
    return path


# ---------------------------------------------------------------- configs and their bases


def find_base(config_file: str | Path, source: str | Path | None) -> tuple[Config | None, str]:
    """Find what a config was derived from.

    Args:
        config_file (str or Path): The dumped config; its name is that of the config as written.
        source (str or Path, optional): The config as written. Defaults to None: one of that name
            in this package's configs or in those of the installed libraries.

    Returns:
        tuple[Config or None, str]: The base, and what to say of it.
    """
    if source is None:
        found = list(_configs_named(Path(config_file).name))
        if len(found) != 1:
            return None, (
                'Its base is not known: no installed config, or more than one, has its '
                'name. Name the config as written with --config to see the differences.'
            )
        source = found[0]
    names = _base_names(Path(source))
    if not names:
        return None, f'{Path(source).name} has no base.'
    with tempfile.TemporaryDirectory(prefix='base_') as folder:
        file = Path(folder) / 'base.py'
        file.write_text(f'_base_ = {names!r}\n', encoding='utf-8')
        try:
            base = Config.fromfile(str(file), import_custom_modules=False)
        except Exception as error:  # of a package that is not installed, for example
            return None, f'The base of {Path(source).name} cannot be read: {error}'
    shown = ', '.join(name if '::' in name else Path(name).name for name in names)
    return base, f'Derived from {shown}.'


def _configs_named(name: str) -> Iterator[Path]:
    for package in ('kronattn_mm', 'mmdet', 'mmseg', 'mmpretrain'):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        root = Path(spec.origin).parent
        folder = next(
            (
                place
                for place in (root / '.mim' / 'configs', root.parent / 'configs')
                if place.is_dir()
            ),
            None,
        )
        if folder is not None:
            yield from sorted({path.resolve() for path in folder.rglob(name)})


def _base_names(source: Path) -> list[str]:
    """What `_base_` of a Python config says, with paths made absolute."""
    for node in ast.parse(source.read_text(encoding='utf-8')).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == '_base_':
            value = ast.literal_eval(node.value)
            names = [value] if isinstance(value, str) else list(value)
            return [
                name if '::' in name else str((source.parent / name).resolve()) for name in names
            ]
    return []


def differences(
    base: Config | Mapping[str, Any], config: Config | Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """Compare two configs entry by entry.

    Returns:
        list[tuple[str, str, str]]: Dotted name, value in the base and value here; ``'-'`` where
        there is none. Helpers at the top level that no part of mmengine reads are left out, since
        what is made of them is listed itself.
    """
    before, after = (dict(_flat(_plain(item))) for item in (base, config))
    rows = []
    for key in dict.fromkeys([*before, *after]):
        if key.partition('.')[0] not in _ENTRIES or key.rpartition('.')[2] == '_scope_':
            continue
        old, new = (_short(values[key]) if key in values else '-' for values in (before, after))
        if old != new:
            rows.append((key, old, new))
    return sorted(rows, key=lambda row: list(_ENTRIES).index(row[0].partition('.')[0]))


_ENTRIES = (
    'model',
    'data_preprocessor',
    'train_dataloader',
    'val_dataloader',
    'test_dataloader',
    'val_evaluator',
    'test_evaluator',
    'optim_wrapper',
    'param_scheduler',
    'train_cfg',
    'val_cfg',
    'test_cfg',
    'auto_scale_lr',
    'default_hooks',
    'custom_hooks',
    'randomness',
    'load_from',
    'resume',
    'env_cfg',
    'log_processor',
    'default_scope',
    'custom_imports',
)


def _plain(config: Any) -> Mapping[str, Any]:
    return config.to_dict() if isinstance(config, Config) else config


def _flat(node: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _flat(value, f'{path}.{key}' if path else str(key))
    elif isinstance(node, (list, tuple)) and any(isinstance(item, Mapping) for item in node):
        for index, value in enumerate(node):
            yield from _flat(value, f'{path}.{index}')
    else:
        yield path, node


def _short(value: Any, most: int = 160) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= most else text[: most - 3] + '...'


# ---------------------------------------------------------------- small things


def _spread(paths: Sequence[Path], most: int) -> list[Path]:
    if len(paths) <= most:
        return list(paths)
    return [paths[round(index * (len(paths) - 1) / max(most - 1, 1))] for index in range(most)]


def _shrunk(path: Path, folder: Path) -> Path:
    """The picture itself, or a smaller copy of a large one."""
    from PIL import Image

    with Image.open(path) as image:
        if max(image.size) <= _SIDE:
            return path
        image.thumbnail((_SIDE, _SIDE))
        with replacing(folder / path.name) as draft:
            image.save(draft, format='PNG')
    return folder / path.name


def _number(value: float) -> str:
    return f'{value:.2f}' if abs(value) < 1000 else f'{value:,.0f}'


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f'{seconds:.0f} s'
    hours, minutes = divmod(round(seconds / 60), 60)
    return f'{hours} h {minutes:02} min' if hours else f'{minutes} min'
