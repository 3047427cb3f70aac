"""What the layers of some backbones are called in torchvision, mmpretrain, mmseg and mmdet.

For every family and library one list of names in one order, so that a layer's name in another
library is the one at the same place; None where a library does not have the layer. A name is the
path of a convolution, a batch norm or the classifier.

============  ===================================  ==========================================
family        torchvision                          the others
============  ===================================  ==========================================
mobilenet_v2  ``features.2.conv.1.0``              mmpretrain, mmseg: ``layer2.0.conv.1.conv``
                                                   mmdet: ``layer2.0.depthwise_conv.conv``
shufflenet_v2 ``stage2.0.branch2.3``               mmpretrain: ``layers.0.0.branch2.1.conv``
mnasnet       ``layers.8.0.layers.3``              kronattn_mm: ``layer2.0.conv.1.conv``
resnet        ``layer1.0.conv1``                   the same; only ``fc`` is ``head.fc``
============  ===================================  ==========================================

In a whole classifier of mmpretrain, and in every model of mmdet and mmseg, the names of the
backbone have ``backbone.`` before them, and mmpretrain's classifier is ``head.fc``.
"""

import re
from collections.abc import Iterator, Mapping

from torch import Tensor

from .checkpoint import ConversionError

LIBRARIES = {
    'mobilenet_v2': ('torchvision', 'mmpretrain', 'mmseg', 'mmdet'),
    'shufflenet_v2': ('torchvision', 'mmpretrain'),
    'mnasnet': ('torchvision', 'kronattn_mm'),
    'resnet': ('torchvision', 'mmpretrain', 'mmseg', 'mmdet'),
}
CLASSIFIER = {'mmpretrain': 'head.fc', 'kronattn_mm': 'head.fc'}  # beside backbone.*
_TORCHVISION_CLASSIFIER = {
    'mobilenet_v2': 'classifier.1',
    'shufflenet_v2': 'fc',
    'mnasnet': 'classifier.1',
    'resnet': 'fc',
}
# How many blocks the stages have.
_MOBILENET_V2 = (1, 2, 3, 4, 3, 3, 1)
_SHUFFLENET_V2 = (4, 8, 4)
_MNASNET = (1, 3, 3, 3, 2, 4, 1)


def layer_names(family: str, library: str) -> list[str | None]:
    """Return the names of all layers of a backbone, those of a bare backbone in every library.

    Raises:
        ValueError: If the library does not have the family, or names of it are not kept in a list
            (``resnet``, whose names are the same everywhere).
    """
    if library not in LIBRARIES.get(family, ()) or family == 'resnet':
        raise ValueError(f'there are no names of {family!r} in {library!r}')
    return list(_NAMES[family](library))


def classifier_name(family: str, library: str) -> str | None:
    """Return the name of the classifier in a whole network, None where there is none."""
    if library == 'torchvision':
        return _TORCHVISION_CLASSIFIER[family]
    return CLASSIFIER.get(library)


def recognise(keys: Mapping[str, Tensor]) -> tuple[str, str]:
    """Say of which family and in whose names a backbone is.

    Args:
        keys (Mapping[str, Tensor]): Weights of a backbone, without ``backbone.`` before the keys.

    Returns:
        tuple[str, str]: Family and library. Of libraries that agree in the names, it is the first
        in :data:`LIBRARIES`.

    Raises:
        ConversionError: If it is none of those here.
    """
    for (family, library), key in _SIGNS.items():
        if key in keys:
            if (family, library) == (
                'mobilenet_v2',
                'mmpretrain',
            ) and 'conv2.conv.weight' not in keys:
                return family, 'mmseg'
            return family, library
    first = ', '.join(list(keys)[:3])
    raise ConversionError(
        f'the weights are none of {", ".join(LIBRARIES)} by their names, which begin with {first}'
    )


