"""Write docs/configs.md: a table of all configs, from their text and the metafiles.

No config is executed and nothing is built, so that it takes a second. What a config inserts is
read in its own file and, where it says nothing of that, in the files that it builds on.
"""

import argparse
import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'configs.md'
EXAMPLE = """example:
  python tools/docs/config_table.py           # writes docs/configs.md
  python tools/docs/config_table.py --check   # exit code 1 if the page is not up to date"""

HEAD = """\
# Which configs are there?

<!-- Written by tools/docs/config_table.py; edits here are lost. -->

{number} configs, by folder. "Inserted" names layers and points as the config has them
([points](insertion_points.md)); "training" is from the metafile. Where a metafile has no results,
the config has not been trained to its end here. The README of a folder says what each row of a
paper's table is and what the paper leaves open.

How to run one: `python tools/train.py CONFIG`, after `python tools/train.py CONFIG --dry-run`.
"""
# Folders in this order, each with what it holds; a new folder gets its name as a title.
TITLES = {
    'quickstart': 'Quickstart',
    'efficient_attention': 'Efficient attention: instance segmentation',
    'kronecker_attention/imagenet': 'Kronecker attention: classification',
    'kronecker_attention/detection': 'Kronecker attention: detection',
    'kronecker_attention/segmentation': 'Kronecker attention: segmentation',
    'kronecker_attention/small': 'Kronecker attention: small sets',
    'shift_and_balance/classification/imagenet': 'Shift-and-Balance: ImageNet',
    'shift_and_balance/classification/cifar10': 'Shift-and-Balance: CIFAR-10',
    'shift_and_balance/ssd': 'Shift-and-Balance: SSD',
    'shift_and_balance/ssd/small': 'Shift-and-Balance: SSD on small sets',
}
_OURS = re.compile(r'kronattn_mm\.(\w+)')
_MMCV_LAYERS = ('NonLocal2d', 'ContextBlock')
_ARCHITECTURES = ('CIFARMobileNetV2', 'ExpansionMobileNetV2', 'KANet', 'MnasNet')
_PARTS = ('backbone', 'neck', 'decode_head', 'bbox_head', 'roi_head')


@dataclass
class Source:
    """What the text of one config file says.

    Attributes:
        text: The comment or docstring at its head.
        bases: Relative files that it builds on, in order.
        layers: Names of layers, ours and mmcv's.
        architectures: Names of backbones of ours.
        points: Words after ``at`` by part of the model; part '' for lists with names of their own.
    """

    text: str
    bases: list[Path] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    architectures: list[str] = field(default_factory=list)
    points: dict[str, list[str]] = field(default_factory=dict)


def main(argv: list[str] | None = None) -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--check',
        action='store_true',
        help='write nothing; exit code 1 if the page is not up to date',
    )
    arguments = parser.parse_args(argv)
    text = page(ROOT)
    present = PAGE.read_text(encoding='utf-8') if PAGE.exists() else ''
    if arguments.check:
        if text != present:
            print(
                f'{PAGE.relative_to(ROOT)} is not up to date; write it anew with '
                '`python tools/docs/config_table.py`',
                file=sys.stderr,
            )
            return 1
        return 0
    temporary = PAGE.with_suffix('.part')
    temporary.write_text(text, encoding='utf-8')
    temporary.replace(PAGE)
    return 0


def page(root: Path) -> str:
    """Return the text of docs/configs.md for the configs of a checkout."""
    configs = find_configs(root / 'configs')
    models = read_metafiles(root)
    folders: dict[str, list[Path]] = {name: [] for name in TITLES}
    for path in configs:
        folders.setdefault(path.parent.relative_to(root / 'configs').as_posix(), []).append(path)
    parts = [HEAD.format(number=len(configs))]
    for name, paths in folders.items():
        if not paths:
            continue
        rows = ['| config | what it is | inserted | training |', '| --- | --- | --- | --- |']
        rows += [row(path, models, root) for path in paths]
        readme = _readme(root / 'configs' / name)
        more = [f'[README](../{readme.relative_to(root).as_posix()})', ''] if readme else []
        parts.append('\n'.join([f'## {TITLES.get(name, name)}', '', *more, *rows, '']))
    return '\n'.join(parts)


def row(path: Path, models: dict[str, dict], root: Path) -> str:
    """Return the line of one config."""
    relative = path.relative_to(root).as_posix()
    model = models.get(relative, {})
    cells = [
        f'[{path.stem}](../{relative})',
        first_sentence(read(path).text),
        inserted(path),
        training(model),
    ]
    return '| ' + ' | '.join(cells) + ' |'


def find_configs(folder: Path) -> list[Path]:
    """Return every config that can be trained, sorted."""
    return [path for path in sorted(folder.rglob('*.py')) if '_base_' not in path.parts]


