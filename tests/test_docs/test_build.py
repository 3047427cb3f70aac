"""The pages build without a warning."""

import subprocess
import sys

import pytest
from documentation import DOCS, ROOT

pytestmark = pytest.mark.slow


def test_pages_build_without_warnings(tmp_path):
    for package in ('sphinx', 'myst_parser', 'furo', 'mmdet', 'mmseg', 'mmpretrain'):
        pytest.importorskip(package)
    answer = subprocess.run(
        [
            sys.executable,
            '-m',
            'sphinx',
            '-M',
            'html',
            str(DOCS),
            str(tmp_path),
            '--fail-on-warning',
            '--keep-going',
            '--quiet',
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    html = tmp_path / 'html'
    for page in DOCS.rglob('*.md'):
        assert (html / page.relative_to(DOCS).with_suffix('.html')).is_file()
    layers = (html / 'api' / 'layers.html').read_text(encoding='utf-8')
    from kronattn_mm import layers as package

    assert all(f'id="kronattn_mm.layers.{name}"' in layers for name in package.__all__)
    # It is read without a network.
    for page in html.rglob('*.html'):
        text = page.read_text(encoding='utf-8')
        assert '<script src="http' not in text and 'rel="stylesheet" href="http' not in text
    assert not list(ROOT.glob('docs/_build'))
