"""Run a tool of the library that a config is written for: mmdet's, mmseg's or mmpretrain's own.

train.py and test.py differ in nothing but the name of the tool. The library's script runs in this
process with the same arguments; what is added is a look at what it would otherwise stumble over
late or with an obscure message, and a process group for several processes without a GPU.
"""

import difflib
import importlib.util
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARIES = {
    'mmdet': 'onedl-mmdetection',
    'mmseg': 'onedl-mmsegmentation',
    'mmpretrain': 'onedl-mmpretrain',
}
CONFIG_SUFFIXES = ('.py', '.json', '.yml', '.yaml')
LEGACY_CHECKPOINT = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.'  # torch.save before version 1.6
SMALL_FILE = 1 << 20  # bytes; an annotation file without pictures is never larger


class UserError(Exception):
    """Something the user can put right, said in one line."""


def main(tool: str, description: str) -> None:
    """Run ``tool`` of the library that the config on the command line is for.

    Args:
        tool (str): File name of the tool, ``'train.py'`` or ``'test.py'``.
        description (str): What ``--help`` says before the library's own help.
    """
    dry = tool == 'train.py' and '--dry-run' in sys.argv
    if dry:
        sys.argv.remove('--dry-run')
    try:
        if {'-h', '--help'} & set(sys.argv[1:]):
            print(description, flush=True)
            script, config = load_tool(first_library(), tool), {}
        else:
            script, config = prepare(tool)
            if dry:
                rehearse(config)
                return
    except (UserError, ImportError) as error:
        sys.exit(f'{tool}: error: {error}')
    try:
        script.main()
    except Exception as error:
        if 'imdecode' not in str(error):
            raise
        # OpenCV does not know the file's name; looking for it costs nothing any more.
        empty = empty_pictures(config, loaders(tool))
        if not empty:
            raise
        sys.exit(f'{tool}: error: {len(empty)} empty picture file(s): {", ".join(empty[:5])}')


def rehearse(config: Any) -> None:
    """Go through the whole of a training with a few batches: ``--dry-run``."""
    from kronattn_mm.engine.dry_run import DryRunError, dry_run

    library = find_library(config, find_config(sys.argv[1:]))
    try:
        dry_run(lambda name: load_tool(library, name), config, other_arguments(sys.argv[1:]))
    except DryRunError as error:
        raise UserError(str(error)) from error


def other_arguments(arguments: Sequence[str]) -> list[str]:
    """Return what is left of train.py's arguments without config, work folder and options."""
    left: list[str] = []
    skipping = False  # until the next option
    words = iter(arguments)
    for word in words:
        if word.startswith('-'):
            skipping = word == '--cfg-options'
        if word == '--work-dir':
            next(words, None)
        elif (
            not skipping
            and not word.startswith('--work-dir=')
            and not word.endswith(CONFIG_SUFFIXES)
        ):
            left.append(word)
    return left


def loaders(tool: str) -> tuple[str, ...]:
    """Names of the data loaders that a tool reads from."""
    return ('test_dataloader',) if tool == 'test.py' else ('train_dataloader', 'val_dataloader')


def prepare(tool: str) -> tuple[ModuleType, dict[str, Any]]:
    """Check config, data and checkpoints.

    Returns:
        tuple[ModuleType, dict]: The library's tool, ready to run, and the config with the command
        line's options.

    Raises:
        UserError: If something is not as it must be.
    """
    if importlib.util.find_spec('mmengine') is None:
        raise UserError(
            'mmengine is not installed; see README.md for the sets of packages that go together'
        )
    from mmengine.config import Config

    from kronattn_mm.checkpoint_types import allow_own_checkpoints

    allow_own_checkpoints()  # also for configs without anything of ours
    path = find_config(sys.argv[1:])
    try:
        config = Config.fromfile(str(path))
    except Exception as error:
        raise UserError(f'config {path} cannot be read: {error}') from error
    script = load_tool(find_library(config, path), tool)
    arguments = script.parse_args()
    if arguments.cfg_options:
        config.merge_from_dict(arguments.cfg_options)
    for loader in loaders(tool):
        for file in annotation_files(config.get(loader)):
            check_annotations(file, loader)
    for checkpoint in (
        getattr(arguments, 'checkpoint', None),
        getattr(arguments, 'resume', None),
        config.get('load_from'),
    ):
        if isinstance(checkpoint, str) and checkpoint != 'auto':
            check_checkpoint(checkpoint)
    if arguments.launcher == 'pytorch':
        join_processes_without_gpu(config)
    return script, config


def find_config(arguments: Sequence[str]) -> Path:
    """Return the config among the arguments: the first that has the suffix of one."""
    for argument in arguments:
        if (
            argument.endswith(CONFIG_SUFFIXES)
            and not argument.startswith('-')
            and '=' not in argument
        ):
            path = Path(argument)
            break
    else:
        raise UserError('no config given; see --help')
    if path.is_file():
        return path
    siblings = [sibling.name for sibling in path.parent.glob(f'*{path.suffix}')]
    near = difflib.get_close_matches(path.name, siblings, n=1)
    raise UserError(
        f'config {path} does not exist'
        + (f'; did you mean {path.parent / near[0]}?' if near else '')
    )