def read_metafiles(root: Path) -> dict[str, dict]:
    """Return the entry of each config in the metafiles that model-index.yml names."""
    index = yaml.safe_load((root / 'model-index.yml').read_text(encoding='utf-8'))
    entries = {}
    for name in index['Import']:
        content = yaml.safe_load((root / name).read_text(encoding='utf-8'))
        entries.update({entry['Config']: entry for entry in content['Models']})
    return entries


def read(path: Path) -> Source:
    """Find out what the text of a config says."""
    text = path.read_text(encoding='utf-8')
    tree = ast.parse(text)
    source = Source(ast.get_docstring(tree) or _head_comment(text))
    body = tree.body[1:] if ast.get_docstring(tree) else tree.body
    names = _OURS.findall('\n'.join(map(ast.unparse, body)))
    known = our_layers()
    source.layers = [name for name in names if name in known]
    source.architectures = [name for name in names if name in _ARCHITECTURES]
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == '_base_':
            bases = ast.literal_eval(node.value)
            bases = [bases] if isinstance(bases, str) else bases
            source.bases = [(path.parent / base).resolve() for base in bases if '::' not in base]
        _collect(node, '', source)
    return source


def _collect(node: ast.AST, part: str, source: Source) -> None:
    """Note the points and mmcv's layers in ``node``, which lies in a part of the model."""
    for name, value in _settings(node):
        if isinstance(value, ast.Constant) and name == 'at':
            source.points.setdefault(part, []).append(value.value)
        elif isinstance(value, ast.Constant) and value.value in _MMCV_LAYERS:
            source.layers.append(value.value)
        _collect(value, name if name in _PARTS else part, source)
    if not isinstance(node, (ast.Call, ast.Dict)):
        for child in ast.iter_child_nodes(node):
            _collect(child, part, source)


def inserted(path: Path) -> str:
    """Say which layers a config inserts, and the points where they are."""
    found = gather(path)
    layers = found.layers
    if 'KANet' in found.architectures:
        # Its own layers are where its table of modules says, which may be nowhere.
        layers = [name for name in read(path).layers if name != 'KroneckerAttention2d']
    text = _listed(layers)
    words = [word for part in found.points.values() for word in part]
    if words and text:
        text += f' at {_listed(words)}'
    if found.architectures:
        text += (' in ' if text else '') + _listed(found.architectures)
    return text or 'nothing'


def gather(path: Path) -> Source:
    """Read a config, and for what it does not say itself the files that it builds on."""
    source = read(path)
    for base in map(gather, source.bases):
        source.layers = source.layers or base.layers
        source.architectures = source.architectures or base.architectures
        source.points = {**base.points, **source.points}
    return source


@functools.cache
def our_layers() -> frozenset[str]:
    """Return the names in ``kronattn_mm.layers.__all__``, without importing torch."""
    text = (ROOT / 'kronattn_mm' / 'layers' / '__init__.py').read_text(encoding='utf-8')
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == '__all__':
            return frozenset(ast.literal_eval(node.value))
    raise ValueError('kronattn_mm/layers/__init__.py has no __all__')


def training(model: dict) -> str:
    """Say how long and in which batches, from a metafile's entry."""
    metadata = model.get('Metadata', {})
    length = next(
        (f'{metadata[key]} {key.lower()}' for key in ('Epochs', 'Iterations') if key in metadata),
        '',
    )
    batch = f'batch {metadata["Batch Size"]}' if 'Batch Size' in metadata else ''
    results = '; '.join(
        f'{name} {value}'
        for result in model.get('Results', [])
        for name, value in result.get('Metrics', {}).items()
    )
    return ', '.join(part for part in (length, batch, results) if part) or 'in the file'


def first_sentence(text: str) -> str:
    """Return a head comment's first sentence without its full stop; of a long one, the start."""
    text = ' '.join(text.split('\n\n')[0].split())
    sentence = re.split(r'(?<=[\w)"\]`])\.(?= |$)', text, maxsplit=1)[0]
    if len(sentence) > 100:
        sentence = re.split('(?<=.{25})[:;] ', sentence, maxsplit=1)[0]
    return sentence.replace('|', '\\|') or 'see the file'


def _readme(folder: Path) -> Path | None:
    """The README of a folder or of the nearest one above it that has one."""
    for place in (folder, *folder.parents):
        if place.name == 'configs':
            return None
        if (place / 'README.md').exists():
            return place / 'README.md'
    return None


def _listed(words: list[str]) -> str:
    return ', '.join(f'`{word}`' for word in dict.fromkeys(words))


def _settings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names and values of a ``dict(...)`` or a ``{...}``."""
    if isinstance(node, ast.Call):
        yield from ((word.arg, word.value) for word in node.keywords if word.arg)
    elif isinstance(node, ast.Dict):
        yield from (
            (key.value, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        )


def _head_comment(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith('#'):
            break
        lines.append(line[1:].strip())
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
