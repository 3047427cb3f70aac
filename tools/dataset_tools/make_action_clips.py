"""Make untrimmed clips with known actions out of real photographs, in the layout of THUMOS14.

The source is any folder of COCO form. In each clip an object, cut out of one photograph by its
mask, lies on another photograph seen by a camera that never keeps quite still. At some times the
object acts, and what it does is the class: it slides (left and right), climbs (up and down), spins
(turns), pulses (grows and shrinks) or circles. Between the actions it rests, or drifts to another
place, which is a motion of no class. An action begins and ends in the pose of rest, so that nothing
jumps, and its first and last frame are known exactly. Training clips are made of the source's
training pictures only, held-out clips of its held-out ones.

Layout::

    OUT/annotations.json                     of ActivityNet's form: times in seconds
    OUT/frames/<clip>/image_00001.jpg ...    as `ffmpeg -i VIDEO image_%05d.jpg` writes them

Example::

    python tools/dataset_tools/make_action_clips.py data/coco data/action_clips --train 96 --val 32
"""

import argparse
import contextlib
import io
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from check_coco_folder import DataError, find_splits, read_annotations
from pycocotools.coco import COCO

MOTIONS = ('slide', 'climb', 'spin', 'pulse', 'circle')
SUBSETS = ('training', 'validation')
FRAME = 'image_{:05d}.jpg'
_CANVAS = 160  # pixels of a cut-out's longer side, several times what it has in a frame


@dataclass(frozen=True)
class Recipe:
    """What a set of clips depends on beside the photographs.

    Attributes:
        train: Number of training clips.
        val: Number of held-out clips.
        size: Side of the square frames in pixels.
        frames: Frames of a clip.
        fps: Frames a second.
        shortest: Shortest action in frames.
        longest: Longest action in frames.
        jitter: How far the camera strays from its place, in pixels of a frame; 0 for a tripod.
        drift: Share of the rests in which the object drifts to another place.
        seed: Seed of everything that is drawn.
    """

    train: int = 96
    val: int = 32
    size: int = 32
    frames: int = 192
    fps: float = 8.0
    shortest: int = 16
    longest: int = 56
    jitter: float = 1.0
    drift: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ('train', 'val'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} must be at least 1, got {getattr(self, name)}')
        if self.seed < 0:
            raise ValueError(f'seed must be at least 0, got {self.seed}')
        if self.size < 16:
            raise ValueError(f'size must be at least 16 pixels, got {self.size}')
        if not 0 < self.fps < math.inf:
            raise ValueError(f'fps must be a number above 0, got {self.fps}')
        if not 4 <= self.shortest <= self.longest <= self.frames // 2:
            raise ValueError(
                'lengths must satisfy 4 <= shortest <= longest <= frames / 2, got '
                f'shortest={self.shortest}, longest={self.longest}, frames={self.frames}'
            )
        if not 0 <= self.jitter <= self.size / 8:
            raise ValueError(f'jitter must lie between 0 and size / 8, got {self.jitter}')
        if not 0 <= self.drift <= 1:
            raise ValueError(f'drift must lie between 0 and 1, got {self.drift}')


@dataclass(frozen=True)
class Action:
    """One action: ``label`` from frame ``start`` up to, but not including, frame ``stop``."""

    label: str
    start: int
    stop: int


