"""docs/configs.md and the metafiles are what tools/docs/config_table.py writes, and true."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from documentation import ROOT

sys.path.insert(0, str(ROOT / 'tools' / 'docs'))
import config_table
import metafiles


def test_nothing_is_stale(capsys):
    assert config_table.main(['--check']) == 0, capsys.readouterr().err


def test_every_config_has_its_row():
    text = config_table.page(ROOT)
    for path in metafiles.find_configs(ROOT / 'configs'):
        assert text.count(f'](../{path.relative_to(ROOT).as_posix()})') == 1


def test_a_page_that_is_not_up_to_date_shows(monkeypatch, capsys):
    monkeypatch.setattr(config_table, 'PAGE', ROOT / 'docs' / 'index.md')
    assert config_table.main(['--check']) == 1
    assert 'config_table.py' in capsys.readouterr().err


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkout with one metafile, two collections and three configs."""
    for name in ('a/one', 'a/deep/two', 'a/deep/er/three', 'a/_base_/none'):
        path = tmp_path / 'configs' / f'{name}.py'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('train_cfg = dict(max_epochs=3)\ntrain_dataloader = dict(batch_size=4)\n')
    (tmp_path / 'model-index.yml').write_text('Import: [configs/a/metafile.yml]\n')
    content = dict(
        Collections=[
            dict(Name='A', Folder='configs/a', Metadata={'Training Data': ['X']}),
            dict(Name='A, deep', Folder='configs/a/deep'),
        ],
        Models=[
            {
                'Name': 'one',
                'In Collection': 'A',
                'Config': 'configs/a/one.py',
                'Metadata': {'Epochs': 9},
                'Results': [{'Task': 't', 'Dataset': 'd', 'Metrics': {'AP': 1.0}}],
            },
            {'Name': 'gone', 'In Collection': 'A', 'Config': 'configs/a/gone.py'},
        ],
    )
    (tmp_path / 'configs' / 'a' / 'metafile.yml').write_text(yaml.safe_dump(content))
    return tmp_path


def test_a_new_config_gets_an_entry_and_old_ones_keep_theirs(small):
    pytest.importorskip('mmengine')
    ((path, text),) = metafiles.texts(small).items()
    one, two, three = sorted(yaml.safe_load(text)['Models'], key=lambda model: model['Config'])[
        ::-1
    ]
    assert (one['Name'], one['Metadata']) == ('one', {'Epochs': 9})
    assert one['Results'][0]['Metrics'] == {'AP': 1.0}
    assert [two['In Collection'], three['In Collection']] == ['A, deep', 'A, deep']
    assert two['Metadata'] == {'Epochs': 3, 'Batch Size': 4} and 'Results' not in two
    path.write_text(text)
    assert metafiles.texts(small) == {path: text}  # writing is once and for all


def test_a_config_in_no_collection_is_an_error(small):
    (small / 'configs' / 'b').mkdir()
    (small / 'configs' / 'b' / 'lost.py').write_text('')
    with pytest.raises(ValueError, match=r'configs/b/lost.py is in the Folder of no collection'):
        metafiles.texts(small)


def test_two_configs_of_one_name_are_an_error(small):
    (small / 'configs' / 'a' / 'two.py').write_text('')
    with pytest.raises(ValueError, match='have the same name'):
        metafiles.texts(small)


def index(place: Path):
    """What mim reads of a package."""
    load = pytest.importorskip('modelindex.load_model_index').load
    return load(str(place / 'model-index.yml'))


def test_mim_reads_every_config_from_the_installed_package():
    """As `mim search` does: the index inside the package, each model with its collection."""
    import kronattn_mm

    package = Path(kronattn_mm.__file__).parent / '.mim'
    found = index(package)
    # It looks for a README beside the metafile; mim's own libraries name it from the root, too.
    assert not [error for error in found.check(silent=True) if 'README' not in error]
    models = {model.name: model for model in found.models}
    assert {path.stem for path in metafiles.find_configs(ROOT / 'configs')} == set(models)
    model = models['mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco']
    assert (package / model.config).is_file()
    assert model.full_model.metadata.data['Training Data'] == ['COCO']
    assert model.full_model.paper['URL'] == 'https://arxiv.org/abs/1812.01243'
    assert not model.results or len(model.results) == 0


def test_mim_search_finds_them(capsys):
    """mim's own function, where mim is installed."""
    search = pytest.importorskip('mim.commands.search')
    name = 'mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco'
    try:
        found = search.get_model_info('kronattn_mm', configs=[name], to_dict=True)
    except FileNotFoundError:
        pytest.skip('the mim of the originals does not find what is installed as editable')
    assert found[name]['config'].endswith(f'{name}.py')
    assert found[name]['epochs'] == 24
    listed = search.get_model_info('kronattn_mm', training_datasets=['coco'], to_dict=True)
    assert name in listed


def test_the_papers_of_the_readme_are_those_of_the_metafiles():
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    for path in metafiles.metafiles(ROOT):
        content = yaml.safe_load(path.read_text(encoding='utf-8'))
        papers = {collection['Paper']['URL'] for collection in content['Collections']}
        assert len(papers) == 1
        assert f'({papers.pop()})' in readme
        for collection in content['Collections']:
            assert (ROOT / collection['Folder']).is_dir()


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
    'path', metafiles.find_configs(ROOT / 'configs'), ids=lambda path: path.stem
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


@pytest.mark.slow
@pytest.mark.parametrize('path', metafiles.metafiles(ROOT), ids=lambda path: path.parent.name)
def test_lengths_are_those_of_the_configs(path):
    for model in yaml.safe_load(path.read_text(encoding='utf-8'))['Models']:
        assert model['Metadata'] == metafiles.lengths(ROOT / model['Config']), model['Name']
