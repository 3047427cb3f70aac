#!/usr/bin/env python
"""Draw the pictures of docs/kronecker_attention.md.

They are made from drawn maps and from a photograph that comes with scikit-learn, and are the same
each time.

example:
    python tools/docs/kronecker_pictures.py docs/images
"""

import argparse
import io
import os
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from kronattn_mm.ops import axis_averages, dot_product_attention, outer_sum

SIDE = 56


def rows_plus_columns(x: np.ndarray) -> np.ndarray:
    """The best row term plus column term for a map: both averages, less the mean counted twice."""
    tensor = torch.from_numpy(x)[None, None]
    return outer_sum(axis_averages(tensor), x.shape)[0, 0].numpy() - x.mean()


def explained(x: np.ndarray) -> float:
    """Share of a map's variance over positions that a row term plus a column term holds."""
    return 1 - (x - rows_plus_columns(x)).var() / x.var()


def model_map(noise: float = 0.6) -> np.ndarray:
    """A draw of the paper's model: smooth row and column means, independent noise."""
    random = np.random.default_rng(3)
    steps = np.linspace(0, 1, SIDE)
    mu = np.sin(2 * np.pi * steps) + steps
    upsilon = np.cos(3 * np.pi * steps)
    return mu[:, None] + upsilon[None, :] + noise * random.normal(size=(SIDE, SIDE))


def photograph() -> np.ndarray:
    """A grey photograph of 56 x 56."""
    from sklearn.datasets import load_sample_image

    picture = Image.fromarray(load_sample_image('china.jpg')).convert('L')
    return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS), dtype=float) / 255


def averages_figure() -> Figure:
    """A map, its averages, what they hold of it, and what they leave."""
    figure = Figure(figsize=(9, 4.9), layout='constrained')
    panels = figure.subplots(2, 4, width_ratios=(1, 1.1, 1, 1))
    for line, (name, x) in zip(
        panels,
        (("a draw of the paper's model", model_map()), ('a photograph', photograph())),
        strict=True,
    ):
        kept = rows_plus_columns(x)
        limits = dict(vmin=x.min(), vmax=x.max(), cmap='gray', interpolation='nearest')
        line[0].imshow(x, **limits)
        line[0].set_title(f'X: {name}', fontsize=8)
        averages = axis_averages(torch.from_numpy(x)[None, None])[0, 0].numpy()
        line[1].plot(averages[:SIDE], label='H: of the rows (w numbers)')
        line[1].plot(averages[SIDE:], '--', label='L: of the columns (h numbers)')
        line[1].legend(fontsize=6)
        line[1].tick_params(labelsize=6)
        line[1].set_title('C: the 2 x 56 averages', fontsize=8)
        line[2].imshow(kept, **limits)
        line[2].set_title(f'row + column term ({explained(x):.0%})', fontsize=8)
        line[3].imshow(x - kept, cmap='gray', vmin=-np.ptp(x) / 2, vmax=np.ptp(x) / 2)
        line[3].set_title('what they leave', fontsize=8)
        for axes in (line[0], line[2], line[3]):
            axes.set_axis_off()
    return figure


def variance_figure() -> Figure:
    """Equation 7, and how far averages lie from what they estimate."""
    sides = np.array([4, 7, 14, 28, 56, 112])
    random = torch.Generator().manual_seed(0)
    measured = []
    for side in map(int, sides):
        draws = torch.randn(64, 1, side, side, generator=random, dtype=torch.float64)
        rows = axis_averages(draws)[..., :side].var()
        columns = axis_averages(draws)[..., side:].var()
        measured.append(float((rows + columns) / draws.var()))
    figure = Figure(figsize=(5, 3.2), layout='constrained')
    axes = figure.subplots()
    axes.loglog(sides, 2 / sides, label='2 / h (equation 7)')
    axes.loglog(sides, measured, 'o', label='64 drawn maps')
    axes.set_xticks(sides, map(str, sides))
    axes.minorticks_off()
    axes.set_xlabel('h = w')
    axes.set_ylabel('variance left of the noise')
    axes.grid(linewidth=0.3)
    axes.legend(fontsize=8)
    return figure


def targets() -> dict[str, np.ndarray]:
    """Maps that an attention output might have to be."""
    y, x = np.mgrid[:SIDE, :SIDE]
    return {
        'band in rows': ((y > 20) & (y < 34)).astype(float),
        'one object': ((y - 18) ** 2 + (x - 38) ** 2 < 90).astype(float),
        'diagonal': np.exp(-((y - x) ** 2) / 30.0),
        'checkerboard': ((y // 7 + x // 7) % 2).astype(float),
    }


def limits_figure() -> Figure:
    """What a row term plus a column term can be, and what KAO_KV can."""
    chosen = targets()
    figure = Figure(figsize=(9, 6.4), layout='constrained')
    panels = figure.subplots(3, len(chosen))
    for column, (name, target) in enumerate(chosen.items()):
        # Attention over averages of this map beside two channels that tell positions apart.
        rows, columns = np.meshgrid(
            np.linspace(-1, 1, SIDE), np.linspace(-1, 1, SIDE), indexing='ij'
        )
        stack = np.stack([target, rows, columns])[None]
        x = torch.from_numpy(np.ascontiguousarray(stack))
        averages = axis_averages(x)
        kv = dot_product_attention(4 * x.flatten(2), 4 * averages, averages)[0, 0]
        shown = (
            (f'wanted: {name}', target),
            (f'best of KAO_QKV: {explained(target):.0%}', rows_plus_columns(target)),
            ('KAO_KV, from this map', kv.reshape(SIDE, SIDE).numpy()),
        )
        for axes, (title, picture) in zip(panels[:, column], shown, strict=True):
            # The first two on one scale. What KAO_KV gives are averages, which are smaller.
            shade = picture if np.ptp(picture) > 0.01 and title.startswith('KAO_KV') else target
            axes.imshow(picture, cmap='gray', vmin=shade.min(), vmax=shade.max())
            axes.set_title(title, fontsize=8)
            axes.set_axis_off()
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG of 64 colours, which keeps it small; complete or not at all."""
    stream = io.BytesIO()
    figure.savefig(stream, format='png', dpi=90)
    picture = Image.open(stream).convert('RGB').quantize(64)
    unfinished = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        picture.save(unfinished, format='png', optimize=True)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f'wrote {path} ({path.stat().st_size:,} bytes)')


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('folder', type=Path, metavar='FOLDER', help='where to write the pictures')
    folder = parser.parse_args(argv).folder
    if not folder.is_dir():
        parser.error(f'{folder} is not a folder')
    save(averages_figure(), folder / 'kronecker_averages.png')
    save(variance_figure(), folder / 'kronecker_variance.png')
    save(limits_figure(), folder / 'kronecker_limits.png')
    return 0


if __name__ == '__main__':
    sys.exit(main())
