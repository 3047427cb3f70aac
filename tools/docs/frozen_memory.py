#!/usr/bin/env python
"""What training takes in memory with everything trained, and with FreezeHook's choice alone.

One training step of a detector on one picture of noise with made objects, in a process of its own
for each: bytes that autograd keeps for the backward pass (each storage once, parameters left out),
bytes of gradients and optimizer state after the step, and the peak of the process.

example:
  python tools/docs/frozen_memory.py \
      configs/efficient_attention/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco.py
"""

import argparse
import json
import resource
import subprocess
import sys
import time

WAYS = {'all': 'everything trained', 'attention': "FreezeHook(train=['attention'])"}


def measure(config: str, shape: tuple[int, int], way: str) -> dict[str, float]:
    """Make one step and return what it took, in bytes and seconds."""
    import torch
    from mmdet.testing import demo_mm_inputs

    from kronattn_mm.cost.config import load_model
    from kronattn_mm.engine.freeze_hook import freeze_except

    model, _ = load_model(config)
    model.train()
    if way != 'all':
        for norm in freeze_except(model, [way]):
            norm.training = False
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(0)
    data = demo_mm_inputs(1, [[3, *shape]], num_items=[6], num_classes=80, with_mask=True)
    data = model.data_preprocessor(data, training=True)
    begin = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        losses = model.loss(data['inputs'], data['data_samples'])
    loss, _ = model.parse_losses(losses)
    loss.backward()
    optimizer.step()
    seconds = time.perf_counter() - begin
    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    ]
    return dict(
        kept=sum(kept.values()),
        gradients=sum(parameter.grad.nbytes for parameter in trained),
        optimizer=sum(value.nbytes for value in states),
        peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        seconds=seconds,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config', help='config of a detector with masks')
    parser.add_argument(
        '--shape',
        nargs=2,
        type=int,
        default=(448, 640),
        metavar=('H', 'W'),
        help='height and width of the picture (default: 448 640)',
    )
    parser.add_argument('--way', choices=list(WAYS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments.config, tuple(arguments.shape), arguments.way)))
        return 0
    rows = {}
    for way in WAYS:
        print(f'{WAYS[way]} ...', file=sys.stderr)
        done = subprocess.run(
            [
                sys.executable,
                __file__,
                arguments.config,
                '--way',
                way,
                '--shape',
                *map(str, arguments.shape),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            return done.returncode
        rows[way] = json.loads(done.stdout.splitlines()[-1])
    print(f'{"MiB":24}' + ''.join(f'{WAYS[way]:>34}' for way in WAYS) + f'{"less by":>10}')
    for name, text in (
        ('kept', 'kept for backward'),
        ('gradients', 'gradients'),
        ('optimizer', 'optimizer state'),
        ('peak', 'peak of the process'),
    ):
        first, second = (rows[way][name] for way in WAYS)
        print(f'{text:24}{first / 2**20:34.1f}{second / 2**20:34.1f}{1 - second / first:10.0%}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
