"""tools/docs/deployment_speed.py: every form runs, and is what eager is."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_form_is_timed_and_equal(classifier, capsys):
    for package in ('mmpretrain', 'onnxruntime', 'onnxscript'):
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location(
        'deployment_speed', ROOT / 'tools' / 'docs' / 'deployment_speed.py'
    )
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.main([str(classifier[0]), '--shape', '32', '48', '--repetitions', '1']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert '1x3x32x48' in lines[0]
    rows = [line.rsplit(maxsplit=4) for line in lines[3:]]
    assert [row[0].strip() for row in rows] == [
        'eager',
        'fused',
        'torch.compile',
        'fused, torch.compile',
        'fused, torch.export',
        'fused, ONNX Runtime',
    ]
    assert all(float(row[1]) > 0 and float(row[-1]) < 1e-5 for row in rows)
