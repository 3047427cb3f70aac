"""A run told in one page: pictures of predictions, curves, and a self-contained HTML file.

The quickstart fills it with what it made; :mod:`.run_report` with what any run left behind.

Reads what mmengine and mmdet leave (``vis_data/scalars.json``, the predictions that ``test.py
--out`` writes) and needs neither of them for the curves and the page.
"""

import base64
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

# Parts of the page that only some runs have.
OPTIONAL = dict(
    notes=(),
    gates=(),
    status='',
    differences=(),
    differences_note='',
    log='',
    halves=True,
    library='mmdet',
)
_TEMPLATE = Path(__file__).with_name('report.html.j2')
# Two colours that differ in brightness too, on white; each line also has its own dash pattern.
_LINES = (('#0b5394', '-'), ('#c2500a', '--'), ('#0b5394', ':'), ('#c2500a', '-.'))


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path`` that becomes ``path`` if nothing is raised."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f'.{path.stem}.', suffix=path.suffix, dir=path.parent)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        draft.chmod(0o644)  # mkstemp makes it private
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file under a temporary name and rename it."""
    with replacing(path) as draft:
        draft.write_text(text, encoding='utf-8')


def read_scalars(work_dir: str | Path) -> tuple[list[dict], list[dict]]:
    """Read what mmengine's LocalVisBackend logged in a work directory.

    A run that was interrupted and resumed has several log folders; where two of them hold the
    same step, the later one counts.

    Args:
        work_dir: The ``--work-dir`` of train.py.

    Returns:
        The training records (with ``step``, ``epoch``, ``loss``...) and the validation records
        (with ``step``, which is the epoch, and ``coco/...``), each in order of ``step``.

    Raises:
        FileNotFoundError: No log is there.
    """
    training: dict[int, dict] = {}
    validation: dict[int, dict] = {}
    files = sorted(Path(work_dir).glob('*/vis_data/scalars.json'))
    if not files:
        raise FileNotFoundError(f'{work_dir} holds no */vis_data/scalars.json')
    for file in files:
        for line in file.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            target = training if 'loss' in record else validation
            target[record['step']] = record
    return (
        [training[step] for step in sorted(training)],
        [validation[step] for step in sorted(validation)],
    )


def draw_loss(training: Sequence[Mapping], path: str | Path) -> None:
    """Draw the total loss and its largest parts over the epochs, as PNG.

    Args:
        training: Training records of :func:`read_scalars`.
        path: Where to write.
    """
    # mmengine counts epochs from 1 and steps through all of them; it logs each epoch's last step.
    length = max(record['step'] / record['epoch'] for record in training)
    x = [record['step'] / length for record in training]
    parts = dict(
        loss='all losses',
        loss_cls='class of a region',
        loss_bbox='box of a region',
        loss_mask='mask of a region',
    )
    with axes_on(path, 'Training loss', 'epoch', 'loss') as axes:
        for (key, label), (colour, dash) in zip(parts.items(), _LINES, strict=True):
            if key in training[0]:
                axes.plot(
                    x,
                    [record.get(key, np.nan) for record in training],
                    dash,
                    color=colour,
                    label=label,
                    linewidth=2.5 if key == 'loss' else 1.5,
                )
        start = np.median([record['loss'] for record in training[: max(5, len(training) // 10)]])
        axes.set_ylim(0, 1.3 * max(start, 0.1))  # the first steps may be far off
        axes.legend()


def draw_precision(validation: Sequence[Mapping], path: str | Path) -> None:
    """Draw box and mask AP on the held-out pictures over the epochs, as PNG.

    Args:
        validation: Validation records of :func:`read_scalars`.
        path: Where to write.
    """
    lines = {
        'coco/bbox_mAP_50': 'box AP50',
        'coco/segm_mAP_50': 'mask AP50',
        'coco/bbox_mAP': 'box AP',
        'coco/segm_mAP': 'mask AP',
    }
    with axes_on(path, 'Held-out pictures', 'epoch', 'average precision') as axes:
        for (key, label), (colour, dash) in zip(lines.items(), _LINES, strict=True):
            points = [(record['step'], record[key]) for record in validation if key in record]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    dash,
                    color=colour,
                    marker='o',
                    markersize=4,
                    label=label,
                    linewidth=2,
                )
        axes.set_ylim(0, max(0.05, min(1, 1.15 * axes.get_ylim()[1])))
        if axes.lines:
            axes.legend()
        else:  # mmdet reports no precision where nothing was found
            axes.text(0.5, 0.5, 'nothing was found', ha='center', transform=axes.transAxes)


@contextmanager
def axes_on(
    path: str | Path, title: str, x: str, y: str, size: tuple[float, float] = (6.4, 4)
) -> Iterator[Any]:
    """Yield axes that are written as a PNG at the end; ``size`` is in inches, at 130 dpi."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=size, dpi=130, layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(title=title, xlabel=x, ylabel=y)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    yield axes
    if x in ('epoch', 'iteration'):
        axes.set_xlim(left=0)
    with replacing(path) as draft:
        figure.savefig(draft, format='png')


