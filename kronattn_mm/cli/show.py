"""Draw the global attention maps of an inserted layer over images.

Works with any config of mmdet, mmseg or mmpretrain whose model has layers put in by
``kronattn_mm.Plugged``. See docs/seeing_attention.md for what the pictures show.
"""

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXAMPLE = """\
example:
  kronattn show \\
      configs/efficient_attention/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py \\
      work_dirs/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco/epoch_24.pth \\
      photos/*.jpg --layer neck.fpn1 --out-dir out/attention_maps
"""


class UserError(Exception):
    """Something that the user can mend; ends the program with a message and exit code 2."""


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    from ..cost.command_line import ConfigOptions

    parser = argparse.ArgumentParser(
        description='Draw the global attention maps (template maps) of an inserted layer over '
        'images: one PNG for each image, the most distinct maps first.',
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('config', help='config file of the model')
    parser.add_argument('checkpoint', help='trained weights of that config (file or URL)')
    parser.add_argument('images', nargs='+', metavar='IMAGE', help='image files')
    parser.add_argument(
        '--layer',
        help='inserted layer, such as neck.fpn1 or backbone.res4 '
        '(default: the one with the finest maps)',
    )
    parser.add_argument(
        '--maps',
        type=int,
        default=6,
        metavar='N',
        help='maps for each image (default: %(default)s)',
    )
    parser.add_argument(
        '--out-dir',
        type=Path,
        default=Path('out/attention_maps'),
        metavar='DIR',
        help='folder for the pictures (default: %(default)s)',
    )
    parser.add_argument('--device', default='cpu', help='such as cuda:0 (default: %(default)s)')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=ConfigOptions,
        metavar='KEY=VALUE',
        help='settings of the config to override',
    )
    args = parser.parse_args(arguments)
    if args.maps < 1:
        parser.error(f'--maps must be at least 1, got {args.maps}')
    return args


def check_images(paths: Sequence[str]) -> None:
    """Decode every image to the end, so that a bad one is named before anything is computed."""
    from PIL import Image

    for path in paths:
        if not os.path.exists(path):
            raise UserError(f'image {path!r} does not exist')
        if os.path.isdir(path):
            raise UserError(f'image {path!r} is a folder; give files, such as {path}/*.jpg')
        try:
            # OpenCV, with which the pipelines read, fills up what is missing and says nothing.
            with Image.open(path) as image:
                image.load()
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(
                f'image {path!r} cannot be read, it may be truncated: {error}'
            ) from error


def output_paths(images: Sequence[str], layer: str, folder: Path) -> list[Path]:
    """Name the pictures after the images; images of one name get numbers."""
    taken: set[str] = {Path(image).stem.casefold() for image in images}
    seen: set[str] = set()
    paths = []
    for image in images:
        name = stem = Path(image).stem
        number = 1
        while name.casefold() in seen or (number > 1 and name.casefold() in taken):
            number += 1
            name = f'{stem}-{number}'
        seen.add(name.casefold())
        paths.append(folder / f'{name}_{layer}.png')
    return paths


def load_config(path: str, options: dict[str, Any] | None) -> Any:
    from mmengine.config import Config

    if not os.path.isfile(path):
        raise UserError(f'config {path!r} does not exist')
    try:
        config = Config.fromfile(path)
        if options:
            config.merge_from_dict(options)
    except Exception as error:  # a config is a program and may raise anything
        raise UserError(f'config {path!r} cannot be read: {_line(error)}') from error
    if 'model' not in config:
        raise UserError(f'config {path!r} has no model')
    return config


def build_model(config: Any, path: str) -> Any:
    import torch
    from mmengine.model import revert_sync_batchnorm
    from mmengine.registry import MODELS, init_default_scope

    init_default_scope(config.get('default_scope') or 'mmengine')
    torch.manual_seed(0)  # what a checkpoint lacks is the same from call to call
    try:
        return revert_sync_batchnorm(MODELS.build(config.model))
    except (ImportError, KeyError, TypeError, ValueError, AssertionError) as error:
        raise UserError(f'the model of {path!r} cannot be built: {_line(error)}') from error


