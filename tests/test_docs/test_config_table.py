"""docs/configs.md is what tools/docs/config_table.py writes, and what the configs really hold."""

import re
import sys
from collections.abc import Iterator

import pytest
from documentation import ROOT

sys.path.insert(0, str(ROOT / 'tools' / 'docs'))
import config_table


def test_page_is_up_to_date(capsys):
    assert config_table.main(['--check']) == 0, capsys.readouterr().err


def test_every_config_has_its_row():
    text = config_table.page(ROOT)
    for path in config_table.find_configs(ROOT / 'configs'):
        assert text.count(f'](../{path.relative_to(ROOT).as_posix()})') == 1


def test_a_new_config_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(config_table, 'PAGE', ROOT / 'docs' / 'index.md')
    assert config_table.main(['--check']) == 1
    assert 'config_table.py' in capsys.readouterr().err


def test_sources_are_merged_along_their_bases(tmp_path):
    (tmp_path / 'base.py').write_text(
        "a = dict(type='kronattn_mm.EfficientAttention2d')\n"
        "model = dict(backbone=dict(insert=[dict(at='res3', layer=a)]),\n"
        "             neck=dict(insert=[dict(at='fpn1', layer=a)]))\n"
    )
    child = tmp_path / 'child.py'
    child.write_text(
        "# One. Two.\n_base_ = './base.py'\n"
        "model = dict(backbone=dict(insert=[dict(at='res4', layer=dict())]))\n"
    )
    assert config_table.inserted(child) == '`EfficientAttention2d` at `res4`, `fpn1`'
    assert config_table.first_sentence(config_table.read(child).text) == 'One'


def settings(node: object, key: str) -> Iterator[str]:
    """Everything that stands under a key anywhere in a config."""
    if isinstance(node, dict):
        if isinstance(node.get(key), str):
            yield node[key]
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from settings(child, key)


@pytest.mark.slow
@pytest.mark.parametrize(
    'path', config_table.find_configs(ROOT / 'configs'), ids=lambda path: path.stem
)
def test_the_row_says_what_the_loaded_config_holds(path):
    from mmengine.config import Config

    model = Config.fromfile(path, import_custom_modules=False).model.to_dict()
    cell = config_table.inserted(path)
    types = {name.removeprefix('kronattn_mm.') for name in settings(model, 'type')}
    shown = set(re.findall(r'`([A-Za-z]\w*)`', cell.split(' at ')[0]))
    if 'KANet' not in types:  # whose table of modules says which layers there are
        layers = types & (config_table.our_layers() | set(config_table._MMCV_LAYERS))
        assert shown & config_table.our_layers() == layers - set(config_table._MMCV_LAYERS)
    points = (
        re.findall(r'`([^`]+)`', cell.split(' at ')[1].split(' in ')[0]) if ' at ' in cell else []
    )
    assert set(points) == set(settings(model, 'at'))
