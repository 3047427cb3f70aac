#!/usr/bin/env python
"""Make stereo pairs with known disparities out of real photographs, in Scene Flow's layout.

A scene is a stack of layers in front of each other: a photograph at the back, on a plane that may
be slanted, and real objects cut out of other photographs along their masks, each at a distance of
its own. Both views are composed from the layers independently, so that what an object hides in one
view and not in the other is right; the truth is the disparity of the layer that is seen in the left
view. Layers have four columns to a pixel, which are averaged as a camera would do, so that
disparities are no whole numbers. Both views get noise of their own.

The photographs and objects of the training scenes come from the folder's train split, those of the
held-out scenes from its val split.

Layout::

    OUT/frames_cleanpass/{TRAIN,TEST}/{left,right}/*.png
    OUT/disparity/{TRAIN,TEST}/left/*.pfm               disparity of the left view, in pixels
    OUT/disparity_occlusions/{TRAIN,TEST}/left/*.png    255 where the right view does not show it
    OUT/recipe.json                                     settings, checksum of the annotations

A set of the same source and settings is reused; anything else there is never replaced.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from check_coco_folder import DataError, Split, check_coco_folder, find_splits
from pycocotools import mask as run_lengths

from kronattn_mm.cost.command_line import Parser, positive_integer
from kronattn_mm.datasets.disparity_files import write_pfm

RECIPE = 'recipe.json'
FORMAT_VERSION = 1  # raise when the pictures that a recipe gives change
STEPS = 4  # columns of a layer for one pixel
LEAST_SIDE = 40  # of an object that is cut out, in pixels of its photograph
SPLITS = {'train': 'TRAIN', 'val': 'TEST'}


@dataclass(frozen=True)
class Recipe:
    """Everything the set depends on, beside the photographs.

    Attributes:
        train: Number of training pairs.
        val: Number of held-out pairs.
        height: Height of the views in pixels.
        width: Width of the views in pixels.
        max_disparity: All disparities are below it, in pixels.
        min_objects: Fewest objects in a scene.
        max_objects: Most objects in a scene.
        slanted: Share of the scenes whose back is a slanted plane.
        noise: Standard deviation of the noise of each view, in grey levels.
        seed: Seed of every choice.
    """

    train: int = 400
    val: int = 60
    height: int = 128
    width: int = 192
    max_disparity: int = 32
    min_objects: int = 2
    max_objects: int = 6
    slanted: float = 0.5
    noise: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ('train', 'val', 'min_objects'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} must be at least 1, got {getattr(self, name)}')
        if self.max_objects < self.min_objects:
            raise ValueError(
                f'max_objects={self.max_objects} is below min_objects={self.min_objects}'
            )
        if not 8 <= self.max_disparity <= self.width // 2:
            raise ValueError(
                f'max_disparity must lie between 8 and half the width of {self.width}, '
                f'got {self.max_disparity}'
            )
        if self.seed < 0:
            raise ValueError(f'seed must be at least 0, got {self.seed}')
        if self.height < 16:
            raise ValueError(f'height must be at least 16, got {self.height}')
        if not 0 <= self.slanted <= 1:
            raise ValueError(f'slanted must lie between 0 and 1, got {self.slanted}')
        if not 0 <= self.noise <= 50:
            raise ValueError(f'noise must lie between 0 and 50, got {self.noise}')


@dataclass(frozen=True)
class Layer:
    """A picture on a plane.

    Attributes:
        picture: BGR of shape (H, STEPS * W, 3), float32; column c is seen in the left view at
            x = left + (c + 0.5) / STEPS - 0.5, where pixels have their centres at whole numbers.
        opaque: bool of shape (H, STEPS * W).
        left: Column of the left view at which the picture begins.
        plane: Disparity at column x and row y of the left view: plane[0] + plane[1] * x +
            plane[2] * y.
    """

    picture: np.ndarray
    opaque: np.ndarray
    left: int
    plane: tuple[float, float, float]

    def disparity(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Disparity of the left view's point (x, y), whether the layer is opaque there or not."""
        return self.plane[0] + self.plane[1] * x + self.plane[2] * y

    def left_column(self, x_right: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The column x of the left view for which x - disparity(x, y) is ``x_right``."""
        return (x_right + self.plane[0] + self.plane[2] * y) / (1 - self.plane[1])

    def look_up(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Colours and opacity at columns ``x`` of the left view and rows ``y``, both (H, n)."""
        place = (x - self.left + 0.5) * STEPS - 0.5
        nearest = np.round(place).astype(np.int64)
        last = self.picture.shape[1] - 1
        opaque = self.opaque[y, np.clip(nearest, 0, last)] & (nearest >= 0) & (nearest <= last)
        # Between two columns on a plane whose disparity is no multiple of a step; else exact.
        place = np.clip(place, 0, last)
        before = np.floor(place).astype(np.int64)
        share = (place - before)[..., None].astype(np.float32)
        colours = self.picture[y, before] * (1 - share)
        colours += self.picture[y, np.minimum(before + 1, last)] * share
        return colours, opaque


@dataclass(frozen=True)
class Scene:
    """One pair.

    Attributes:
        left: Left view, uint8 BGR of shape (H, W, 3).
        right: Right view, the same.
        disparity: float32 of shape (H, W): what is at x in the left view is at x - disparity in
            the right one.
        occluded: bool of shape (H, W): seen in the left view and not in the right one.
    """

    left: np.ndarray
    right: np.ndarray
    disparity: np.ndarray
    occluded: np.ndarray


def render(layers: Sequence[Layer], height: int, width: int) -> Scene:
    """Compose both views of layers, the furthest first, without noise.

    Args:
        layers: The first must be opaque wherever a view looks.
        height: Height of the views.
        width: Width of the views.
    """
    rows = np.arange(height)[:, None]
    fine = (np.arange(width * STEPS) + 0.5) / STEPS - 0.5
    fine = np.broadcast_to(fine, (height, width * STEPS))
    views = []
    for is_right in (False, True):
        view = np.zeros((height, width * STEPS, 3), np.float32)
        for layer in layers:
            x = layer.left_column(fine, rows) if is_right else fine
            colours, opaque = layer.look_up(x, rows)
            view[opaque] = colours[opaque]
        pixels = view.reshape(height, width, STEPS, 3).mean(2)
        views.append(np.clip(np.round(pixels), 0, 255).astype(np.uint8))
    disparity, seen = _seen_in_left(layers, height, width)
    return Scene(views[0], views[1], disparity, _hidden_in_right(layers, disparity, seen))


def _seen_in_left(
    layers: Sequence[Layer], height: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Disparity and number of the layer that covers more than half of each pixel from above."""
    rows, columns = np.mgrid[:height, :width]
    disparity = np.zeros((height, width))
    seen = np.zeros((height, width), np.int64)
    for number, layer in enumerate(layers):
        covers = _coverage(layer, columns, rows) > 0.5
        disparity[covers] = layer.disparity(columns, rows)[covers]
        seen[covers] = number
    return disparity.astype(np.float32), seen


def _hidden_in_right(
    layers: Sequence[Layer], disparity: np.ndarray, seen: np.ndarray
) -> np.ndarray:
    """Whether a nearer layer covers the point in the right view, or the view ends before it."""
    rows, columns = np.mgrid[: disparity.shape[0], : disparity.shape[1]]
    x_right = columns - disparity
    hidden = (x_right < 0) | (x_right > disparity.shape[1] - 1)
    for number, layer in enumerate(layers):
        x = layer.left_column(x_right, rows)
        hidden |= (number > seen) & (_coverage(layer, x, rows) > 0.5)
    return hidden


def _coverage(layer: Layer, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Share of the pixel around each point that the layer covers."""
    offsets = (np.arange(STEPS) + 0.5) / STEPS - 0.5
    return np.mean([layer.look_up(x + offset, rows)[1] for offset in offsets], 0)


class Photographs:
    """The pictures and objects of one half of a COCO folder.

    Args:
        split: Checked half of a data set.
    """

    def __init__(self, split: Split) -> None:
        self.images = {entry['id']: entry for entry in split.content['images']}
        self.paths = {key: split.images / entry['file_name'] for key, entry in self.images.items()}
        self.objects = [
            entry
            for entry in split.content['annotations']
            if not entry['iscrowd'] and min(entry['bbox'][2:]) >= LEAST_SIDE
        ]
        if not self.objects:
            raise DataError(
                f'{split.annotations} has no object of at least {LEAST_SIDE} x {LEAST_SIDE} pixels'
            )

    def picture(self, image_id: int) -> np.ndarray:
        """Read a picture: BGR, (H, W, 3), uint8."""
        picture = cv2.imread(str(self.paths[image_id]), cv2.IMREAD_COLOR_BGR)
        if picture is None:
            raise DataError(f'{self.paths[image_id]} cannot be decoded')
        return picture

    def mask(self, entry: dict[str, Any]) -> np.ndarray:
        """Decode an object's mask: bool, (H, W)."""
        image = self.images[entry['image_id']]
        code = entry['segmentation']
        if isinstance(code, list):
            code = run_lengths.frPyObjects(code, image['height'], image['width'])
        elif isinstance(code['counts'], list):
            code = run_lengths.frPyObjects(code, *code['size'])
        mask = run_lengths.decode(code)
        return (mask.any(2) if mask.ndim == 3 else mask).astype(bool)


def back_layer(rng: np.random.Generator, photographs: Photographs, recipe: Recipe) -> Layer:
    """A photograph at the back, wide enough for both views."""
    share = recipe.max_disparity
    if rng.random() < recipe.slanted:
        # Nearer towards the bottom, as a floor is, and a little to one side.
        far, drop = rng.uniform(1, 0.15 * share), rng.uniform(0.1, 0.3) * share
        tilt = rng.uniform(-0.1, 0.1) * share
        plane = (far + max(0.0, -tilt), tilt / (recipe.width - 1), drop / (recipe.height - 1))
    else:
        plane = (rng.uniform(1, 0.35 * share), 0.0, 0.0)
    # The right view's last column shows the left view's x = W - 1 + disparity.
    width = recipe.width + share
    picture = photographs.picture(int(rng.choice(list(photographs.images))))
    picture = _filled(rng, picture, recipe.height, width)
    opaque = np.ones(picture.shape[:2], bool)
    return Layer(picture, opaque, 0, plane)


def object_layer(
    rng: np.random.Generator, photographs: Photographs, recipe: Recipe, disparity: float
) -> Layer:
    """An object cut out of a photograph, somewhere in the left view."""
    entry = photographs.objects[rng.integers(len(photographs.objects))]
    picture, mask = photographs.picture(entry['image_id']), photographs.mask(entry)
    if mask.shape != picture.shape[:2]:
        raise DataError(
            f'{photographs.paths[entry["image_id"]]} is {picture.shape[1]} x {picture.shape[0]} '
            f'pixels, the mask of object {entry["id"]} {mask.shape[1]} x {mask.shape[0]}'
        )
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        raise DataError(f'the mask of object {entry["id"]} is empty')
    cut = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    picture, mask = picture[cut], mask[cut]
    scale = rng.uniform(0.3, 0.75) * recipe.height / max(picture.shape[:2])
    height = max(8, round(scale * picture.shape[0]))
    width = max(8, round(scale * picture.shape[1]))
    size = (width * STEPS, height)
    # Averaging areas makes squares of the pixels of what is enlarged.
    method = cv2.INTER_AREA if height < picture.shape[0] else cv2.INTER_LINEAR
    small = cv2.resize(picture, size, interpolation=method).astype(np.float32)
    opaque = cv2.resize(mask.astype(np.float32), size, interpolation=method) > 0.5
    top = int(rng.integers(-height // 3, recipe.height - 2 * height // 3))
    left = int(rng.integers(-width // 3, recipe.width - 2 * width // 3))
    canvas = np.zeros((recipe.height, width * STEPS, 3), np.float32)
    covered = np.zeros(canvas.shape[:2], bool)
    first, last = max(0, top), min(recipe.height, top + height)
    canvas[first:last] = small[first - top : last - top]
    covered[first:last] = opaque[first - top : last - top]
    return Layer(canvas, covered, left, (disparity, 0.0, 0.0))


def _filled(rng: np.random.Generator, picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """A random cut of a picture with the sides' ratio, as large as it can be, at STEPS a pixel."""
    ratio = min(picture.shape[0] / height, picture.shape[1] / width)
    cut_height, cut_width = round(ratio * height), round(ratio * width)
    top = int(rng.integers(picture.shape[0] - cut_height + 1))
    left = int(rng.integers(picture.shape[1] - cut_width + 1))
    cut = picture[top : top + cut_height, left : left + cut_width]
    return cv2.resize(cut, (width * STEPS, height), interpolation=cv2.INTER_AREA).astype(np.float32)


def compose_scene(rng: np.random.Generator, photographs: Photographs, recipe: Recipe) -> Scene:
    """Draw the layers of a scene at random and render it.

    Objects are nearer than every point of the back, and each is nearer than those below it.
    """
    back = back_layer(rng, photographs, recipe)
    corners = [(x, y) for x in (0, recipe.width + recipe.max_disparity) for y in (0, recipe.height)]
    nearest = max(back.disparity(x, y) for x, y in corners)
    number = int(rng.integers(recipe.min_objects, recipe.max_objects + 1))
    # On a grid of quarter pixels, as the layers are.
    drawn = rng.uniform(nearest + 0.5, recipe.max_disparity - 1, number)
    disparities = np.sort(np.ceil(drawn * STEPS) / STEPS)
    layers = [back, *(object_layer(rng, photographs, recipe, float(d)) for d in disparities)]
    scene = render(layers, recipe.height, recipe.width)
    views = [
        np.clip(np.round(view + rng.normal(0, recipe.noise, view.shape)), 0, 255).astype(np.uint8)
        for view in (scene.left, scene.right)
    ]
    return Scene(*views, scene.disparity, scene.occluded)


def write_scene(folder: Path, split: str, name: str, scene: Scene) -> None:
    """Write the four files of a pair."""
    for kind, side, suffix, content in (
        ('frames_cleanpass', 'left', '.png', scene.left),
        ('frames_cleanpass', 'right', '.png', scene.right),
        ('disparity', 'left', '.pfm', scene.disparity),
        ('disparity_occlusions', 'left', '.png', scene.occluded.astype(np.uint8) * 255),
    ):
        path = folder / kind / split / side / f'{name}{suffix}'
        path.parent.mkdir(parents=True, exist_ok=True)
        if suffix == '.pfm':
            write_pfm(path, content)
        elif not cv2.imwrite(str(path), content):
            raise OSError(f'{path} could not be written')


def annotations_checksum(source: str | Path) -> str:
    """SHA-256 of both annotation files of a folder, which tell it from others."""
    files = [annotations for annotations, _ in find_splits(source)]
    return hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()


def is_made(folder: Path, recipe: Recipe, checksum: str) -> bool:
    """Whether ``folder`` was made of the same source and settings and all its files are there."""
    try:
        stored = json.loads((folder / RECIPE).read_text(encoding='utf-8'))
    except (OSError, ValueError):
        return False
    return (
        stored.get('format') == FORMAT_VERSION
        and stored.get('settings') == asdict(recipe)
        and stored.get('source') == checksum
        and all((folder / file).is_file() for file in stored.get('files', [None]))
    )


def make_stereo_pairs(
    source: str | Path,
    out: str | Path,
    recipe: Recipe = Recipe(),
    progress: Callable[[], None] | None = None,
) -> bool:
    """Make the set, unless it is there, made of the same source with the same settings.

    Args:
        source: Folder of COCO form.
        out: Folder to make; it must not exist otherwise.
        recipe: What to make.
        progress: Called after each pair.

    Returns:
        True if the set was made, False if the one there is reused.

    Raises:
        DataError: ``source`` cannot be used.
        FileExistsError: ``out`` holds something else.
    """
    out = Path(out)
    checksum = annotations_checksum(source)
    if is_made(out, recipe, checksum):
        return False
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(
            f'{out} exists and is not a set of {source} with these settings: name another folder'
        )
    folder = check_coco_folder(source)
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent))
    try:
        for number, split in enumerate(SPLITS):
            photographs = Photographs(getattr(folder, split))
            for index in range(1, getattr(recipe, split) + 1):
                # A pair depends on its number alone, however many there are.
                rng = np.random.default_rng([recipe.seed, number, index])
                scene = compose_scene(rng, photographs, recipe)
                write_scene(draft, SPLITS[split], f'{index:06d}', scene)
                if progress is not None:
                    progress()
        files = [str(path.relative_to(draft)) for path in sorted(draft.rglob('*.*'))]
        content = dict(format=FORMAT_VERSION, settings=asdict(recipe), source=checksum, files=files)
        (draft / RECIPE).write_text(json.dumps(content, indent=1), encoding='utf-8')
        draft.chmod(0o755)  # mkdtemp makes it private
        if out.exists():
            out.rmdir()  # it is empty
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        __doc__, 'python tools/dataset_tools/make_stereo_pairs.py data/my_photographs data/pairs'
    )
    parser.add_argument('source', help='folder of COCO form with the photographs')
    parser.add_argument('out', help='folder to make')
    number = dict(type=positive_integer, metavar='N')
    share = dict(type=float, metavar='X')
    parser.add_argument('--train', **number, help='number of training pairs (default: %(default)s)')
    parser.add_argument('--val', **number, help='number of held-out pairs (default: %(default)s)')
    parser.add_argument(
        '--height', **number, help='height of the views in pixels (default: %(default)s)'
    )
    parser.add_argument(
        '--width', **number, help='width of the views in pixels (default: %(default)s)'
    )
    parser.add_argument(
        '--max-disparity',
        **number,
        help='all disparities are below it, in pixels (default: %(default)s)',
    )
    parser.add_argument(
        '--min-objects', **number, help='fewest objects in a scene (default: %(default)s)'
    )
    parser.add_argument(
        '--max-objects', **number, help='most objects in a scene (default: %(default)s)'
    )
    parser.add_argument(
        '--slanted', **share, help='share of the scenes with a slanted back (default: %(default)s)'
    )
    parser.add_argument(
        '--noise', **share, help='noise of each view in grey levels (default: %(default)s)'
    )
    parser.add_argument(
        '--seed', type=int, metavar='N', help='seed of every choice (default: %(default)s)'
    )
    parser.set_defaults(**asdict(Recipe()))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    arguments = vars(parse_arguments(argv))
    source, out = arguments.pop('source'), arguments.pop('out')
    from tqdm import tqdm

    try:
        recipe = Recipe(**arguments)
        with tqdm(total=recipe.train + recipe.val, unit='pair', disable=None) as bar:
            made = make_stereo_pairs(source, out, recipe, bar.update)
    except (OSError, ValueError) as error:
        print(f'make_stereo_pairs.py: error: {error}', file=sys.stderr)
        return 1
    print(
        f'{out}: {"made" if made else "already there"} '
        f'({recipe.train} training and {recipe.val} held-out pairs)'
    )
    return 0


if __name__ == '__main__':
    sys.exit(main())