def load_weights(model: Any, path: str) -> list[str]:
    """Load a checkpoint; return the names of inserted layers that it has no weights for."""
    from mmengine.runner import CheckpointLoader

    from kronattn_mm.plugging import inserted_layers

    if '://' not in path and not os.path.isfile(path):
        raise UserError(f'checkpoint {path!r} does not exist')
    try:
        checkpoint = CheckpointLoader.load_checkpoint(path, map_location='cpu', logger='silent')
    except Exception as error:  # what unpickling garbage raises is anybody's guess
        raise UserError(
            f'checkpoint {path!r} cannot be read, it may be truncated or no '
            f'checkpoint at all: {_line(error)}'
        ) from error
    weights = checkpoint.get('state_dict', checkpoint) if isinstance(checkpoint, dict) else None
    if not isinstance(weights, dict) or not all(
        hasattr(value, 'shape') for value in weights.values()
    ):
        raise UserError(f'checkpoint {path!r} holds no state_dict')
    weights = {key.removeprefix('module.'): value for key, value in weights.items()}
    wanted = model.state_dict()
    missing = [
        key for key in wanted if key not in weights and not key.endswith('num_batches_tracked')
    ]
    names = {id(module): name for name, module in model.named_modules()}
    untrained = []
    for name, insertion in inserted_layers(model).items():
        prefix = names[id(insertion.layer)] + '.'
        if any(key.startswith(prefix) for key in missing):
            untrained.append(name)
            missing = [key for key in missing if not key.startswith(prefix)]
    wrong = [
        f'{key} is {tuple(weights[key].shape)} there and {tuple(wanted[key].shape)} in the model'
        for key in wanted
        if key in weights and weights[key].shape != wanted[key].shape
    ]
    strange = [key for key in weights if key not in wanted]
    lost = [key for key in strange if '.attention.' in f'.{key}']
    for count, what, first in (
        (len(wrong), 'tensors of another shape', wrong[:1]),
        (len(missing), 'keys missing', missing[:1]),
        (len(lost), 'attention keys that the config has no layer for', lost[:1]),
    ):
        if count:
            raise UserError(
                f'checkpoint {path!r} does not fit the config: {count} {what}, such as {first[0]}'
            )
    if strange:
        print(
            f'note: {len(strange)} keys of the checkpoint are not in the model, such as '
            f'{strange[0]}',
            file=sys.stderr,
        )
    model.load_state_dict(weights, strict=False)
    return untrained


def build_pipeline(config: Any, path: str) -> Any:
    """Build the config's test pipeline without the step that reads annotations."""
    from mmengine.dataset import Compose

    dataset = config.get('test_dataloader', {}).get('dataset')
    while dataset is not None and 'pipeline' not in dataset:
        dataset = dataset.get('dataset') or (dataset.get('datasets') or [None])[0]
    steps = dataset.pipeline if dataset is not None else config.get('test_pipeline')
    if steps is None:
        raise UserError(
            f'config {path!r} has no test pipeline (test_dataloader.dataset.pipeline '
            'or test_pipeline)'
        )
    return Compose([step for step in steps if 'Annotations' not in str(step['type'])])


def write_png(picture: Any, path: Path) -> None:
    from PIL import Image

    temporary = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        Image.fromarray(picture).save(temporary, format='PNG')
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def show(model: Any, pipeline: Any, image: str, layer: str, count: int, warning: str) -> Any:
    """Run the model on one image and draw its maps."""
    import torch
    from mmengine.dataset import pseudo_collate

    from ..visualization import MapRecorder, draw_attention
    from ..visualization.attention_maps import shown_region
    from ..visualization.attention_picture import network_image

    data = pipeline(dict(img_path=image, img_id=0))
    with MapRecorder(model, layer) as recorder, torch.no_grad():
        sample = model.test_step(pseudo_collate([data]))[0]
    recorder.check()
    shape = tuple(data['inputs'].shape[-2:])
    if any(seen < given for seen, given in zip(recorder.network_shape, shape, strict=True)):
        print(
            f'note: the model looks at {image} through a sliding window; the first window is '
            'shown (for the whole: --cfg-options model.test_cfg.mode=whole)',
            file=sys.stderr,
        )
    height, width = shown_region(shape, recorder.network_shape, sample.metainfo)
    picture = network_image(data['inputs'])[:height, :width]
    return draw_attention(
        picture, recorder.maps[0], recorder.network_shape, layer, Path(image).name, count, warning
    )


def run(args: argparse.Namespace) -> None:
    check_images(args.images)
    import torch
    from tqdm import tqdm

    from ..visualization import choose_layer

    try:
        device = torch.device(args.device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f'device {args.device!r} cannot be used: {_line(error)}') from error
    config = load_config(args.config, args.cfg_options)
    model = build_model(config, args.config)
    layer = choose_layer(model, args.layer)
    untrained = load_weights(model, args.checkpoint)
    pipeline = build_pipeline(config, args.config)
    warning = ''
    if untrained:
        others = [name for name in untrained if name != layer]
        text = f'checkpoint {args.checkpoint!r} has no weights for {", ".join(untrained)}'
        if layer in untrained:
            warning = f'untrained: the checkpoint has no weights for {layer}'
            text += f'; the maps of {layer} are those of random weights'
        elif others:
            warning = f'the checkpoint has no weights for {", ".join(others)}'
        print(f'warning: {text}', file=sys.stderr)
    model.to(device).eval()
    try:
        args.out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'{str(args.out_dir)!r} cannot be made a folder: {error}') from error
    paths = output_paths(args.images, layer, args.out_dir)
    # No bar where nobody watches (tqdm's disable=None); the lines below tell the progress too.
    for image, path in zip(tqdm(args.images, unit='image', disable=None), paths, strict=True):
        write_png(show(model, pipeline, image, layer, args.maps, warning), path)
        tqdm.write(f'wrote {path}')


def _line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return ' '.join(text.split('\n')[0].split())[:400]


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_args(arguments)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter('ignore', category=UserWarning)  # upstream's, on every import
            from ..visualization import AttentionMapError

            try:
                run(args)
            except AttentionMapError as error:
                raise UserError(str(error)) from error
    except UserError as error:
        print(f'kronattn show: error: {error}', file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, for example: nobody's mistake
        print(f'kronattn show: error: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
