#!/usr/bin/env python
"""Efficient attention on a GPU: the Triton kernels against the torch forms, in one run.

Needs torch and triton alone, and a CUDA device. For each map and dtype it prints the time of the
straightforward form, what it is under torch.compile, the regrouped torch form and the kernels
(forward, and forward with backward), each as a ratio to the straightforward form; the peak of
memory beside the input; the time of the reads and writes that no form can avoid (two reads and one
write of the map at the rate of a copy in this run); and the largest difference from float64. Losing
sizes are shown like all others.
"""

import argparse
import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from kronattn_mm.layers import EfficientAttention2d
from kronattn_mm.ops import use_backend

EXAMPLE = 'example: python tools/analysis_tools/gpu_kernels.py --dtypes bfloat16 --json gpu.json'
MAPS = ('7x7', '28x40', '56x80', '112x160', '224x320')
DTYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16, 'float32': torch.float32}
FORMS = ('straightforward', 'compiled', 'torch', 'triton')


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--maps', nargs='+', default=MAPS, type=_map_size, metavar='HxW')
    parser.add_argument('--dtypes', nargs='+', choices=list(DTYPES), default=['bfloat16'])
    parser.add_argument('--channels', type=int, default=256, metavar='N')
    parser.add_argument('--batch', type=int, default=1, metavar='N')
    parser.add_argument('--forms', nargs='+', choices=FORMS, default=FORMS)
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the figures there too')
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print('gpu_kernels: torch sees no CUDA device', file=sys.stderr)
        return 1
    if arguments.channels < 1 or arguments.batch < 1:
        parser.error('--channels and --batch must be at least 1')
    import triton

    print(
        f'{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, '
        f'{arguments.channels} channels, d_k = d_v = 64, batch {arguments.batch}; medians'
    )
    rows = []
    for dtype in arguments.dtypes:
        for size in map(_map_size, arguments.maps):
            for row in measure(size, DTYPES[dtype], arguments):
                rows.append({'dtype': dtype, 'map': 'x'.join(map(str, size)), **row})
                print(_line(rows[-1]), flush=True)
    if arguments.json is not None:
        partial = arguments.json.with_name(arguments.json.name + '.part')
        partial.write_text(json.dumps(rows, indent=1) + '\n')
        partial.replace(arguments.json)
    return 0


def measure(
    size: tuple[int, int], dtype: torch.dtype, arguments: argparse.Namespace
) -> list[dict[str, float | str]]:
    """Time every form on one map, forward and with the backward pass."""
    torch.manual_seed(0)
    layer = EfficientAttention2d(arguments.channels, zero_init=False).cuda().to(dtype)
    x = torch.randn(arguments.batch, arguments.channels, *size, device='cuda', dtype=dtype)
    gradient = torch.randn_like(x)
    with torch.no_grad(), use_backend('reference'):
        wanted = copy.deepcopy(layer).double()(x.double())
    copied = torch.empty_like(x)
    # A copy is a read and a write; forward needs three passes over the map, with backward eight.
    floor = 1.5 * _milliseconds(lambda: copied.copy_(x))
    rows = []
    for training in (False, True):
        first = None
        for form in arguments.forms:
            call = _call(form, layer, x, gradient if training else None)
            with torch.no_grad(), use_backend(_BACKENDS[form]):
                error = float((layer(x) - wanted).abs().max() / wanted.abs().max())
            time = _milliseconds(call)
            first = time if first is None else first
            rows.append(
                {
                    'pass': 'training' if training else 'forward',
                    'form': form,
                    'milliseconds': time,
                    'ratio': first / time,
                    'peak_bytes': _peak(call),
                    'map_bytes': x.numel() * x.element_size(),
                    'floor_milliseconds': floor * (8 / 3 if training else 1),
                    'error': error,
                }
            )
    return rows


_BACKENDS = {
    'straightforward': 'reference',
    'compiled': 'reference',
    'torch': 'torch',
    'triton': 'triton',
}


def _call(
    form: str, layer: nn.Module, x: Tensor, gradient: Tensor | None
) -> Callable[[], Tensor | None]:
    function = torch.compile(layer) if form == 'compiled' else layer
    tensors = (x.detach().requires_grad_(), *layer.parameters())

    def forward() -> Tensor:
        with torch.no_grad(), use_backend(_BACKENDS[form]):
            return function(x)

    def training() -> None:
        with use_backend(_BACKENDS[form]):
            y = function(tensors[0])
        torch.autograd.grad(y, tensors, gradient, allow_unused=True)

    return forward if gradient is None else training


def _milliseconds(call: Callable[[], object]) -> float:
    from triton.testing import do_bench

    return do_bench(call, warmup=100, rep=300, return_mode='median')


def _peak(call: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak


def _line(row: dict[str, float | str]) -> str:
    return (
        f'{row["dtype"]:9} {row["map"]:8} {row["pass"]:9}{row["form"]:16}'
        f'{row["milliseconds"]:9.3f} ms {row["ratio"]:6.2f}x of the first '
        f'{row["milliseconds"] / row["floor_milliseconds"]:6.1f}x of the floor '
        f'peak {row["peak_bytes"] / row["map_bytes"]:5.2f} maps  error {row["error"]:.1e}'
    )


def _map_size(text: str | tuple[int, int]) -> tuple[int, int]:
    if isinstance(text, tuple):
        return text
    parts = text.split('x')
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f'a map is given as HxW, such as 56x80, got {text!r}')
    return int(parts[0]), int(parts[1])


if __name__ == '__main__':
    sys.exit(main())
