"""Say what a small file or a checkpoint holds, without running anything that is in it.

No config is needed. Exit code 0 if there are inserted layers in the file, 1 if there are none.
"""

import argparse
import collections
import json
import pickle
import re
import types
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cost.command_line import Parser
from ..plugging.small_file import read_small_file
from .checkpoints import UserError, run_command

EXAMPLE = 'kronattn inspect attention.safetensors'
_LEGACY = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.'  # how torch.save began before torch 1.6


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    parser.add_argument('file', metavar='FILE', type=Path, help='.safetensors or .pth')
    parser.add_argument('--json', action='store_true', help='print JSON instead of text')
    arguments = parser.parse_args(argv)
    return run_command(parser.prog, lambda: _inspect(arguments))


def _inspect(arguments: argparse.Namespace) -> int:
    content = describe(arguments.file)
    if arguments.json:
        print(json.dumps(content, indent=2))
    else:
        print(_text(arguments.file, content))
    return 0 if content['layers'] else 1


def describe(path: Path) -> dict[str, Any]:
    """Say what a file holds.

    Args:
        path (Path): A small file, or a checkpoint of any OpenMMLab library.

    Returns:
        dict: ``kind`` (``'small file'`` or ``'checkpoint'``), ``tensors``, ``parameters``,
        ``layers`` (one dict for each inserted layer or group of convolutions) and, where known,
        ``base``, ``extra``, ``versions``, ``metrics``, ``licence``, ``meta``. Fit for JSON.

    Raises:
        UserError: If the file is missing, damaged or neither of the two.
    """
    if not path.is_file():
        raise UserError(f'there is no file {path}')
    with path.open('rb') as stream:
        start = stream.read(len(_LEGACY))
    if zipfile.is_zipfile(path) or start == _LEGACY:
        return _checkpoint(path)
    if path.suffix in ('.pth', '.pt', '.ckpt') or start[:2] in (b'PK', _LEGACY[:2]):
        raise UserError(
            f'{path} is no complete checkpoint ({path.stat().st_size} bytes, not what '
            'torch.save writes); it may be truncated'
        )
    return _small_file(path)


def _small_file(path: Path) -> dict[str, Any]:
    content = read_small_file(path)
    layers = []
    for part in content.parts:
        prefix = f'{part["path"]}.' if part['path'] else ''
        layers += [
            dict(name=prefix + entry['point'], at=entry['at'], number=1, **_type(entry))
            for entry in part['insert']
        ]
        layers += [
            dict(
                name=prefix + entry['at'],
                at=entry['at'],
                number=len(entry['paths']),
                **_type(entry),
            )
            for entry in part['convs']
        ]
    base = {key: value for key, value in content.base.items() if key != 'shapes'}
    return dict(
        kind='small file',
        tensors=len(content.tensors),
        parameters=sum(value.numel() for value in content.tensors.values()),
        layers=layers,
        base=dict(base, tensors=len(content.base['shapes'])),
        extra=content.extra,
        versions=content.versions,
        metrics=content.metrics,
        licence=content.licence,
    )


def _type(entry: Mapping[str, Any]) -> dict[str, Any]:
    arguments = dict(entry['layer'])
    return dict(type=arguments.pop('type'), arguments=arguments, enabled=entry['enabled'])


