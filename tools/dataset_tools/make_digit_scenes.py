"""Make a small instance-segmentation set out of real handwritten digits, in COCO format.

Source: the 1797 digits of 8 x 8 pixels that scikit-learn ships (``sklearn.datasets.load_digits``, a
part of the UCI set "Optical Recognition of Handwritten Digits"). No download is needed.

Each digit is enlarged, turned a little, inked in a colour of its own and laid on a textured
picture. Digits may overlap: as in COCO, a mask holds the visible pixels only. Masks are exact (the
pixels where the digit's opacity exceeds one half) and stored as run lengths, since polygons cannot
express the holes of 0, 6, 8 and 9. Train and val are built from different digit samples.

Layout::

    OUT/annotations/instances_{train,val}.json    OUT/{train,val}/*.png    OUT/recipe.json

``recipe.json`` holds the settings and a checksum of every file. A set that is there and intact is
reused; anything else is rebuilt beside it and swapped in at the end, so an interruption leaves
either the old set or the new one. A folder that this tool did not make is never replaced.

Example::

    python tools/dataset_tools/make_digit_scenes.py data/digit_scenes --train 480 --val 80
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from pycocotools import mask as run_lengths

CLASSES = tuple('0123456789')
RECIPE = 'recipe.json'
FORMAT_VERSION = 1  # raise when the pictures a recipe gives change


@dataclass(frozen=True)
class Recipe:
    """Everything the set depends on.

    Attributes:
        train: Number of training scenes.
        val: Number of held-out scenes.
        size: Side of the square pictures in pixels.
        min_digits: Fewest digits that are tried in one scene.
        max_digits: Most digits that are tried in one scene.
        min_height: Smallest height of an enlarged digit in pixels.
        max_height: Largest height of an enlarged digit in pixels.
        min_visible: Smallest share of a digit's pixels that stays uncovered.
        seed: Seed of the split, of the choice of digits and of their places.
    """

    train: int = 480
    val: int = 80
    size: int = 160
    min_digits: int = 3
    max_digits: int = 7
    min_height: int = 32
    max_height: int = 64
    min_visible: float = 0.85
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ('train', 'val', 'min_digits'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} must be at least 1, got {getattr(self, name)}')
        if self.max_digits < self.min_digits:
            raise ValueError(f'max_digits={self.max_digits} is below min_digits={self.min_digits}')
        if not 8 <= self.min_height <= self.max_height <= self.size // 2:
            raise ValueError(
                'heights must satisfy 8 <= min_height <= max_height <= size / 2, got '
                f'min_height={self.min_height}, max_height={self.max_height}, size={self.size}'
            )
        if not 0 < self.min_visible <= 1:
            raise ValueError(f'min_visible must lie in (0, 1], got {self.min_visible}')


@dataclass(frozen=True)
class Instance:
    """One digit of a scene.

    Attributes:
        label: The digit, 0 to 9.
        sample: Its row in scikit-learn's set.
        mask: Its visible pixels, bool of shape (size, size).
    """

    label: int
    sample: int
    mask: np.ndarray


def render_digit(pixels: np.ndarray, height: int, angle: float) -> np.ndarray:
    """Enlarge and turn a digit.

    Args:
        pixels: Shape (8, 8), values 0 (paper) to 16 (ink).
        height: Side of the enlarged 8 x 8 square in pixels.
        angle: Counter-clockwise rotation in degrees.

    Returns:
        Opacity in [0, 1] of the ink, float32, cropped to the pixels above zero.
    """
    ink = Image.fromarray(np.pad(pixels.astype(np.float32) / 16, 2))  # room for the rotation
    side = round(height * ink.width / 8)
    ink = ink.resize((side, side), Image.Resampling.BICUBIC)
    ink = ink.rotate(angle, Image.Resampling.BICUBIC)
    # A steep but soft edge: enlarged eightfold, the original grey levels would be a blur.
    opacity = np.clip((np.asarray(ink) - 0.32) / 0.25, 0, 1)
    rows, columns = np.flatnonzero(opacity.any(1)), np.flatnonzero(opacity.any(0))
    return opacity[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def texture(rng: np.random.Generator, size: int) -> np.ndarray:
    """A soft coloured cloud with fine grain: float32 of shape (size, size, 3), values in [0, 1]."""

    def cloud(cells: int, strength: float) -> np.ndarray:
        grid = Image.fromarray(rng.normal(0, strength, (cells, cells)).astype(np.float32))
        return np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC))

    light = cloud(4, 0.10) + cloud(20, 0.05)
    tint = np.stack([cloud(4, 0.06) for _ in range(3)], -1)
    base = rng.uniform(0.1, 0.9) + rng.uniform(-0.12, 0.12, 3)
    grain = rng.normal(0, 0.02, (size, size, 3))
    return np.clip(base + light[..., None] + tint + grain, 0, 1).astype(np.float32)


def ink_colour(rng: np.random.Generator, paper: np.ndarray) -> np.ndarray:
    """A random colour that differs visibly in brightness from ``paper``, a colour of shape (3,)."""
    weights = np.array([0.299, 0.587, 0.114])
    while True:
        colour = rng.uniform(0, 1, 3)
        if abs(weights @ (colour - paper)) > 0.25:
            return colour


def compose_scene(
    rng: np.random.Generator,
    digits: np.ndarray,
    labels: np.ndarray,
    samples: np.ndarray,
    recipe: Recipe,
) -> tuple[np.ndarray, list[Instance]]:
    """Lay digits on a textured picture.

    Args:
        rng: Source of every random choice.
        digits: All digits, shape (n, 8, 8).
        labels: Their classes, shape (n,).
        samples: Rows of ``digits`` that may be used, shape (k,).
        recipe: Sizes and counts.

    Returns:
        The picture, uint8 RGB of shape (size, size, 3), and its digits from the lowest to the
        topmost. Places are tried at random; a digit that would cover others too far is left out.
    """
    size = recipe.size
    picture = texture(rng, size)
    placed: list[tuple[Instance, int]] = []  # with the number of pixels before any covering
    for sample in rng.choice(samples, rng.integers(recipe.min_digits, recipe.max_digits + 1)):
        height = int(rng.integers(recipe.min_height, recipe.max_height + 1))
        opacity = render_digit(digits[sample], height, rng.uniform(-15, 15))
        h, w = opacity.shape
        for _ in range(20):
            top, left = rng.integers(0, size - h + 1), rng.integers(0, size - w + 1)
            whole = np.zeros((size, size), np.float32)
            whole[top : top + h, left : left + w] = opacity
            mask = whole > 0.5
            if all((old.mask & ~mask).sum() >= recipe.min_visible * area for old, area in placed):
                break
        else:
            continue
        placed = [(Instance(old.label, old.sample, old.mask & ~mask), area) for old, area in placed]
        placed.append((Instance(int(labels[sample]), int(sample), mask), int(mask.sum())))
        colour = ink_colour(rng, picture[mask].mean(0))
        picture += whole[..., None] * (colour - picture)
    return (picture * 255).round().astype(np.uint8), [instance for instance, _ in placed]


def split_samples(labels: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Give three quarters of each class's samples to train and the rest to val."""
    rng = np.random.default_rng(seed)
    train, val = [], []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cut = 3 * len(rows) // 4
        train.append(rows[:cut])
        val.append(rows[cut:])
    return dict(train=np.concatenate(train), val=np.concatenate(val))