# A key that only this family has in these names.
_SIGNS = {
    ('mobilenet_v2', 'torchvision'): 'features.1.conv.0.0.weight',
    ('mobilenet_v2', 'mmdet'): 'layer1.0.depthwise_conv.conv.weight',
    ('mnasnet', 'kronattn_mm'): 'layer2.2.conv.2.conv.weight',
    ('mobilenet_v2', 'mmpretrain'): 'layer2.1.conv.2.conv.weight',
    ('shufflenet_v2', 'torchvision'): 'stage2.0.branch1.0.weight',
    ('shufflenet_v2', 'mmpretrain'): 'layers.0.0.branch1.0.conv.weight',
    ('mnasnet', 'torchvision'): 'layers.8.0.layers.0.weight',
    ('resnet', 'torchvision'): 'layer1.0.conv1.weight',
}


def _conv_module(path: str) -> Iterator[str]:
    """mmcv's ConvModule."""
    yield f'{path}.conv'
    yield f'{path}.bn'


def _mobilenet_v2(library: str) -> Iterator[str | None]:
    theirs = library == 'torchvision'
    yield from ('features.0.0', 'features.0.1') if theirs else _conv_module('conv1')
    number = 0  # of the block in torchvision's one sequence
    for stage, blocks in enumerate(_MOBILENET_V2, 1):
        for block in range(blocks):
            number += 1
            parts = ('depthwise', 'linear') if stage == 1 else ('expand', 'depthwise', 'linear')
            for place, part in enumerate(parts):
                if theirs and part == 'linear':  # not a block of its own there
                    yield f'features.{number}.conv.{place}'
                    yield f'features.{number}.conv.{place + 1}'
                elif theirs:
                    yield f'features.{number}.conv.{place}.0'
                    yield f'features.{number}.conv.{place}.1'
                elif library == 'mmdet':
                    yield from _conv_module(f'layer{stage}.{block}.{part}_conv')
                else:
                    yield from _conv_module(f'layer{stage}.{block}.conv.{place}')
    if library == 'mmseg':
        yield from (None, None)
    else:
        yield from ('features.18.0', 'features.18.1') if theirs else _conv_module('conv2')


def _shufflenet_v2(library: str) -> Iterator[str | None]:
    theirs = library == 'torchvision'
    yield from ('conv1.0', 'conv1.1') if theirs else _conv_module('conv1')
    for stage, blocks in enumerate(_SHUFFLENET_V2):
        for block in range(blocks):
            # Places in torchvision's sequences, where activations have places too.
            branches = {'branch1': (0, 1, 2, 3)} if block == 0 else {}
            branches['branch2'] = (0, 1, 3, 4, 5, 6)
            for branch, places in branches.items():
                if theirs:
                    yield from (f'stage{stage + 2}.{block}.{branch}.{place}' for place in places)
                else:
                    for layer in range(len(places) // 2):
                        yield from _conv_module(f'layers.{stage}.{block}.{branch}.{layer}')
    yield from ('conv5.0', 'conv5.1') if theirs else _conv_module('layers.3')


def _mnasnet(library: str) -> Iterator[str | None]:
    theirs = library == 'torchvision'
    yield from ('layers.0', 'layers.1') if theirs else _conv_module('conv1')
    for stage, blocks in enumerate(_MNASNET, 1):
        for block in range(blocks):
            for layer in range(2 if stage == 1 else 3):
                if not theirs:
                    yield from _conv_module(f'layer{stage}.{block}.conv.{layer}')
                elif stage == 1:  # not a block of its own there
                    yield from (f'layers.{3 + 3 * layer}', f'layers.{4 + 3 * layer}')
                else:
                    path = f'layers.{stage + 6}.{block}.layers'
                    yield from (f'{path}.{3 * layer}', f'{path}.{3 * layer + 1}')
    yield from ('layers.14', 'layers.15') if theirs else _conv_module('conv2')


_NAMES = {'mobilenet_v2': _mobilenet_v2, 'shufflenet_v2': _shufflenet_v2, 'mnasnet': _mnasnet}
_RESNET_KEY = re.compile(
    r'(conv1|bn1|stem\.\d+|layer[1-4]\.\d+\.(conv\d|bn\d|downsample\.\d+))\..+'
)


def is_resnet_key(key: str) -> bool:
    """Whether a key is one of a residual network's backbone."""
    return _RESNET_KEY.fullmatch(key) is not None
