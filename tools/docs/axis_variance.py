#!/usr/bin/env python
"""Print the table of docs/kronecker_attention.md on real feature maps.

For the pictures of a folder and the stages of a trained MobileNetV2 (mmsegmentation's): the share
of a map's variance over positions that a row term plus a column term holds, mean over channels and
pictures, and the same for white noise of that size.

example:
    python tools/docs/axis_variance.py deeplab_mobilenet_v2_voc_backbone.pth JPEGImages --every 8
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from kronattn_mm.ops import axis_averages, outer_sum


def held_share(maps: Tensor) -> Tensor:
    """Return the share of each channel's variance that both averages hold, ``(N, C)``.

    Args:
        maps (Tensor): Feature maps, ``(N, C, H, W)``.
    """
    held = outer_sum(axis_averages(maps), maps.shape[2:]) - maps.mean((2, 3), keepdim=True)
    return 1 - (maps - held).var((2, 3)) / maps.var((2, 3))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('weights', type=Path, help="weights of mmsegmentation's MobileNetV2")
    parser.add_argument('folder', type=Path, help='folder of JPEG pictures')
    parser.add_argument('--every', type=int, default=1, help='take every n-th picture')
    parser.add_argument('--pictures', type=int, default=20, help='at most so many')
    parser.add_argument('--side', type=int, default=321, help='side to which they are resized')
    args = parser.parse_args()
    files = sorted(args.folder.glob('*.jpg'))[:: args.every][: args.pictures]
    if not files or not args.weights.is_file():
        print(
            f'no pictures in {args.folder}' if not files else f'there is no file {args.weights}',
            file=sys.stderr,
        )
        return 2

    from mmengine.registry import MODELS

    backbone = MODELS.build(
        dict(
            type='mmseg.MobileNetV2',
            out_indices=(0, 1, 2, 4, 6),
            init_cfg=dict(type='Pretrained', checkpoint=str(args.weights)),
        )
    )
    backbone.init_weights()
    backbone.eval()
    torch.manual_seed(0)
    shares: dict[str, list[tuple[float, float]]] = {}
    with torch.no_grad():
        for number, file in enumerate(files, start=1):
            print(f'\r{number} of {len(files)}', end='', file=sys.stderr, flush=True)
            image = Image.open(file).convert('RGB').resize((args.side, args.side))
            x = (torch.from_numpy(np.array(image)).float() - 127.5) / 127.5
            x = x.permute(2, 0, 1)[None]
            names = ('picture', 'layer 1', 'layer 2', 'layer 3', 'layer 5', 'layer 7')
            for name, maps in zip(names, (x, *backbone(x)), strict=True):
                alive = maps.var((2, 3)) > 1e-6  # a channel that is constant has nothing to hold
                row = f'{name}, {maps.shape[2]} x {maps.shape[3]}'
                shares.setdefault(row, []).append(
                    (
                        float(held_share(maps)[alive].mean()),
                        float(held_share(torch.randn_like(maps)).mean()),
                    )
                )
    print(file=sys.stderr)
    for row, values in shares.items():
        held, noise = np.mean(values, axis=0)
        print(f'{row:20}  held {held:6.1%}  noise {noise:6.1%}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