def annotation(instance: Instance, image_id: int, annotation_id: int) -> dict:
    """The COCO entry of one digit; the box is that of the visible pixels."""
    code = run_lengths.encode(np.asfortranarray(instance.mask.astype(np.uint8)))
    return dict(
        id=annotation_id,
        image_id=image_id,
        category_id=instance.label + 1,
        iscrowd=0,
        area=int(run_lengths.area(code)),
        bbox=run_lengths.toBbox(code).tolist(),
        segmentation=dict(size=list(map(int, code['size'])), counts=code['counts'].decode()),
        sample=instance.sample,
    )


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below ``folder`` but the recipe, by relative path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob('*'))
        if path.is_file() and path.name != RECIPE
    }


def is_intact(folder: str | Path, recipe: Recipe) -> bool:
    """Whether ``folder`` holds exactly the files that ``recipe`` gave when it was made."""
    folder = Path(folder)
    try:
        stored = json.loads((folder / RECIPE).read_text())
    except (OSError, ValueError):
        return False
    return (
        stored.get('format') == FORMAT_VERSION
        and stored.get('settings') == asdict(recipe)
        and stored.get('files') == checksums(folder)
    )


def make_digit_scenes(
    out: str | Path, recipe: Recipe = Recipe(), progress: Callable[[int, int], None] | None = None
) -> bool:
    """Make the set, unless it is there and intact.

    Args:
        out: Folder to hold the set. If it exists, it must be empty or made by this function.
        recipe: What to make.
        progress: Called with the number of scenes written and the number of all scenes.

    Returns:
        True if the set was made, False if the one there is reused.

    Raises:
        FileExistsError: ``out`` holds something else.
    """
    from sklearn.datasets import load_digits  # here: takes a second, and --help need not wait

    out = Path(out)
    if is_intact(out, recipe):
        return False
    if out.exists() and not (out / RECIPE).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(
            f'{out} exists and was not made by this tool (no {RECIPE} in it): name another folder'
        )
    source = load_digits()
    rows = split_samples(source.target, recipe.seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent))
    try:
        done = 0
        (draft / 'annotations').mkdir()
        for number, split in enumerate(('train', 'val')):
            rng = np.random.default_rng([recipe.seed, number])
            (draft / split).mkdir()
            images, annotations = [], []
            for image_id in range(1, getattr(recipe, split) + 1):
                picture, instances = compose_scene(
                    rng, source.images, source.target, rows[split], recipe
                )
                name = f'{image_id:06d}.png'
                Image.fromarray(picture).save(draft / split / name)
                images.append(
                    dict(id=image_id, file_name=name, height=recipe.size, width=recipe.size)
                )
                for instance in instances:
                    annotations.append(annotation(instance, image_id, len(annotations) + 1))
                done += 1
                if progress is not None:
                    progress(done, recipe.train + recipe.val)
            content = dict(
                info=dict(description='Scenes of handwritten digits from scikit-learn'),
                images=images,
                annotations=annotations,
                categories=[dict(id=i + 1, name=name) for i, name in enumerate(CLASSES)],
            )
            (draft / 'annotations' / f'instances_{split}.json').write_text(json.dumps(content))
        (draft / RECIPE).write_text(
            json.dumps(
                dict(format=FORMAT_VERSION, settings=asdict(recipe), files=checksums(draft)),
                indent=1,
            )
        )
        draft.chmod(0o755)  # mkdtemp makes it private
        if out.exists():
            old = Path(tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent))
            out.rename(old / 'old')
            draft.rename(out)
            shutil.rmtree(old)
        else:
            draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def main() -> int:
    """Command line; returns the exit code."""
    default = Recipe()
    parser = argparse.ArgumentParser(
        description='Make a small instance-segmentation set (COCO format) out of the real '
        'handwritten digits that scikit-learn ships. An intact set is reused.',
        epilog='example: python tools/dataset_tools/make_digit_scenes.py data/digit_scenes',
    )
    parser.add_argument('out', help='folder to make')
    parser.add_argument(
        '--train', type=int, default=default.train, help='number of training scenes'
    )
    parser.add_argument('--val', type=int, default=default.val, help='number of held-out scenes')
    parser.add_argument('--size', type=int, default=default.size, help='picture side in pixels')
    parser.add_argument('--seed', type=int, default=default.seed)
    args = parser.parse_args()
    try:
        recipe = Recipe(train=args.train, val=args.val, size=args.size, seed=args.seed)
        from tqdm import tqdm

        with tqdm(total=recipe.train + recipe.val, unit='scene', disable=None) as bar:
            made = make_digit_scenes(args.out, recipe, lambda done, total: bar.update(1))
    except ImportError as error:
        print(f'error: {error}; install it with: pip install scikit-learn', file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    print(
        f'{args.out}: {"made" if made else "already there and intact"} '
        f'({recipe.train} training and {recipe.val} held-out scenes)'
    )
    return 0


if __name__ == '__main__':
    sys.exit(main())
