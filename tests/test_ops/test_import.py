"""The operators and layers need torch and nothing else."""

import subprocess
import sys

import pytest

PREAMBLE = """
import sys
BLOCKED = {'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain'}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in BLOCKED:
            raise ModuleNotFoundError(f'{name} is blocked for this test')
sys.meta_path.insert(0, Refuse())
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, '-c', PREAMBLE + code], capture_output=True, text=True)


@pytest.mark.parametrize('package', ['kronattn_mm', 'kronattn_mm.ops', 'kronattn_mm.layers'])
def test_import_without_openmmlab(package):
    result = run(
        f'import {package}\nprint(sorted(m for m in sys.modules if m.split(".")[0] in BLOCKED))'
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith('[]')


def test_layer_runs_without_openmmlab():
    result = run(
        'import torch; from kronattn_mm.layers import EfficientAttention2d as E\n'
        'x = torch.rand(1, 8, 3, 5); print(torch.equal(E(8, 4, 4)(x), x))'
    )
    assert result.stdout.strip() == 'True', result.stderr