class Photographs:
    """Backgrounds and cut-out objects of one half of a COCO folder.

    Args:
        annotations: The half's annotation file.
        images: Folder of its pictures.

    Raises:
        DataError: If the annotation file is broken, or no object is usable: whole (not cut by the
            picture's edge) and between 3 and 60 hundredths of the picture.
    """

    def __init__(self, annotations: Path, images: Path) -> None:
        content = read_annotations(annotations)
        self.images = images
        self.coco = COCO()
        self.coco.dataset = content
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
            self.coco.createIndex()
        self.pictures = content['images']
        self.objects = [entry for entry in content['annotations'] if self._usable(entry)]
        if not self.objects:
            raise DataError(
                f'{annotations} has no whole object between 3 and 60 hundredths of its picture'
            )

    def _usable(self, entry: dict[str, Any]) -> bool:
        image = self.coco.imgs[entry['image_id']]
        x, y, width, height = entry['bbox']
        whole = x > 1 and y > 1
        whole &= x + width < image['width'] - 1 and y + height < image['height'] - 1
        share = entry['area'] / (image['width'] * image['height'])
        return not entry['iscrowd'] and whole and 0.03 <= share <= 0.6

    def _read(self, image: dict[str, Any]) -> np.ndarray:
        path = self.images / image['file_name']
        picture = cv2.imread(str(path))
        if picture is None:
            raise DataError(f'{path} is missing or cannot be read')
        return picture

    def background(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return the middle of a random photograph, float32 ``(size, size, 3)``, BGR 0 to 255."""
        picture = self._read(self.pictures[rng.integers(len(self.pictures))])
        side = min(picture.shape[:2])
        top, left = ((length - side) // 2 for length in picture.shape[:2])
        picture = picture[top : top + side, left : left + side]
        return cv2.resize(picture, (size, size), interpolation=cv2.INTER_AREA).astype(np.float32)

    def cutout(self, rng: np.random.Generator) -> np.ndarray:
        """Return a random object, centred: float32 ``(160, 160, 4)``, BGR times opacity, opacity.

        The colour is multiplied with the opacity (0 to 1), so that interpolation mixes no colour
        from outside the mask into the edge.
        """
        entry = self.objects[rng.integers(len(self.objects))]
        opacity = self.coco.annToMask(entry).astype(np.float32)[..., None]
        picture = self._read(self.coco.imgs[entry['image_id']]).astype(np.float32)
        x, y, width, height = (round(value) for value in entry['bbox'])
        part = np.concatenate([picture * opacity, opacity], -1)[y : y + height, x : x + width]
        scale = _CANVAS / max(part.shape[:2])
        size = [max(1, round(length * scale)) for length in part.shape[1::-1]]
        part = cv2.resize(part, size, interpolation=cv2.INTER_AREA)
        canvas = np.zeros((_CANVAS, _CANVAS, 4), np.float32)
        top, left = ((_CANVAS - length) // 2 for length in part.shape[:2])
        canvas[top : top + part.shape[0], left : left + part.shape[1]] = part
        return canvas


def draw_actions(rng: np.random.Generator, recipe: Recipe) -> list[Action]:
    """Draw when a clip's object does what; there is at least one action.

    Rests last from 8 frames to as many as the longest action has; an action ends before the clip.
    """
    actions: list[Action] = []
    time = int(rng.integers(4, recipe.shortest + 1))
    while True:
        length = int(rng.integers(recipe.shortest, recipe.longest + 1))
        if time + length > recipe.frames - 4:
            if actions:
                return actions
            time = 4  # a long first rest; the longest action fits into half of the clip
        actions.append(Action(MOTIONS[rng.integers(len(MOTIONS))], time, time + length))
        time += length + int(rng.integers(8, max(9, recipe.longest)))


def pose_in_action(
    label: str, phase: float, cycles: int, size: int, swing: float
) -> tuple[float, float, float, float]:
    """Return how an acting object differs from its rest: x, y in pixels, degrees, factor.

    Args:
        label: One of :data:`MOTIONS`.
        phase: From 0 at the action's start to 1 at its end; both are the pose of rest.
        cycles: How often the motion is repeated.
        size: Side of a frame in pixels.
        swing: How far it goes, as a share of that side.
    """
    wave = math.sin(2 * math.pi * cycles * phase)
    if label == 'slide':
        return swing * size * wave, 0, 0, 1
    if label == 'climb':
        return 0, swing * size * wave, 0, 1
    if label == 'spin':
        return 0, 0, 360 * cycles * phase, 1
    if label == 'pulse':
        return 0, 0, 0, math.exp(2.5 * swing * wave)
    if label == 'circle':
        height = 1 - math.cos(2 * math.pi * cycles * phase)
        return swing * size * wave, swing * size * height, 0, 1
    raise ValueError(f'label must be one of {", ".join(MOTIONS)}, got {label!r}')


def poses(rng: np.random.Generator, actions: list[Action], recipe: Recipe) -> np.ndarray:
    """Return the object's pose in each frame: ``(frames, 4)``, x, y in pixels, degrees, scale.

    The scale is that of the cut-out, whose longer side is then 40 to 55 hundredths of the frame.
    """
    size = recipe.size
    scale = rng.uniform(0.4, 0.55) * size / _CANVAS
    place = rng.uniform(0.4, 0.6, 2) * size
    result = np.zeros((recipe.frames, 4))
    time = 0
    for action in [*actions, None]:
        stop = recipe.frames if action is None else action.start
        if stop > time and rng.random() < recipe.drift:
            target = rng.uniform(0.35, 0.65, 2) * size
        else:
            target = place
        for frame in range(
            time, stop
        ):  # a rest, or a drift that has arrived when the action starts
            x, y = place + (target - place) * (frame + 1 - time) / (stop - time)
            result[frame] = x, y, 0, scale
        place = target
        if action is None:
            break
        length = action.stop - action.start
        cycles = max(1, round(length / recipe.fps / rng.uniform(1.0, 2.0)))
        swing = rng.uniform(0.14, 0.2) * rng.choice([-1, 1])
        for frame in range(action.start, action.stop):
            # Half a frame in: the first frame of an action is moved already, and so is the last.
            phase = (frame - action.start + 0.5) / length
            x, y, angle, factor = pose_in_action(action.label, phase, cycles, size, swing)
            result[frame] = place[0] + x, place[1] + y, angle, scale * factor
        time = action.stop
    return result


def camera(rng: np.random.Generator, recipe: Recipe) -> np.ndarray:
    """Return where the camera looks in each frame: ``(frames, 2)``, x, y in pixels.

    A random walk that is drawn back to its place, smoothed over five frames and held to
    ``recipe.jitter`` pixels.
    """
    steps = rng.normal(0, 1, (recipe.frames + 4, 2))
    walk = np.zeros_like(steps)
    for frame in range(1, len(steps)):
        walk[frame] = 0.9 * walk[frame - 1] + steps[frame]
    smooth = np.stack([np.convolve(axis, np.ones(5) / 5, 'valid') for axis in walk.T], -1)
    return recipe.jitter * smooth / max(np.abs(smooth).max(), 1e-6)


def render(
    background: np.ndarray, cutout: np.ndarray, pose: np.ndarray, shift: np.ndarray, size: int
) -> np.ndarray:
    """Return one frame, uint8 ``(size, size, 3)``, BGR.

    Args:
        background: Photograph, larger than the frame by the same margin on all sides.
        cutout: See :meth:`Photographs.cutout`.
        pose: Row of :func:`poses`.
        shift: Row of :func:`camera`; the object moves with the background.
        size: Side of the frame in pixels.
    """
    margin = (background.shape[0] - size) / 2
    look = np.array([[1, 0, shift[0] - margin], [0, 1, shift[1] - margin]])
    frame = cv2.warpAffine(background, look, (size, size), flags=cv2.INTER_LINEAR)
    x, y, angle, scale = pose
    turn = cv2.getRotationMatrix2D((_CANVAS / 2 - 0.5, _CANVAS / 2 - 0.5), angle, 1)
    # Warping reads one pixel in several: reduce first, as INTER_AREA does, then turn and place.
    half = max(1, int(1 / max(scale, 1e-3)) // 2)
    reduced = cv2.resize(cutout, None, fx=1 / half, fy=1 / half, interpolation=cv2.INTER_AREA)
    place = np.array([[scale, 0, 0], [0, scale, 0]]) @ np.vstack([turn, [0, 0, 1]])
    place[:, 2] += np.array([x, y]) + shift - scale * (_CANVAS / 2 - 0.5)
    place[:, :2] *= half
    place[:, 2] += place[:, :2].sum(1) * (0.5 - 0.5 / half)  # centres of larger pixels
    layer = cv2.warpAffine(reduced, place, (size, size), flags=cv2.INTER_LINEAR)
    frame = frame * (1 - layer[..., 3:]) + layer[..., :3]
    return np.clip(frame + 0.5, 0, 255).astype(np.uint8)


def make_clip(
    rng: np.random.Generator, photographs: Photographs, recipe: Recipe
) -> tuple[list[np.ndarray], list[Action]]:
    """Return the frames of one clip and its actions."""
    margin = math.ceil(recipe.jitter) + 1
    background = photographs.background(rng, recipe.size + 2 * margin)
    cutout = photographs.cutout(rng)
    actions = draw_actions(rng, recipe)
    moves = poses(rng, actions, recipe)
    shifts = camera(rng, recipe)
    frames = [
        render(background, cutout, pose, shift, recipe.size)
        for pose, shift in zip(moves, shifts, strict=True)
    ]
    return frames, actions


def make_action_clips(
    source: str | Path,
    out: str | Path,
    recipe: Recipe = Recipe(),
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Make the set.

    Args:
        source: Folder of COCO form.
        out: Folder to make; it appears when all is written.
        recipe: What to make.
        progress: Called after each clip.

    Returns:
        The content of ``annotations.json``.

    Raises:
        DataError: If the source is incomplete or broken.
        FileExistsError: If ``out`` is there already.
    """
    out = Path(out)
    if out.exists():
        raise FileExistsError(f'{out} exists already: remove it, or name another folder')
    halves = [Photographs(*split) for split in find_splits(source)]
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent))
    try:
        database = {}
        for number, (subset, photographs) in enumerate(zip(SUBSETS, halves, strict=True)):
            for index in range((recipe.train, recipe.val)[number]):
                # A seed for each clip: asking for more clips changes none of the others.
                rng = np.random.default_rng([recipe.seed, number, index])
                frames, actions = make_clip(rng, photographs, recipe)
                name = f'{subset}_{index + 1:05d}'
                folder = draft / 'frames' / name
                folder.mkdir(parents=True)
                for place, frame in enumerate(frames, 1):
                    path = folder / FRAME.format(place)
                    if not cv2.imwrite(str(path), frame, [cv2.IMWRITE_JPEG_QUALITY, 95]):
                        raise OSError(f'{path} could not be written')
                database[name] = dict(
                    subset=subset,
                    duration=recipe.frames / recipe.fps,
                    fps=recipe.fps,
                    annotations=[
                        dict(
                            label=action.label,
                            segment=[action.start / recipe.fps, action.stop / recipe.fps],
                        )
                        for action in actions
                    ],
                )
                progress()
        content = dict(
            version='clips composed of photographs by make_action_clips.py',
            recipe=asdict(recipe),
            database=database,
        )
        (draft / 'annotations.json').write_text(json.dumps(content, indent=1))
        draft.chmod(0o755)  # mkdtemp makes it private
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return content


