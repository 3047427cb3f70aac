"""Bring the metafiles up to date, and write docs/configs.md from them: a table of all configs.

Only configs that no metafile has yet are loaded, and nothing is built, so that it takes a second.
What a config inserts is read in its own file and, where it says nothing of that, in the files that
it builds on.
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

sys.path.insert(0, str(Path(__file__).resolve().parent))
from metafiles import metafiles, texts

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'configs.md'
EXAMPLE = """example:
  python tools/docs/config_table.py           # writes docs/configs.md and new entries
  python tools/docs/config_table.py --check   # exit code 1 if something is not up to date"""

HEAD = """\
# Which configs are there?

<!-- Written by tools/docs/config_table.py; edits here are lost. -->

{number} configs, by folder. "Inserted" names layers and points as the config has them
([points](insertion_points.md)); "training" is from the metafile. Where a metafile has no results,
the config has not been trained to its end here. The README of a folder says what each row of a
paper's table is and what the paper leaves open.

How to run one: `python tools/train.py CONFIG`, after `python tools/train.py CONFIG --dry-run`.
"""
_OURS = re.compile(r'kronattn_mm\.(\w+)')
_MMCV_LAYERS = ('NonLocal2d', 'NonLocal3d', 'ContextBlock')
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
    """Write metafiles and page, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--check',
        action='store_true',
        help='write nothing; exit code 1 if the page or a metafile is not up to date',
    )
    arguments = parser.parse_args(argv)
    try:
        wanted = texts(ROOT)
        if not arguments.check:
            for path, text in wanted.items():
                _write(path, text)
        wanted[PAGE] = page(ROOT)
    except ValueError as error:
        parser.error(str(error))
    if not arguments.check:
        _write(PAGE, wanted[PAGE])
        return 0
    stale = [path for path, text in wanted.items() if _read(path) != text]
    for path in stale:
        print(
            f'{path.relative_to(ROOT)} is not up to date; write it anew with '
            '`python tools/docs/config_table.py`',
            file=sys.stderr,
        )
    return int(bool(stale))


def _read(path: Path) -> str:
    return path.read_text(encoding='utf-8') if path.exists() else ''


def _write(path: Path, text: str) -> None:
    """Replace a file at once, and only where it changes."""
    if _read(path) != text:
        temporary = path.with_suffix('.part')
        temporary.write_text(text, encoding='utf-8')
        temporary.replace(path)


def page(root: Path) -> str:
    """Return the text of docs/configs.md for the metafiles of a checkout."""
    parts, number = [], 0
    for path in metafiles(root):
        content = yaml.safe_load(path.read_text(encoding='utf-8'))
        for collection in content['Collections']:
            models = [
                model for model in content['Models'] if model['In Collection'] == collection['Name']
            ]
            rows = ['| config | what it is | inserted | training |', '| --- | --- | --- | --- |']
            rows += [row(root / model['Config'], model, root) for model in models]
            more = [f'[README](../{collection["README"]})', ''] if 'README' in collection else []
            parts.append('\n'.join([f'## {collection["Name"]}', '', *more, *rows, '']))
            number += len(models)
    return '\n'.join([HEAD.format(number=number), *parts])


def row(path: Path, model: dict, root: Path) -> str:
    """Return the line of one config."""
    relative = path.relative_to(root).as_posix()
    cells = [
        f'[{path.stem}](../{relative})',
        first_sentence(read(path).text),
        inserted(path),
        training(model),
    ]
    return '| ' + ' | '.join(cells) + ' |'


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
        elif isinstance(value, ast.Constant):
            # mmcv does not register all that it has; the rest has our scope.
            layer = str(value.value).removeprefix('kronattn_mm.')
            source.layers += [layer] if layer in _MMCV_LAYERS else []
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
