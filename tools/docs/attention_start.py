#!/usr/bin/env python
"""Print the tables of docs/shift_and_balance_ssd.md about attention before its training.

A trained MobileNetV2 (mmdet's) gets attention, not yet trained, in the 50 convolutions of its
bottlenecks. For a batch of pictures the two maps that SSD takes from it are compared with those of
the network without: cosine of a picture's whole map, mean over the pictures.

Then, for Shift-and-Balance with lambda 0.1, how large the shift is beside what it is added to:
standard deviation of lambda A(x) over the pictures, divided by that of T(x) over the positions, the
median over the convolutions of a kind; for the trained network, and as mmdet initialises it.

example:
    python tools/docs/attention_start.py mobilenet_v2_1.0_imagenet_mmdet.pth JPEGImages
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

VARIANTS = {
    'static': None,
    'SB, lambda 0': dict(type='kronattn_mm.ShiftBalanceConv2d', lambda_init=0.0),
    'SB, lambda 0.01': dict(type='kronattn_mm.ShiftBalanceConv2d', lambda_init=0.01),
    'SB, lambda 0.1': dict(type='kronattn_mm.ShiftBalanceConv2d', lambda_init=0.1),
    'SB after norm': dict(type='kronattn_mm.ShiftBalanceConv2d', place='after_norm'),
    'SE': dict(type='kronattn_mm.SqueezeExciteConv2d'),
}


def backbone(weights: Path | None, layer: dict | None) -> nn.Module:
    """Return a MobileNetV2 with ``layer`` in its bottlenecks, trained or as mmdet starts it."""
    from mmengine.logging import MMLogger
    from mmengine.registry import MODELS

    MMLogger.get_current_instance().setLevel('ERROR')  # a line for each weight otherwise
    torch.manual_seed(0)
    module = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='kronattn_mm.ExpansionMobileNetV2',
            convs=[] if layer is None else [dict(at='layer*', layer=layer)],
        )
    )
    if weights is None:
        module.init_weights()
        return module
    state = torch.load(weights, map_location='cpu', weights_only=True)
    result = module.load_state_dict(state.get('state_dict', state), strict=False)
    if result.unexpected_keys or any('.attention.' not in key for key in result.missing_keys):
        raise ValueError(f"{weights} does not hold mmdet's MobileNetV2")
    return module


def shift_beside_trunk(module: nn.Module, x: Tensor) -> dict[str, float]:
    """Return the size of the shift as a share of the trunk's, for each kind of convolution."""
    shares: dict[str, list[Tensor]] = {}
    handles = []
    for path, conv in module.named_modules():
        if hasattr(conv, 'trunk'):
            kind = path.split('.')[-2]

            def measure(conv: nn.Module, args: tuple, output: Tensor, kind: str = kind) -> None:
                spread = conv.trunk(args[0]).std((2, 3)).mean()
                shares.setdefault(kind, []).append(conv.attention(args[0]).std(0).mean() / spread)

            handles.append(conv.register_forward_hook(measure))
    module.train()(x)
    for handle in handles:
        handle.remove()
    return {kind: float(torch.stack(values).median()) for kind, values in shares.items()}


def pictures(files: list[Path], side: int) -> Tensor:
    """Return pictures as ``(N, 3, side, side)`` with values from -1 to 1."""
    images = [np.array(Image.open(file).convert('RGB').resize((side, side))) for file in files]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('weights', type=Path, help="weights of mmdet's MobileNetV2")
    parser.add_argument('folder', type=Path, help='folder of JPEG pictures')
    parser.add_argument('--pictures', type=int, default=16, help='the first so many, one batch')
    parser.add_argument('--side', type=int, default=192, help='side to which they are resized')
    args = parser.parse_args()
    files = sorted(args.folder.glob('*.jpg'))[: args.pictures]
    if not files or not args.weights.is_file():
        print(
            f'no pictures in {args.folder}' if not files else f'there is no file {args.weights}',
            file=sys.stderr,
        )
        return 2
    x = pictures(files, args.side)
    for training in (True, False):
        print('batch statistics, as in training' if training else 'stored statistics')
        with torch.no_grad():
            wanted = backbone(args.weights, None).train(training)(x)
            for name, layer in VARIANTS.items():
                maps = backbone(args.weights, layer).train(training)(x)
                cosines = [
                    float(cosine_similarity(a.flatten(1), b.flatten(1)).mean())
                    for a, b in zip(maps, wanted, strict=True)
                ]
                print(f'  {name:16} stride 16 {cosines[0]:5.2f}   stride 32 {cosines[1]:5.2f}')
    print('shift beside trunk, SB, lambda 0.1')
    for name, weights in (('trained', args.weights), ("mmdet's initialisation", None)):
        module = backbone(weights, VARIANTS['SB, lambda 0.1'])
        with torch.no_grad():
            shares = shift_beside_trunk(module, x)
        print(f'  {name:23}', '   '.join(f'{kind} {shares[kind]:.2f}' for kind in sorted(shares)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
