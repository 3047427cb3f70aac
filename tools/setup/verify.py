"""Imports everything that set-up installed and prints what it found as one line of JSON.

Run by the environment's own interpreter, in a process of its own, since a library that does not
fit can end the process.
"""

import importlib
import json
import sys

MODULES = (
    'torch',
    'torchvision',
    'cv2',
    'mmengine',
    'mmcv',
    'mmcv.ops',
    'mmdet',
    'mmseg',
    'mmpretrain',
    'kronattn_mm.ops',
    'kronattn_mm.registry',
)


def main() -> None:
    errors = {}
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken extension raises anything
            errors[name] = f'{type(error).__name__}: {error}'
    facts: dict = dict(errors=errors)
    if not errors:
        import torch
        from mmcv.ops import get_compiling_cuda_version

        facts['gpu'] = torch.cuda.is_available()
        facts['operators'] = 'cuda' if get_compiling_cuda_version()[:1].isdigit() else 'cpu'
        facts['torch'] = torch.__version__
    print(json.dumps(facts))
    sys.exit(bool(errors))


if __name__ == '__main__':
    main()