def find_library(config: dict[str, Any], path: Path) -> str:
    """Return the library a config is for, which is its default scope."""
    scope = config.get('default_scope')
    if scope not in LIBRARIES:
        raise UserError(
            f'config {path} has the default_scope {scope!r}; it must be one of '
            f'{", ".join(map(repr, LIBRARIES))}, whose tool is to be run'
        )
    return scope


def first_library() -> str:
    """Return the first of the libraries that is installed."""
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is not None:
            return library
    raise UserError(
        'none of the libraries is installed whose tools this runs: ' + ', '.join(LIBRARIES)
    )


def load_tool(library: str, tool: str) -> ModuleType:
    """Import the library's own script, from its installed package or its checkout."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        raise UserError(
            f'{library} is not installed; install it with `pip install {LIBRARIES[library]}`'
        )
    if library == 'mmdet':
        from kronattn_mm.environment import check_mmcv

        check_mmcv()
    package = Path(spec.origin).parent
    places = [package / '.mim' / 'tools' / tool, package.parent / 'tools' / tool]
    script = next((place for place in places if place.is_file()), None)
    if script is None:
        raise UserError(
            f'{library} has no {tool} where it usually is: ' + ' or '.join(map(str, places))
        )
    name = f'{library}_{script.stem}_tool'
    spec = importlib.util.spec_from_file_location(name, script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # data workers that are spawned look for its functions there
    spec.loader.exec_module(module)
    return module


def annotation_files(node: Any) -> Iterator[str]:
    """Yield the local annotation files of a data loader, wrapped datasets included."""
    if isinstance(node, dict):
        file = node.get('ann_file')
        if isinstance(file, str) and file and '://' not in (node.get('data_root') or '') + file:
            yield os.path.join(node.get('data_root') or '', file)
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from annotation_files(child)


def check_annotations(file: str, loader: str) -> None:
    """Raise UserError if an annotation file is missing, empty or without pictures."""
    path = Path(file)
    if not path.is_file():
        raise UserError(
            f'annotation file {file} does not exist; put the data there, or say where '
            f'it is with --cfg-options {loader}.dataset.data_root=FOLDER/'
        )
    if path.stat().st_size == 0:
        raise UserError(f'annotation file {file} is empty')
    if path.suffix != '.json' or path.stat().st_size > SMALL_FILE:
        return
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except ValueError as error:
        raise UserError(f'annotation file {file} is not valid JSON: {error}') from error
    if isinstance(content, dict) and not content.get('images', True):
        raise UserError(f'annotation file {file} lists no images')


def empty_pictures(config: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return the pictures of data loaders that are files without content."""
    from mmengine.registry import DATASETS

    empty = []
    for name in names:
        if config.get(name) is None:
            continue
        dataset = DATASETS.build(dict(config[name]['dataset'], pipeline=[]))
        paths = (dataset.get_data_info(index)['img_path'] for index in range(len(dataset)))
        empty += [path for path in paths if os.path.isfile(path) and os.path.getsize(path) == 0]
    return empty


def check_checkpoint(file: str) -> None:
    """Raise UserError if a local file is not one that ``torch.save`` wrote to its end."""
    if '://' in file:
        return
    path = Path(file)
    if not path.is_file():
        raise UserError(f'checkpoint {file} does not exist')
    with path.open('rb') as stream:
        legacy = stream.read(len(LEGACY_CHECKPOINT)) == LEGACY_CHECKPOINT
    # The index of a zip archive is at its end: a file that was cut off has none.
    if not legacy and not zipfile.is_zipfile(path):
        raise UserError(
            f'checkpoint {file} is corrupt or incomplete ({path.stat().st_size} bytes '
            'that torch.load cannot read)'
        )


def join_processes_without_gpu(config: dict[str, Any]) -> None:
    """Make several processes train together where there is no GPU.

    mmengine selects a GPU for each process whatever the backend, twice: when it starts the process
    group, which it leaves alone if it is there already, and when it wraps the model, which goes by
    `model_wrapper_cfg` if there is one.
    """
    import torch

    if torch.cuda.is_available():
        return
    torch.distributed.init_process_group('gloo')
    wrapper = dict(
        type='MMDistributedDataParallel',
        broadcast_buffers=False,
        find_unused_parameters=config.get('find_unused_parameters', False),
    )
    wrapper.update(config.get('model_wrapper_cfg') or {}, device_ids=None)
    options = [f'model_wrapper_cfg.{key}={value}' for key, value in wrapper.items()]
    if '--cfg-options' in sys.argv:
        place = sys.argv.index('--cfg-options') + 1
        sys.argv[place:place] = options
    else:
        sys.argv += ['--cfg-options', *options]
