"""Train a small Mask R-CNN with efficient attention, evaluate it, and tell it all in one page.

Without --data, scenes of the handwritten digits that scikit-learn ships are made first; nothing
is downloaded. Training and evaluation are mmdet's own, unmodified train.py and test.py, run on a
config that puts attention into two stages of the backbone and on every level of the pyramid.

What is left in the folder --out:

    index.html       the page that shows everything below; it can be moved and sent alone
    predictions/     ground truth and predictions on held-out pictures
    attention/       global attention maps of two inserted layers
    curves/          loss, and average precision on the held-out pictures
    cost.txt         what the inserted attention costs
    config.py        the whole config: train.py, test.py and our tools take it
    training/        work directory of train.py with the checkpoints; logs/ has what was printed

A second call goes on where the first one stopped; if it was finished, only the evaluation and
the page are made anew. A run with other settings is kept under earlier/.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent
CONFIGS = TOOLS.parent / 'configs' / 'quickstart'
DIGITS_CONFIG = CONFIGS / 'mask-rcnn_r18_fpn_ea-res3-4-fpn1-5_digits.py'
COCO_CONFIG = CONFIGS / 'mask-rcnn_mobilenet-v2_fpn_ea-layer5-layer7-fpn1-5_coco.py'
EXAMPLE = """\
examples:
  python tools/quickstart.py
  python tools/quickstart.py --data data/my_photographs --out out/my_photographs
  python tools/quickstart.py --data data/coco_mini --classes person --weights mobilenet_v2.pth
"""
RESULTS = (
    'index.html',
    'predictions',
    'attention',
    'curves',
    'cost.txt',
    'config.py',
    'training',
    'evaluation',
    'logs',
    'annotations',
)
METRICS = {
    'coco/bbox_mAP_50': 'box AP50',
    'coco/segm_mAP_50': 'mask AP50',
    'coco/bbox_mAP': 'box AP',
    'coco/segm_mAP': 'mask AP',
}
PICTURES = 6  # drawn in predictions/
MAPS = 2  # of these also with attention maps
SCORE = 0.5  # below this a prediction is not drawn, unless none reaches it
PHOTOGRAPH_VIEWS = 900  # training pictures that a CPU passes in about five minutes


class QuickstartError(Exception):
    """Ends the program with its message, which names the file to look into."""


# ---------------------------------------------------------------- what the user asks for


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Train a small Mask R-CNN with efficient attention on handwritten digits or '
        'on a COCO folder, evaluate it, and show it all in one HTML page.',
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--data',
        type=Path,
        metavar='FOLDER',
        help='a folder of COCO form: '
        'annotations/instances_{train,val}.json beside train/ and val/, or the '
        'same with train2017 and val2017 (default: scenes of digits are made)',
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('out/quickstart'),
        metavar='FOLDER',
        help='where everything is left (default: %(default)s)',
    )
    parser.add_argument(
        '--classes', nargs='+', default=[], metavar='NAME', help='with --data: only these classes'
    )
    parser.add_argument(
        '--max-pictures',
        type=int,
        default=1200,
        metavar='N',
        help='with --data: at most N training pictures and a quarter as many '
        'held-out ones; 0 for all (default: %(default)s)',
    )
    parser.add_argument(
        '--weights',
        type=Path,
        metavar='FILE',
        help='with --data: pretrained '
        "weights of mmdet's MobileNetV2 (default: trained from scratch)",
    )
    parser.add_argument(
        '--epochs',
        type=int,
        metavar='N',
        help='passes over the training pictures (default: as many as take a CPU some five minutes)',
    )
    parser.add_argument(
        '--device',
        choices=['cpu', 'cuda'],
        help='default: cuda where there is a '
        "GPU and mmcv's operators were compiled for it, else cpu",
    )
    args = parser.parse_args(arguments)
    if args.data is None and (args.classes or args.weights):
        parser.error('--classes and --weights go with --data')
    if args.epochs is not None and args.epochs < 1:
        parser.error(f'--epochs must be at least 1, got {args.epochs}')
    if args.max_pictures < 0:
        parser.error(f'--max-pictures must be 0 or more, got {args.max_pictures}')
    return args


def choose_device(wanted: str | None) -> str:
    """Return 'cuda' or 'cpu', and say why where the machine has a GPU that is not used."""
    import torch
    from mmcv.ops import get_compiling_cuda_version

    compiled = get_compiling_cuda_version() != 'not available'
    if wanted == 'cuda' and not torch.cuda.is_available():
        raise QuickstartError('--device cuda: torch sees no GPU')
    if wanted == 'cuda' and not compiled:
        raise QuickstartError(
            "--device cuda: mmcv's operators here are CPU-only (they have to be "
            'compiled where nvcc is installed)'
        )
    if wanted is None and torch.cuda.is_available() and not compiled:
        say("There is a GPU, but mmcv's operators here are CPU-only: training on the CPU.")
    return wanted or ('cuda' if torch.cuda.is_available() and compiled else 'cpu')


# ---------------------------------------------------------------- data and config


def make_digits(out: Path) -> Path:
    """Make the scenes of digits in ``out``/digit_scenes unless they are there; return it."""
    sys.path.insert(0, str(TOOLS / 'dataset_tools'))
    from make_digit_scenes import Recipe, make_digit_scenes

    folder, recipe = out / 'digit_scenes', Recipe()
    with Progress('making scenes', recipe.train + recipe.val) as progress:
        try:
            made = make_digit_scenes(folder, recipe, lambda done, total: progress.show(done))
        except OSError as error:
            raise QuickstartError(str(error)) from error
    say(
        f'{recipe.train} training and {recipe.val} held-out scenes of handwritten digits '
        + (f'made in {folder}' if made else f'are there already, in {folder}')
    )
    return folder


def digits_settings(folder: Path) -> dict[str, Any]:
    """The settings of the digits' config that depend on where the scenes are."""
    root = f'{folder.resolve()}/'
    file = f'{root}annotations/instances_val.json'
    settings: dict[str, Any] = {'data_root': root}
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        settings[f'{loader}.dataset.data_root'] = root
    for evaluator in ('val_evaluator', 'test_evaluator'):
        settings[f'{evaluator}.ann_file'] = file
    return settings