def _checkpoint(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(
            path, map_location='cpu', weights_only=False, pickle_module=_NothingRuns
        )
    except Exception as error:  # what a damaged file raises is anybody's guess
        raise UserError(
            f'{path} cannot be read as a checkpoint, it may be truncated: '
            f'{str(error).splitlines()[0][:200]}'
        ) from error
    if not isinstance(content, Mapping):
        raise UserError(f'{path} holds a {type(content).__name__}, not a checkpoint')
    state = content.get('state_dict', content)
    tensors = (
        {key: value for key, value in state.items() if isinstance(value, Tensor)}
        if isinstance(state, Mapping)
        else {}
    )
    if not tensors:
        raise UserError(f'{path} holds no state_dict')
    meta = content.get('meta') if isinstance(content.get('meta'), Mapping) else {}
    config = meta.get('cfg') if isinstance(meta.get('cfg'), str) else ''
    return dict(
        kind='checkpoint',
        tensors=len(tensors),
        parameters=sum(value.numel() for value in tensors.values()),
        layers=_layers_of(tensors, config),
        plugged_config='kronattn_mm.Plugged' in config,
        also=[key for key in content if key not in ('state_dict', 'meta') and content is not state],
        meta={
            key: value
            for key, value in meta.items()
            if isinstance(value, (str, int, float)) and key != 'cfg'
        },
    )


def _layers_of(tensors: Mapping[str, Tensor], config: str) -> list[dict[str, Any]]:
    """Group the keys under ``attention``: a guess by names, as the modules are not there."""
    groups: dict[str, list[Tensor]] = collections.defaultdict(list)
    for key, value in tensors.items():
        match = re.match(r'(?:module\.)?(?P<owner>(?:.*?\.)??)attention\.(?P<point>[^.]+)', key)
        if match is None:
            continue
        # A convolution has its new weights right under its own `attention`, beside `weight`.
        conv = f'{match["owner"]}weight' in tensors
        groups[match['owner'][:-1] if conv else f'{match["owner"]}{match["point"]}'].append(value)
    return (
        [
            dict(name=name, number=1, parameters=sum(value.numel() for value in values))
            for name, values in groups.items()
        ]
        if groups and _ours(config)
        else []
    )


def _ours(config: str) -> bool:
    # Without a config there are only the names to go by.
    if not config:
        return True
    return 'kronattn_mm' in config


def _text(path: Path, content: Mapping[str, Any]) -> str:
    size = path.stat().st_size / 1e6
    lines = [
        f'{path}: {content["kind"]}, {content["tensors"]} tensors, '
        f'{content["parameters"]:,} values, {size:.2f} MB'
    ]
    small = content['kind'] == 'small file'
    if not content['layers']:
        lines.append('no inserted layers of kronattn_mm are in it')
    elif not small:
        how = (
            'its config has kronattn_mm'
            if content['plugged_config']
            else 'by the names of its keys; it has no config'
        )
        lines.append(f'inserted layers or replaced convolutions ({how}):')
    for layer in content['layers']:
        if small:
            arguments = ', '.join(f'{key}={value!r}' for key, value in layer['arguments'].items())
            number = f', {layer["number"]} convolutions' if layer['number'] > 1 else ''
            off = '' if layer['enabled'] else ', off'
            lines.append(f'  {layer["name"]}: {layer["type"]}({arguments}){number}{off}')
        else:
            lines.append(f'  {layer["name"]}: {layer["parameters"]:,} values')
    if small:
        lines += _small_file_lines(content)
    else:
        lines += [f'{key}: {value}' for key, value in content['meta'].items()]
        if content['also']:
            lines.append(f'also in it: {", ".join(content["also"])}')
    return '\n'.join(lines)


def _small_file_lines(content: Mapping[str, Any]) -> list[str]:
    base, extra = content['base'], content['extra']
    moved = base['moved']
    lines = [
        f'for: {base["model"]} of {base["config"] or "a config not named"}, '
        f'{base["tensors"]} tensors, fingerprint {base["fingerprint"][:12]}, '
        f'weights {base["weights"][:12]}'
    ]
    lines.append(
        'base moved during training: '
        + (
            'not known'
            if moved is None
            else 'no'
            if not any(moved.values())
            else f'{moved["statistics"]} statistics, {moved["weights"]} weights, '
            f'{moved["not_in_file"]} of these not in the file'
        )
    )
    if extra['also'] or extra['norms']:
        lines.append(
            'of the base in the file: '
            + ', '.join([*extra['also'], *(['all batch norms'] if extra['norms'] else [])])
        )
    lines.append(
        'metrics: '
        + (
            ', '.join(f'{key} {value:g}' for key, value in content['metrics'].items())
            or 'none recorded'
        )
    )
    lines.append(f'licence: {content["licence"]}')
    lines.append(
        'written with: ' + ', '.join(f'{key} {value}' for key, value in content['versions'].items())
    )
    return lines


class _Unknown:
    """Stands for an object of a class that is not needed and so is not imported."""

    def __new__(cls, *args: Any, **kwargs: Any) -> '_Unknown':
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> '_Unknown':
        return self

    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    """Makes tensors and plain containers, and nothing else: a checkpoint may be a stranger's."""

    def find_class(self, module: str, name: str) -> Any:
        if module == 'torch._utils' and name in (
            '_rebuild_tensor_v2',
            '_rebuild_tensor',
            '_rebuild_parameter',
        ):
            return getattr(torch._utils, name)
        if (module, name) == ('collections', 'OrderedDict'):
            return collections.OrderedDict
        if module in ('torch', 'torch.storage') and name.endswith('Storage'):
            return getattr(torch.storage if module == 'torch.storage' else torch, name)
        return _Unknown


_NothingRuns = types.ModuleType('kronattn_mm_nothing_runs')
_NothingRuns.Unpickler = _Unpickler
_NothingRuns.load = lambda stream, **options: _Unpickler(stream, **options).load()