def choose_pictures(
    predictions: Sequence[Mapping], annotation_file: str | Path, count: int
) -> list[Mapping]:
    """Choose pictures spread over the set, each with at least two objects where possible.

    Not the best ones: nothing about the predictions enters the choice.

    Args:
        predictions: As :func:`draw_predictions` takes them.
        annotation_file: The COCO file with their ground truth.
        count: How many.
    """
    objects: dict[int, int] = {}
    for entry in json.loads(Path(annotation_file).read_text())['annotations']:
        objects[entry['image_id']] = objects.get(entry['image_id'], 0) + 1
    busy = [one for one in predictions if objects.get(one['img_id'], 0) >= 2]
    pool = busy if len(busy) >= count else list(predictions)
    places = np.linspace(0, len(pool) - 1, min(count, len(pool))).round().astype(int)
    return [pool[place] for place in places]


def choose_score(predictions: Sequence[Mapping], score: float, fewest: int) -> float:
    """``score``, or where no prediction reaches it, what the best ``fewest`` of them reach."""
    scores = np.sort(
        np.concatenate([np.asarray(one['pred_instances']['scores']) for one in predictions])
    )[::-1]
    if not len(scores) or scores[0] >= score:
        return score
    return float(scores[min(fewest, len(scores)) - 1])


