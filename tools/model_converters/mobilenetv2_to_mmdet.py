"""Give a MobileNetV2 of mmpretrain or mmseg the names of mmdet's.

The libraries' networks are the same and their weights have different names: the convolutions of a
block are numbered in one (layer2.0.conv.0.conv.weight) and named in the other
(layer2.0.expand_conv.conv.weight). Attention beside the convolutions goes with them. The classifier
is left out.

Example:
    python tools/model_converters/mobilenetv2_to_mmdet.py epoch_300.pth mobilenetv2.pth
    python tools/train.py DETECTOR.py --cfg-options model.backbone.init_cfg.type=Pretrained \\
        model.backbone.init_cfg.checkpoint=mobilenetv2.pth
"""

import argparse
import re
import sys
from pathlib import Path

import torch
from mmengine.runner import CheckpointLoader
from torch import Tensor

BLOCK = re.compile(r'(layer\d+\.\d+)\.conv\.(\d)\.')
NAMES = ('expand_conv', 'depthwise_conv', 'linear_conv')


class ConversionError(Exception):
    """The checkpoint does not fit; the message is for the user."""


def convert(source: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a backbone under the names that mmdet's MobileNetV2 has.

    Args:
        source (dict[str, Tensor]): State of mmpretrain's or mmseg's MobileNetV2, or of a model in
            which it is the ``backbone``.

    Raises:
        ConversionError: If it is the state of something else.
    """
    prefix = 'backbone.' if any(key.startswith('backbone.') for key in source) else ''
    state = {key.removeprefix(prefix): value for key, value in source.items()
             if key.startswith(prefix)}
    numbers: dict[str, int] = {}
    for key in state:
        if found := BLOCK.match(key):
            block, number = found[1], int(found[2])
            numbers[block] = max(numbers.get(block, 0), number)
    if any('.linear_conv.' in key for key in state):
        raise ConversionError("the checkpoint has mmdet's names already")
    if 'conv1.conv.weight' not in state or not numbers or not set(numbers.values()) <= {1, 2}:
        raise ConversionError('the checkpoint is no MobileNetV2 of mmpretrain or mmseg; it has '
                              f'{", ".join(list(source)[:3]) or "no weights"}, ...')

    def name(found: re.Match) -> str:
        # The block without expansion has two convolutions, the others three.
        return f'{found[1]}.{NAMES[int(found[2]) + 2 - numbers[found[1]]]}.'

    return {BLOCK.sub(name, key): value for key, value in state.items()
            if key.startswith(('conv', 'layer'))}


def read(path: Path) -> dict[str, Tensor]:
    """Read the state of a checkpoint."""
    if not path.is_file():
        raise ConversionError(f'there is no file {path}')
    try:
        content = CheckpointLoader.load_checkpoint(str(path), map_location='cpu', logger='silent')
    except Exception as error:
        raise ConversionError(f'{path} cannot be read as a checkpoint: '
                              f'{str(error).splitlines()[0]}') from error
    state = content.get('state_dict', content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise ConversionError(f'{path} holds no state_dict')
    return state


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    description, _, epilog = __doc__.partition('Example:')
    parser = argparse.ArgumentParser(description=description, epilog=f'Example:{epilog}',
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('checkpoint', type=Path, help='MobileNetV2 of mmpretrain or mmseg')
    parser.add_argument('output', type=Path, help='file to write')
    args = parser.parse_args(arguments)
    try:
        state = convert(read(args.checkpoint))
    except ConversionError as error:
        print(f'{Path(__file__).name}: {error}', file=sys.stderr)
        return 1
    part = args.output.with_name(f'{args.output.name}.part')
    args.output.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dict(state_dict=state, meta=dict(converted_from=args.checkpoint.name)), part)
    part.replace(args.output)
    attention = sum('.attention.' in key for key in state)
    print(f'{args.output}: {len(state)} tensors, {attention} of them attention')
    return 0


if __name__ == '__main__':
    sys.exit(main())
