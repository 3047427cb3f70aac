"""tools/docs/kronecker_pictures.py: the pictures, and the figures in them."""

import importlib.util

import numpy as np
import pytest
from analysis_tool import ROOT


@pytest.fixture(scope='module')
def pictures():
    pytest.importorskip('sklearn')
    path = ROOT / 'tools' / 'docs' / 'kronecker_pictures.py'
    spec = importlib.util.spec_from_file_location('kronecker_pictures', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_best_row_and_column_term_is_the_least_squares_fit(pictures):
    x = np.random.default_rng(0).normal(size=(5, 7))
    rows, columns = np.mgrid[:5, :7]
    terms = np.concatenate([np.eye(5)[rows.ravel()], np.eye(7)[columns.ravel()]], axis=1)
    fitted = terms @ np.linalg.lstsq(terms, x.ravel(), rcond=None)[0]
    np.testing.assert_allclose(pictures.rows_plus_columns(x), fitted.reshape(5, 7), atol=1e-12)
    assert pictures.explained(pictures.rows_plus_columns(x)) == pytest.approx(1)


def test_what_kao_qkv_can_be(pictures):
    shares = {name: pictures.explained(target) for name, target in pictures.targets().items()}
    assert shares['band in rows'] == pytest.approx(1)
    assert 0.2 < shares['one object'] < 0.6
    assert shares['diagonal'] < 0.05
    assert shares['checkerboard'] < 1e-12


def test_pictures_are_small(pictures, tmp_path, capsys):
    assert pictures.main([str(tmp_path)]) == 0
    written = sorted(tmp_path.iterdir())
    assert [path.name for path in written] == [
        'kronecker_averages.png',
        'kronecker_limits.png',
        'kronecker_variance.png',
    ]
    assert all(path.stat().st_size < 100_000 for path in written)
    with pytest.raises(SystemExit) as stop:
        pictures.main([str(tmp_path / 'nowhere')])
    assert stop.value.code == 2 and 'is not a folder' in capsys.readouterr().err