def draw_predictions(
    predictions: Sequence[Mapping],
    annotation_file: str | Path,
    classes: Sequence[str],
    out_dir: str | Path,
    score: float = 0.5,
    side: int = 480,
) -> list[Path]:
    """Draw ground truth (left) and predictions (right) with mmengine's visualizer.

    mmdet's own shrinks its labels with the objects, down to what nobody can read on small ones.

    Args:
        predictions: Entries of the list that mmdet's ``test.py --out`` writes: ``img_id``,
            ``img_path`` and ``pred_instances`` with boxes in pixels and run-length masks.
        annotation_file: The COCO file with their ground truth.
        classes: Class names by label.
        out_dir: Folder for the PNGs, which are named after the pictures.
        score: Predictions below this are not drawn.
        side: Pictures are enlarged to this longer side in pixels, so that labels can be read.

    Returns:
        The files written.
    """
    from mmengine.visualization import Visualizer
    from PIL import Image
    from pycocotools import mask as run_lengths
    from pycocotools.coco import COCO

    with open(os.devnull, 'w') as silence, redirect_stdout(silence):
        truth = COCO(str(annotation_file))
    names = {
        category: entry['name']
        for category, entry in truth.cats.items()
        if entry['name'] in classes
    }
    colours = dict(zip(classes, _palette(len(classes)), strict=True))
    visualizer = Visualizer()

    def draw(image: Image.Image, shown: Sequence[tuple[str, str, Sequence, np.ndarray]]) -> Any:
        """Draw (class, label, box, mask) tuples on one picture."""
        scale = max(1.0, side / max(image.size))
        size = round(scale * image.width), round(scale * image.height)
        visualizer.set_image(np.asarray(image.resize(size, Image.Resampling.BICUBIC)))
        # Masks first and all at once: for each, mmengine draws what it has anew as a picture.
        if shown:
            masks = [
                np.asarray(Image.fromarray(mask * 255).resize(size, Image.Resampling.BILINEAR))
                for *_, mask in shown
            ]
            visualizer.draw_binary_masks(
                np.stack(masks) > 127, [colours[name] for name, *_ in shown], alphas=0.5
            )
        visualizer.ax_save.autoscale(False)  # a box on the border would shrink the picture
        for name, _, box, _ in shown:
            visualizer.draw_bboxes(_tensor(box) * scale, edge_colors=colours[name], line_widths=2)
        for name, label, box, _ in shown:  # on top of every mask
            left, top, right, _ = (scale * _tensor(box).clip(min=0)).tolist()
            at_border = left > 0.75 * size[0]  # the label would not fit to the right of its corner
            visualizer.draw_texts(
                label,
                _tensor([[right - 3 if at_border else left + 3, top + 3]]),
                font_sizes=14,
                colors='white',
                vertical_alignments='top',
                horizontal_alignments='right' if at_border else 'left',
                bboxes=dict(facecolor='black', edgecolor=_hex(colours[name]), alpha=0.85, pad=1.5),
            )
        return visualizer.get_image()

    paths = []
    for one in predictions:
        image = Image.open(one['img_path']).convert('RGB')
        entries = truth.loadAnns(truth.getAnnIds(one['img_id'], iscrowd=False))
        real = [
            (name, name, _corners(entry['bbox']), truth.annToMask(entry))
            for entry in entries
            if (name := names.get(entry['category_id']))
        ]
        found = one['pred_instances']
        guessed = [
            (name := classes[label], f'{name} {100 * value:.0f}%', box, run_lengths.decode(mask))
            for label, value, box, mask in zip(
                found['labels'].tolist(),
                found['scores'].tolist(),
                found['bboxes'].tolist(),
                found['masks'],
                strict=True,
            )
            if value >= score
        ]
        path = Path(out_dir) / f'{Path(one["img_path"]).stem}.png'
        with warnings.catch_warnings():
            # mmengine warns of every box and mask that touches the border
            warnings.filterwarnings('ignore', message='.*out of bounds', category=UserWarning)
            halves = [draw(image, shown) for shown in (real, guessed)]
        gap = np.full((halves[0].shape[0], 8, 3), 255, np.uint8)
        with replacing(path) as draft:
            Image.fromarray(np.concatenate([halves[0], gap, halves[1]], axis=1)).save(draft)
        paths.append(path)
    return paths


def _tensor(box: Sequence[float]) -> Any:
    import torch

    return torch.tensor(box, dtype=torch.float32)


def _corners(box: Sequence[float]) -> tuple[float, float, float, float]:
    x, y, width, height = box
    return x, y, x + width, y + height


def _hex(colour: Sequence[int]) -> str:
    return '#' + ''.join(f'{part:02x}' for part in colour)


def _palette(count: int) -> list[tuple[int, int, int]]:
    from matplotlib import colormaps

    colours = colormaps['tab10' if count <= 10 else 'tab20'].colors
    return [
        tuple(round(255 * part) for part in colours[index % len(colours)]) for index in range(count)
    ]


def embed(path: str | Path) -> str:
    """A PNG file as a ``data:`` address."""
    return 'data:image/png;base64,' + base64.b64encode(Path(path).read_bytes()).decode()


def write_page(path: str | Path, **content: Any) -> None:
    """Render the page and write it whole or not at all.

    Args:
        path: The HTML file.
        **content: What report.html.j2 shows; a name that the template wants and that is not
            given is an error, except for what only some runs have (:data:`OPTIONAL`).
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters['embed'] = embed
    template = environment.from_string(_TEMPLATE.read_text(encoding='utf-8'))
    write_text(path, template.render(**{**OPTIONAL, **content}))