def main() -> int:
    """Command line; returns the exit code."""
    default = Recipe()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('source', help='folder of COCO form with masks')
    parser.add_argument('out', help='folder to make')
    parser.add_argument('--train', type=int, default=default.train, help='training clips')
    parser.add_argument('--val', type=int, default=default.val, help='held-out clips')
    parser.add_argument('--size', type=int, default=default.size, help='side of a frame in pixels')
    parser.add_argument('--frames', type=int, default=default.frames, help='frames of a clip')
    parser.add_argument('--fps', type=float, default=default.fps, help='frames a second')
    parser.add_argument('--seed', type=int, default=default.seed)
    args = parser.parse_args()
    from tqdm import tqdm

    try:
        settings = {name: value for name, value in vars(args).items() if name in asdict(default)}
        recipe = Recipe(**settings)
        with tqdm(total=recipe.train + recipe.val, unit='clip', disable=None) as bar:
            content = make_action_clips(args.source, args.out, recipe, lambda: bar.update(1))
    except (OSError, ValueError) as error:
        print(f'make_action_clips.py: error: {error}', file=sys.stderr)
        return 1
    for subset in SUBSETS:
        clips = [entry for entry in content['database'].values() if entry['subset'] == subset]
        number = sum(len(clip['annotations']) for clip in clips)
        print(f'{subset}: {len(clips)} clips of {recipe.frames} frames, {number} actions')
    return 0


if __name__ == '__main__':
    sys.exit(main())
