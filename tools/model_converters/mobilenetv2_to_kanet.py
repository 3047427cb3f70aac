"""Start a KANet from the weights of a MobileNetV2.

A KANet has the convolutions of MobileNetV2 except that, in a module with a skip or attention, a
sixth of the hidden channels is replaced by the module's input or by attention. The converter drops
that many hidden channels, the ones with the least weight in the module's output, and lets the new
channels start with no weight there: the network begins as a pruned MobileNetV2 and learns to use
its new channels. The statistics in its batch norms are still those of the whole MobileNetV2, so it
has to be trained with batch norm in training mode before it is of use. This is no method of the
paper, which trains from scratch.

Example:
    python tools/model_converters/mobilenetv2_to_kanet.py mobilenet_v2.pth kanet.pth

The MobileNetV2 is a checkpoint of mmdet's backbone (keys such as layer2.0.expand_conv.conv.weight,
with or without "backbone." before them) of the same width. KAO_KV and KAO_QKV have the same
weights.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor

from kronattn_mm.models.backbones.kanet import ARCHS, KANet
from kronattn_mm.models.backbones.kanet_modules import BaseModule


class ConversionError(Exception):
    """The checkpoint does not fit; the message is for the user."""


def convert(source: dict[str, Tensor], model: KANet) -> dict[str, Tensor]:
    """Return a state dict for ``model`` made of the weights of a MobileNetV2.

    Args:
        source (dict[str, Tensor]): State of mmdet's MobileNetV2, keys without prefix.
        model (KANet): The network to fill; what MobileNetV2 lacks keeps its initial values.

    Raises:
        ConversionError: If a weight is missing or has another shape.
    """
    state = model.state_dict()
    for name, module in model.named_modules():
        if isinstance(module, BaseModule) and (module.joins_input or module.uses_attention):
            _fill_module(state, source, name, module)
    changed = [
        f'{name}.'
        for name, module in model.named_modules()
        if isinstance(module, BaseModule) and (module.joins_input or module.uses_attention)
    ]
    for key in state:
        if not key.startswith(tuple(changed)):
            state[key] = _weight(source, key, state[key].shape)
    return state


def _fill_module(
    state: dict[str, Tensor], source: dict[str, Tensor], name: str, module: BaseModule
) -> None:
    """Fill one module that has a skip or attention in place of some hidden channels."""
    made = module.expand_conv.conv.out_channels
    hidden = module.linear_conv.conv.in_channels
    columns = _weight(
        source, f'{name}.linear_conv.conv.weight', state[f'{name}.linear_conv.conv.weight'].shape
    )
    # After batch norm, a channel's size is about that of its scale; the columns carry it on.
    scale = _weight(source, f'{name}.depthwise_conv.bn.weight', (hidden,)).abs()
    kept = torch.argsort(scale * columns.flatten(1).norm(dim=0), descending=True)[:made]
    kept = kept.sort().values
    for key in list(state):
        if not key.startswith(f'{name}.') or '.attention.' in key:
            continue
        child, _, part = key.removeprefix(f'{name}.').partition('.')
        target = state[key]
        if child == 'linear_conv':
            value = _weight(source, key, target.shape)
            if part == 'conv.weight':
                value = torch.cat([value[:, kept], torch.zeros_like(value[:, made:])], dim=1)
            state[key] = value
        elif target.dim() == 0:  # number of batches that batch norm has seen
            state[key] = _weight(source, key, target.shape)
        else:
            value = _weight(source, key, (hidden, *target.shape[1:]))[kept]
            # With a skip, the depthwise convolution has channels for the input too.
            state[key] = torch.cat([value, target[made:].to(value)])


def _weight(source: dict[str, Tensor], key: str, shape: tuple[int, ...]) -> Tensor:
    if key not in source:
        raise ConversionError(f'the checkpoint has no {key}; is it a MobileNetV2 of mmdet?')
    if source[key].shape != torch.Size(shape):
        raise ConversionError(
            f'{key} should have the shape {tuple(shape)}, the checkpoint has '
            f'{tuple(source[key].shape)}; is --widen-factor right?'
        )
    value = source[key]
    return value.float() if value.is_floating_point() else value


def read(path: Path) -> dict[str, Tensor]:
    """Read the state of a MobileNetV2, without the prefix of the model that it was in."""
    if not path.is_file():
        raise ConversionError(f'there is no file {path}')
    try:
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
    except Exception as error:
        raise ConversionError(
            f'{path} cannot be read as a checkpoint of weights: {str(error).splitlines()[0]}'
        ) from error
    state = checkpoint.get('state_dict', checkpoint) if isinstance(checkpoint, dict) else None
    if not isinstance(state, dict):
        raise ConversionError(f'{path} holds no state_dict')
    return {key.removeprefix('backbone.'): value for key, value in state.items()}


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    description, _, epilog = __doc__.partition('Example:')
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f'Example:{epilog}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('checkpoint', type=Path, help='MobileNetV2 of mmdet')
    parser.add_argument('output', type=Path, help='file to write')
    parser.add_argument('--arch', choices=sorted(ARCHS), default='kanet')
    parser.add_argument('--widen-factor', type=float, default=1.0)
    parser.add_argument('--seed', type=int, default=0, help='for the weights that are new')
    args = parser.parse_args(arguments)
    try:
        source = read(args.checkpoint)
        torch.manual_seed(args.seed)
        model = KANet(args.arch, widen_factor=args.widen_factor)
        model.init_weights()
        state = convert(source, model)
    except ConversionError as error:
        print(f'{Path(__file__).name}: {error}', file=sys.stderr)
        return 1
    part = args.output.with_name(f'{args.output.name}.part')
    args.output.parent.mkdir(parents=True, exist_ok=True)
    torch.save(
        dict(
            state_dict=state,
            meta=dict(converted_from=args.checkpoint.name, arch=args.arch, seed=args.seed),
        ),
        part,
    )
    part.replace(args.output)
    new = sum(value.numel() for key, value in state.items() if '.attention.' in key)
    print(f'{args.output}: {args.arch}, {len(state)} tensors; the attention has {new} new values')
    return 0


if __name__ == '__main__':
    sys.exit(main())
