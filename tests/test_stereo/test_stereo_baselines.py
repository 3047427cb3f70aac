"""The baselines beside a network: the best constant and OpenCV's block matchers."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from stereo_pairs import write_scene_flow

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tools' / 'analysis_tools'))

from stereo_baselines import baselines, filled, main  # noqa: E402


def test_the_constant_is_the_median_and_matchers_find_what_is_moved(tmp_path):
    write_scene_flow(tmp_path, pairs=3)  # disparities 4, 5 and 6, equally often
    results = baselines(str(tmp_path), 'TEST', 16)
    constant = results['constant 5.00']
    assert constant['EPE'] == pytest.approx(2 / 3, rel=1e-3)
    assert constant['3px'] == 0 and constant['answered'] == 100
    for name in ('StereoBM', 'StereoSGBM'):
        answered = results[f'{name}, answered']
        assert answered['EPE_visible'] < 0.2 and 20 < answered['answered'] <= 100
        whole = results[f'{name}, filled']
        assert whole['answered'] == 100 and whole['EPE'] < 0.2


def test_gaps_are_filled_from_the_left_then_the_right_then_the_nearest_row():
    nan = np.nan
    none = [nan] * 6
    rows = np.float32([none, [nan, 2, nan, nan, 5, nan], none, none, [7, *none[:5]]])
    first, last = [2, 2, 2, 2, 5, 5], [7] * 6
    assert filled(rows).tolist() == [first, first, first, last, last]
    assert np.isnan(rows[0, 0])
    assert filled(rows[:1]).tolist() == [[0] * 6]


def test_the_command(tmp_path, capsys):
    write_scene_flow(tmp_path / 'pairs', pairs=1)
    assert main([str(tmp_path / 'pairs'), '--max-disparity', '16', '--json']) == 0
    results = json.loads(capsys.readouterr().out)
    assert set(results) >= {'constant 4.00', 'StereoSGBM, filled'}
    assert main([str(tmp_path / 'nothing')]) == 1
    error = capsys.readouterr().err
    assert 'there is no folder' in error and 'Traceback' not in error
    assert main([str(tmp_path / 'pairs'), '--max-disparity', '2']) == 1
    assert 'no disparity below 2' in capsys.readouterr().err