def photograph_settings(args: argparse.Namespace, out: Path) -> tuple[dict[str, Any], str]:
    """Check a COCO folder; return the settings that depend on it and a description.

    Annotations of chosen classes or pictures are written to ``out``/annotations.
    """
    sys.path.insert(0, str(TOOLS / 'dataset_tools'))
    from check_coco_folder import DataError, check_coco_folder

    from kronattn_mm.visualization.report import write_text

    with Progress('checking pictures') as progress:
        try:
            data = check_coco_folder(args.data, args.classes, args.max_pictures, progress.show)
        except DataError as error:
            raise QuickstartError(str(error)) from error
    counts = [len(split.content['images']) for split in (data.train, data.val)]
    objects = [len(split.content['annotations']) for split in (data.train, data.val)]
    description = (
        f'{counts[0]} training pictures with {objects[0]} objects and {counts[1]} '
        f'held-out ones with {objects[1]}, {len(data.classes)} '
        f'class{"es" if len(data.classes) > 1 else ""}'
    )
    say(f'{args.data}: {description}')
    settings: dict[str, Any] = {}
    for names, split in ((('train',), data.train), (('val', 'test'), data.val)):
        file = out / 'annotations' / split.annotations.name
        write_text(file, json.dumps(split.content))
        for name in names:
            settings[f'{name}_dataloader.dataset.data_root'] = ''
            settings[f'{name}_dataloader.dataset.ann_file'] = str(file.resolve())
            settings[f'{name}_dataloader.dataset.data_prefix'] = dict(
                img=f'{split.images.resolve()}/'
            )
            settings[f'{name}_dataloader.dataset.metainfo'] = dict(classes=data.classes)
            if name != 'train':
                settings[f'{name}_evaluator.ann_file'] = str(file.resolve())
    settings['model.roi_head.bbox_head.num_classes'] = len(data.classes)
    settings['model.roi_head.mask_head.num_classes'] = len(data.classes)
    if args.weights is not None:
        check_weights(args.weights)
        settings['model.backbone.init_cfg'] = dict(
            type='Pretrained', checkpoint=str(args.weights.resolve())
        )
        settings['model.backbone.frozen_stages'] = 3
        settings['model.backbone.norm_eval'] = True
        # Not the inserted layers: their parameters are `backbone.attention...`.
        keys = {f'backbone.layer{stage}.': dict(lr_mult=0.05) for stage in range(1, 8)}
        settings['optim_wrapper.paramwise_cfg'] = dict(custom_keys=keys)
    epochs = args.epochs or max(1, round(PHOTOGRAPH_VIEWS / counts[0]))
    settings.update(epochs_settings(epochs))
    settings['train_cfg.val_interval'] = max(1, epochs // 5)
    return settings, description


def check_weights(path: Path) -> None:
    """Check that a file holds weights for the backbone of photographs.

    Raises:
        QuickstartError: It cannot be read, or lacks a tensor or has one of another shape, which
            mmengine would only warn of.
    """
    from mmengine.config import Config
    from mmengine.registry import MODELS, init_default_scope
    from mmengine.runner import CheckpointLoader

    if not path.is_file():
        raise QuickstartError(f'--weights: {path} is not a file')
    try:
        content = CheckpointLoader.load_checkpoint(str(path), map_location='cpu', logger='silent')
        weights = content.get('state_dict', content)
    except Exception as error:  # what unpickling garbage raises is anybody's guess
        raise QuickstartError(
            f'--weights: {path} cannot be read, it may be truncated or no '
            f'checkpoint at all: {str(error).splitlines()[0][:200]}'
        ) from error
    init_default_scope('mmdet')
    wanted = MODELS.build(Config.fromfile(str(COCO_CONFIG)).model.backbone).state_dict()
    wanted = {
        name: value
        for name, value in wanted.items()
        if not name.startswith('attention.') and not name.endswith('num_batches_tracked')
    }
    wrong = [
        name
        for name, value in wanted.items()
        if getattr(weights.get(name), 'shape', None) != value.shape
    ]
    if wrong:
        raise QuickstartError(
            f"--weights: {path} does not fit mmdet's MobileNetV2: {len(wrong)} of {len(wanted)} "
            f'tensors are missing or of another shape, such as {wrong[0]}'
        )


def epochs_settings(epochs: int) -> dict[str, Any]:
    """The settings of our configs that depend on the number of epochs."""
    return {
        'train_cfg.max_epochs': epochs,
        'param_scheduler.1.end': epochs,
        'param_scheduler.1.T_max': epochs,
    }


def compose_config(source: Path, settings: dict[str, Any]) -> str:
    """A config with some settings changed, as one file without a base."""
    from mmengine.config import Config

    config = Config.fromfile(str(source))
    config.merge_from_dict(settings)
    return config.pretty_text


def keep_earlier(out: Path) -> None:
    """Move the results of a run with other settings out of the way."""
    present = [name for name in RESULTS if (out / name).exists()]
    folder = out / 'earlier' / datetime.now().strftime('%Y%m%d_%H%M%S')
    folder.mkdir(parents=True)
    for name in present:
        (out / name).rename(folder / name)
    say(f'The run in {out} had other settings; it is kept as {folder}')


# ---------------------------------------------------------------- progress


def say(text: str) -> None:
    print(text, flush=True)


class Progress:
    """One line that changes on a terminal; elsewhere a new line at most every ten seconds."""

    def __init__(self, task: str, total: int | None = None) -> None:
        self.task, self.total = task, total
        self.bar = None
        self.written = time.monotonic()

    def __enter__(self) -> 'Progress':
        if sys.stdout.isatty():
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn
            from rich.progress import Progress as RichProgress

            self.bar = RichProgress(
                TextColumn('{task.description}'),
                BarColumn(bar_width=24),
                TaskProgressColumn(),
                TextColumn('{task.fields[note]}'),
                transient=True,
            )
            self.bar.start()
            self.row = self.bar.add_task(self.task, total=self.total, note='')
        return self

    def show(self, done: int, total: int | None = None, note: str = '') -> None:
        self.total = total or self.total
        if self.bar is not None:
            self.bar.update(self.row, completed=done, total=self.total, note=note)
        elif time.monotonic() - self.written > 10:
            self.written = time.monotonic()
            say(f'{self.task}: {done} of {self.total}{", " * bool(note)}{note}')

    def note(self, text: str) -> None:
        """A line that stays."""
        if self.bar is not None:
            self.bar.console.print(text, highlight=False)
        else:
            say(text)

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()


_TRAIN = re.compile(
    r'Epoch\(train\)\s+\[(\d+)\]\[\s*(\d+)/(\d+)\].*?eta: (\S+(?: days?, \S+)?)'
    r'.*?\sloss: (\S+)'
)
_VAL = re.compile(r'Epoch\((?:val|test)\)\s+\[(\d+)\]\[\s*(\d+)/(\d+)\]')
_METRIC = re.compile(r'coco/(bbox|segm)_mAP_50: (\S+)')


def follow_training(progress: Progress, epochs: int) -> Callable[[str], None]:
    """Return a function that takes the lines of train.py and shows what they mean."""

    def take(line: str) -> None:
        if match := _TRAIN.search(line):
            epoch, iteration, length = (int(match[group]) for group in (1, 2, 3))
            progress.show(
                (epoch - 1) * length + iteration,
                epochs * length,
                f'epoch {epoch} of {epochs}, loss {float(match[5]):.2f}, {match[4]} left',
            )
        elif (match := _VAL.search(line)) and (metrics := dict(_METRIC.findall(line))):
            progress.note(
                f'epoch {match[1]:>2} of {epochs}: box AP50 {metrics.get("bbox", "-")}, '
                f'mask AP50 {metrics.get("segm", "-")} on the held-out pictures'
            )

    return take


def follow_evaluation(progress: Progress) -> Callable[[str], None]:
    """Return a function that takes the lines of test.py and shows what they mean."""

    def take(line: str) -> None:
        if match := re.search(r'Epoch\(test\)\s+\[\s*(\d+)/(\d+)\]', line):
            progress.show(int(match[1]), int(match[2]))

    return take


# ---------------------------------------------------------------- running the other tools


@dataclass
class Runner:
    """Runs other programs with their output in log files.

    Attributes:
        logs: Folder of the log files.
        device: 'cpu' or 'cuda'.
        commands: The command lines run so far.
    """

    logs: Path
    device: str
    commands: list[str] = field(default_factory=list)

    def run(
        self,
        name: str,
        command: Sequence[str | Path],
        take: Callable[[str], None] = lambda line: None,
    ) -> str:
        """Run a Python program.

        Args:
            name: What it does, for messages and as the log file's name.
            command: Script and arguments.
            take: Called with each line of output.

        Returns:
            Its standard output; standard error goes to the log alone.

        Raises:
            QuickstartError: It failed; the message has its last line and names the log.
        """
        words = [sys.executable, *map(str, command)]
        self.commands.append(shlex.join(['python', *map(_short, words[1:])]))
        log = self.logs / f'{name}.log'
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = dict(
            os.environ, PYTHONUNBUFFERED='1', MPLBACKEND='Agg', PYTHONWARNINGS='ignore'
        )
        environment['PYTHONPATH'] = os.pathsep.join(
            filter(None, (str(TOOLS.parent), environment.get('PYTHONPATH')))
        )
        # The models here are small: a second thread gains little, and waiting for it by spinning
        # costs ten times the work as soon as something else runs on its core.
        environment.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
        cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1
        environment.setdefault('OMP_NUM_THREADS', str(max(1, min(cores // 2, 4))))
        if self.device == 'cpu':
            environment['CUDA_VISIBLE_DEVICES'] = ''
        lines: list[str] = []
        lock = threading.Lock()
        with open(log, 'w', encoding='utf-8') as file:
            process = subprocess.Popen(
                words,
                env=environment,
                text=True,
                errors='replace',
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

            def copy_errors() -> None:
                for line in process.stderr:
                    with lock:
                        file.write(line)

            errors = threading.Thread(target=copy_errors, daemon=True)
            errors.start()
            try:
                for line in process.stdout:
                    with lock:
                        file.write(line)
                        file.flush()
                    lines.append(line)
                    take(line)
                code = process.wait()
                errors.join()
            finally:
                if process.poll() is None:  # interrupted: do not leave it running
                    process.terminate()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(10)
                    process.kill()
        if code:
            written = [line.strip() for line in log.read_text(errors='replace').splitlines()]
            last = next((line for line in reversed(written) if line), 'it printed nothing')
            raise QuickstartError(
                f'{name} failed (exit code {code}): {last[:300]} -- the whole output is in {log}'
            )
        return ''.join(lines)


def _short(word: str) -> str:
    """A path relative to the working directory where it lies below it."""
    with contextlib.suppress(ValueError):
        return str(Path(word).relative_to(Path.cwd())) if os.path.isabs(word) else word
    return word


def mmdet_tool(name: str) -> Path:
    """Path of train.py or test.py in the installed mmdet."""
    import mmdet

    path = Path(mmdet.__file__).parent / '.mim' / 'tools' / name
    if not path.is_file():
        raise QuickstartError(f'the installed mmdet has no {path}; install it from its package')
    return path


def last_checkpoint(training: Path) -> Path | None:
    """The newest checkpoint that can be read, if any."""
    import torch

    for path in sorted(training.glob('epoch_*.pth'), key=lambda p: -int(p.stem[6:])):
        try:
            torch.load(path, map_location='cpu', weights_only=False)  # our own file
        except Exception:  # what reading half a file raises is anybody's guess
            say(f'{path} cannot be read (the run was interrupted while it was written)')
            continue
        return path
    return None


def train(runner: Runner, config: Path, training: Path, epochs: int) -> tuple[Path, float]:
    """Train, go on, or find that it is done; return the checkpoint and the seconds it took."""
    from kronattn_mm.visualization.report import write_text

    final = training / f'epoch_{epochs}.pth'
    spent_file = training / 'seconds.json'
    spent = json.loads(spent_file.read_text())['seconds'] if spent_file.is_file() else 0.0
    checkpoint = last_checkpoint(training)
    command = [mmdet_tool('train.py'), config, '--work-dir', training]
    if checkpoint == final:
        say(f'Already trained: {final}. Delete {training} to train again.')
        runner.commands.append(shlex.join(['python', *map(_short, map(str, command))]))
        return final, spent
    if checkpoint is not None:
        say(f'Going on after {checkpoint.name}, where the last run was interrupted.')
        command += ['--resume', checkpoint]
    elif training.exists():
        say('The last run was interrupted before its first checkpoint: starting again.')
        shutil.rmtree(training)
    start = time.monotonic()
    try:
        with Progress('training') as progress:
            runner.run('training', command, follow_training(progress, epochs))
    finally:
        spent += time.monotonic() - start
        if training.exists():
            write_text(spent_file, json.dumps(dict(seconds=spent)))
    if not final.is_file():
        raise QuickstartError(f'training ended without {final}; see {runner.logs}/training.log')
    return final, spent


def evaluate(
    runner: Runner, config: Path, checkpoint: Path, evaluation: Path
) -> tuple[dict[str, float], list[dict]]:
    """Evaluate on the held-out pictures; return the metrics and the predictions.

    Raises:
        QuickstartError: test.py failed or gave no metrics.
    """
    from mmengine.fileio import load

    shutil.rmtree(evaluation, ignore_errors=True)
    predictions = evaluation / 'predictions.pkl'
    with Progress('evaluating') as progress:
        runner.run(
            'evaluation',
            [
                mmdet_tool('test.py'),
                config,
                checkpoint,
                '--work-dir',
                evaluation,
                '--out',
                predictions,
            ],
            follow_evaluation(progress),
        )
    files = sorted(evaluation.glob('*/*.json'))
    metrics = json.loads(files[-1].read_text()) if files else {}
    found = load(predictions)
    if not any(len(one['pred_instances']['scores']) for one in found):
        say(
            'Nothing was found on the held-out pictures: more epochs, more pictures or pretrained '
            'weights (--weights) are needed.'
        )
        return dict.fromkeys(METRICS, 0.0), found  # mmdet reports nothing then
    if missing := [name for name in METRICS if name not in metrics]:
        raise QuickstartError(
            f'the evaluation gave no {missing[0]}; see {runner.logs}/evaluation.log'
        )
    return metrics, found


# ---------------------------------------------------------------- what is left for the user


def show_attention(
    runner: Runner,
    config: Path,
    checkpoint: Path,
    pictures: Sequence[str],
    out: Path,
    points: Sequence[str],
) -> list[tuple[str, list[Path]]]:
    """Draw the attention maps of some inserted layers; return (layer, files) pairs."""
    shutil.rmtree(out, ignore_errors=True)
    shown = []
    for point in points:
        runner.run(
            f'attention_{point}',
            [
                TOOLS / 'analysis_tools' / 'show_attention.py',
                config,
                checkpoint,
                *pictures,
                '--layer',
                point,
                '--maps',
                7,
                '--out-dir',
                out,
                '--device',
                runner.device,
            ],
        )
        shown.append((point, sorted(out.glob(f'*_{point}.png'))))
    return shown


def predictions_note(score: float) -> str:
    """Say which pictures and which predictions are shown."""
    rest = '' if score == SCORE else f' (none reaches {SCORE})'
    return (
        'Held-out pictures, spread over the set and not chosen by how well they came out. '
        f'Predictions with a score of {score:.2g} or more are drawn{rest}, with the score in '
        'percent.'
    )


def insertion_lines(cfg: Any) -> str:
    """The lines of a config that put attention into its backbone and neck."""
    lines = [f'attention = {_call(cfg.attention)}', 'model = dict(']
    for part in ('backbone', 'neck'):
        plugged = cfg.model[part]
        places = ', '.join(f'dict(at={entry.at!r}, layer=attention)' for entry in plugged.insert)
        lines += [
            f'    {part}=dict(',
            f'        type={plugged.type!r},',
            f'        base={plugged.base!r},',
            f'        insert=[{places}]),',
        ]
    return '\n'.join([*lines[:-1], lines[-1][:-1] + ')'])


def _call(arguments: dict) -> str:
    ordered = sorted(arguments.items(), key=lambda item: item[0] != 'type')  # the type first
    return f'dict({", ".join(f"{name}={value!r}" for name, value in ordered)})'


def environment_rows(device: str, seconds: float, description: str) -> list[tuple[str, str]]:
    """What has to be known to repeat a run: (name, value) pairs."""
    import torch

    names = (
        'kronattn_mm',
        'torch',
        'onedl-mmcv',
        'mmcv',
        'onedl-mmengine',
        'mmengine',
        'onedl-mmdetection',
        'mmdet',
    )
    versions = []
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f'{name} {metadata.version(name)}')
    hardware = f'{os.cpu_count()} CPU cores ({_processor()})'
    if device == 'cuda':
        hardware = f'{torch.cuda.get_device_name()}, {hardware}'
    return [
        ('Data', description),
        ('Training took', _duration(seconds)),
        ('Hardware', hardware),
        ('System', f'{platform.system()} {platform.machine()}, Python {platform.python_version()}'),
        ('Versions', ', '.join(versions)),
        ('Made', datetime.now().strftime('%Y-%m-%d %H:%M')),
    ]


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path('/proc/cpuinfo').read_text().splitlines():
            if line.startswith('model name'):
                return line.split(':', 1)[1].strip()
    return platform.processor() or platform.machine()


def _duration(seconds: float) -> str:
    return f'{int(seconds) // 60}:{int(seconds) % 60:02d} min'


def quickstart(args: argparse.Namespace, command: str) -> Path:
    """Do it all; return the page."""
    from kronattn_mm.environment import check_mmcv
    from kronattn_mm.visualization import report, run_report

    begin = time.monotonic()
    try:
        check_mmcv()
    except ImportError as error:
        raise QuickstartError(str(error)) from error
    device = choose_device(args.device)
    out = args.out
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a file in its place, or above it, or no right to write there
        raise QuickstartError(f'--out: {out} cannot be a folder: {error.strerror}') from error
    if args.data is None:
        source, root = DIGITS_CONFIG, make_digits(out)
        settings, description = digits_settings(root), 'scenes of handwritten digits'
        if args.epochs:
            settings.update(epochs_settings(args.epochs))
        title = 'Efficient attention in a Mask R-CNN: handwritten digits'
    else:
        source = COCO_CONFIG
        settings, description = photograph_settings(args, out)
        title = f'Efficient attention in a Mask R-CNN: {args.data.resolve().name}'
    text = compose_config(source, settings)
    config = out / 'config.py'
    if config.is_file() and config.read_text(encoding='utf-8') != text:
        keep_earlier(out)
    if not config.is_file():
        report.write_text(config, text)
    from mmengine.config import Config

    cfg = Config.fromfile(str(config))
    epochs = cfg.train_cfg.max_epochs

    runner = Runner(out / 'logs', device)
    length = f'{epochs} epoch{"s" * (epochs > 1)}'
    say(
        f"Training {length} with mmdet's train.py on "
        f'{"the GPU" if device == "cuda" else "the CPU"}; log: {runner.logs}/training.log'
    )
    checkpoint, seconds = train(runner, config, out / 'training', epochs)
    metrics, predictions = evaluate(runner, config, checkpoint, out / 'evaluation')

    say('Drawing pictures, attention maps and curves')
    classes = tuple(cfg.test_dataloader.dataset.metainfo.classes)
    annotation_file = cfg.test_evaluator.ann_file
    shutil.rmtree(out / 'predictions', ignore_errors=True)
    chosen = report.choose_pictures(predictions, annotation_file, PICTURES)
    score = report.choose_score(chosen, SCORE, fewest=2 * PICTURES)
    drawn = report.draw_predictions(chosen, annotation_file, classes, out / 'predictions', score)
    training, validation = report.read_scalars(out / 'training')
    curves = [
        (out / 'curves' / 'loss.png', 'Training loss over the epochs'),
        (out / 'curves' / 'average_precision.png', 'Average precision over the epochs'),
    ]
    report.draw_loss(training, curves[0][0])
    report.draw_precision(validation, curves[1][0])
    stage = 'backbone.res3' if args.data is None else 'backbone.layer5'
    attention = show_attention(
        runner,
        config,
        checkpoint,
        [one['img_path'] for one in chosen[:MAPS]],
        out / 'attention',
        ('neck.fpn1', stage),
    )
    shape = cfg.test_pipeline[1].scale
    cost = runner.run(
        'cost', [TOOLS / 'analysis_tools' / 'cost.py', config, '--shape', shape[1], shape[0]]
    )
    report.write_text(out / 'cost.txt', cost)
    cost_command = runner.commands[-1]

    told = run_report.inserted_and_changed(config, source, (shape[1], shape[0]))
    page = out / 'index.html'
    figures = [
        *((label, f'{metrics[name]:.2f}') for name, label in METRICS.items()),
        ('training', _duration(seconds)),
    ]
    report.write_page(
        page,
        title=title,
        figures=figures,
        predictions_note=predictions_note(score),
        figures_note="AP: COCO's average precision on the held-out pictures, over overlaps of 0.5 "
        "to 0.95; AP50: at an overlap of 0.5. From mmdet's test.py and pycocotools.",
        summary=f'A Mask R-CNN with efficient attention in two stages of its backbone and on all '
        f'five levels of its pyramid, trained for {length} on {description}, '
        + ('from random weights.' if not args.weights else f'from {args.weights.name}.'),
        predictions=drawn,
        attention=attention,
        curves=curves,
        insertion=insertion_lines(cfg),
        cost=cost,
        cost_command=cost_command,
        environment=environment_rows(device, seconds, description),
        commands=[command, *runner.commands],
        config_name=source.name,
        status=told['status'],
        differences=told['differences'],
        differences_note=told['differences_note'],
        config_source=source.read_text(encoding='utf-8'),
        config_full=text,
    )
    say(
        'Held out: '
        + ', '.join(f'{name} {value}' for name, value in figures[:-1])
        + f'. All of it took {_duration(time.monotonic() - begin)}.'
    )
    return page


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    args = parse_args(arguments)
    command = shlex.join(
        [
            'python',
            _short(str(Path(__file__).resolve())),
            *(sys.argv[1:] if arguments is None else arguments),
        ]
    )

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        page = quickstart(args, command)
    except QuickstartError as error:
        print(f'quickstart.py: error: {error}', file=sys.stderr)
        return 1
    except ImportError as error:
        print(
            f'quickstart.py: error: {error}. What tools/ need: pip install -r '
            'requirements/tools.txt',
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(
            '\nInterrupted. The same command goes on from the last finished epoch.', file=sys.stderr
        )
        return 130
    say(f'Open {page.resolve()}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
