"""Insertion points: the words in ``at``, and the places in a module that they name.

========================  ==========================================================================
``res3``, ``res3-4``      stages of a residual network, counted from 1 (after the last block), as
                          in the efficient-attention paper; mmdet's ``layer1`` to ``layer4``
``fpn1``, ``fpn1-5``      outputs of a neck, counted from 1 in the order in which it returns them
``out0``, ``out0-3``      outputs of any module that returns several, counted from 0
``layer3``, ``stages.2``  any submodule by its dotted path; ranges such as ``layer3-5`` too
``layer3.*``              any submodules by pattern, in which ``*`` matches no dot
========================  ==========================================================================

Words are joined by ``+``.
"""

import difflib
import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

_RANGE = re.compile(r'(?P<stem>.*?)(?P<first>\d+)-(?P<last>\d+)')
_NUMBERED = re.compile(r'(?P<kind>res|fpn|out)(?P<number>0|[1-9][0-9]*)')
_LONGEST_RANGE = 1000


@dataclass(frozen=True)
class Point:
    """A place where a layer can be inserted.

    Args:
        name (str): The word for it, such as ``res3``; the layer's key under ``attention.``.
        path (str): Dotted path of the module whose output is meant; empty for the base itself.
        index (int, optional): Which of the outputs, if the module returns several.
    """

    name: str
    path: str
    index: int | None = None

    @property
    def key(self) -> str:
        """The name as a module's name, in which dots are not allowed."""
        return self.name.replace('.', '_')


def split_points(at: str) -> list[str]:
    """Split ``'res3-4+fpn1'`` into ``['res3', 'res4', 'fpn1']``.

    Raises:
        TypeError: If ``at`` is not a string.
        ValueError: If a word is empty or a range runs backwards.
    """
    if not isinstance(at, str):
        raise TypeError(f'`at` must be a string such as "res3-4+fpn1-5", got {at!r}')
    words = []
    for word in at.split('+'):
        word = word.strip()
        if not word:
            raise ValueError(f'`at` has an empty word: {at!r}')
        match = _RANGE.fullmatch(word)
        if match is None:
            words.append(word)
            continue
        first, last = int(match['first']), int(match['last'])
        if last < first:
            raise ValueError(f'the range {word!r} in `at` runs backwards')
        if last - first >= _LONGEST_RANGE:
            raise ValueError(f'the range {word!r} in `at` is longer than {_LONGEST_RANGE}')
        words += [f'{match["stem"]}{number}' for number in range(first, last + 1)]
    return words


def resolve_points(base: nn.Module, at: str, levels: int | None) -> list[Point]:
    """Find the places in ``base`` that ``at`` names.

    Args:
        base (nn.Module): A built backbone, neck or head.
        at (str): Words joined by ``+``; see the table above.
        levels (int, optional): How many feature maps a neck takes, None for what is not a neck.
            Only necks have ``fpn`` points.

    Raises:
        ValueError: If a word names nothing; the message lists the points there are.
    """
    points = []
    for word in split_points(at):
        found = _resolve(base, word, levels)
        if not found:
            raise ValueError(
                f'unknown point {word!r} in {type(base).__name__}; '
                + describe_points(base, levels, word)
            )
        points += found
    return points


def _resolve(base: nn.Module, word: str, levels: int | None) -> list[Point]:
    paths = [path for path, _ in base.named_modules() if path]
    if word in paths:
        return [Point(word, word)]
    match = _NUMBERED.fullmatch(word)
    if match is not None:
        kind, number = match['kind'], int(match['number'])
        stages = residual_stages(base)
        if kind == 'res' and 1 <= number <= len(stages):
            return [Point(word, stages[number - 1])]
        if kind == 'fpn' and levels is not None and number >= 1:
            return [Point(word, '', number - 1)]
        if kind == 'out':
            return [Point(word, '', number)]
    if any(character in word for character in '*?['):
        dots = word.count('.')
        return [
            Point(path, path)
            for path in paths
            if path.count('.') == dots and fnmatch.fnmatchcase(path, word)
        ]
    return []


def residual_stages(base: nn.Module) -> list[str]:
    """Return the names of the stages of a residual network, none for any other module."""
    return list(getattr(base, 'res_layers', None) or [])


def describe_points(base: nn.Module, levels: int | None, word: str = '') -> str:
    """Say which points ``base`` has and, for a word that is none of them, the nearest one."""
    names = [f'res{number + 1}' for number in range(len(residual_stages(base)))]
    paths = [path for path, _ in base.named_modules() if path and not path.startswith('attention')]
    words = list(names)
    if levels is not None:
        words.append('fpn1, fpn2, ... (the outputs of the neck)')
    words.append('out0, out1, ... (the outputs of the module)')
    text = f'points are {", ".join(words)}, and the dotted paths {abbreviated_paths(paths)}'
    names += ['out0'] if levels is None else ['fpn1', 'out0']
    near = difflib.get_close_matches(word, names + paths, n=1) if word else []
    return f'did you mean {near[0]!r}? ' + text if near else text


def abbreviated_paths(paths: Iterable[str], most: int = 24) -> str:
    """Join paths for a message, the shallow ones first, and say how many were left out."""
    ordered = sorted(paths, key=lambda path: path.count('.'))
    text = ', '.join(ordered[:most])
    return text + (f', ... ({len(ordered) - most} more)' if len(ordered) > most else '')
