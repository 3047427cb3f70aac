"""Every command of docs/converting.md, on small files of the kinds that it names."""

import re
import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from converted import assert_same, inferring, load, trained

from kronattn_mm.cli.convert import main
from kronattn_mm.cost.config import load_model

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / 'docs' / 'converting.md').read_text(encoding='utf-8')
COMMANDS = [
    command
    for command in re.findall(r'(?:^|`)(kronattn convert [^`\n]+)', TEXT, re.M)
    if ' KIND ' not in command
]
DETECTOR = """
default_scope = 'mmdet'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
layer = {layer}
model = dict(
    type='RetinaNet',
    data_preprocessor=dict(type='DetDataPreprocessor', mean=[127.5] * 3, std=[127.5] * 3,
                           pad_size_divisor=32),
    backbone=dict(type='kronattn_mm.Plugged', base='mmdet.MobileNetV2', widen_factor=0.1,
                  out_indices=(1, 2, 4), insert=[dict(at='layer3', layer=layer)]),
    neck=dict(type='FPN', in_channels=[8, 8, 16], out_channels=8, num_outs=5),
    bbox_head=dict(type='RetinaHead', num_classes=2, in_channels=8, feat_channels=8,
                   stacked_convs=1))
"""
EFFICIENT = "dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4, {})"


@pytest.fixture
def files(tmp_path: Path, monkeypatch) -> Path:
    """The files that the page names, each of its kind."""
    torchvision = pytest.importorskip('torchvision')
    pytest.importorskip('mmdet')
    pytest.importorskip('mmpretrain')
    for name, layer in (
        ('nl', "dict(type='NonLocal2d', reduction=2, mode='dot_product')"),
        ('ea', EFFICIENT.format("normalization='scaling'")),
        ('my_ea', EFFICIENT.format('num_heads=2')),
    ):
        (tmp_path / f'{name}_config.py').write_text(DETECTOR.format(layer=layer))

    def save(name: str, state: dict[str, torch.Tensor], **entries: object) -> None:
        torch.save(
            dict(state_dict=state, meta=dict(epoch=12, cfg='x'), **entries),
            tmp_path / f'{name}.pth',
        )

    def moved(state: dict[str, torch.Tensor], old: str, new: str) -> dict[str, torch.Tensor]:
        return {re.sub(f'^{re.escape(old)}', new, key): value for key, value in state.items()}

    detector = trained(load_model(tmp_path / 'nl_config.py')[0]).state_dict()
    plain = {key: value for key, value in detector.items() if '.attention.' not in key}
    ours = trained(load_model(tmp_path / 'my_ea_config.py')[0]).state_dict()
    save('nl', detector)
    save('detector', plain)
    save('list_neck', moved(plain, 'neck.', 'neck.0.'))
    save('theirs', moved(ours, 'backbone.attention.layer3.', 'backbone.ea3.'))
    save('averaged', plain, ema_state_dict=dict(moved(plain, '', 'module.'), steps=torch.tensor(1)))
    save('epoch_12', plain, optimizer={}, message_hub={})
    save(
        'nlnet',
        moved(
            {key: value for key, value in detector.items() if key.startswith('backbone.attention')},
            'backbone.attention.layer3.',
            'decode_head.nl_block.',
        ),
    )
    models = torchvision.models
    mobilenet = models.mobilenet_v2(width_mult=0.1)
    for name, network in (
        ('mobilenet_v2', mobilenet),
        ('shufflenet_v2', models.shufflenet_v2_x0_5()),
        ('mnasnet', models.mnasnet0_5()),
    ):
        torch.save(network.state_dict(), tmp_path / f'{name}.pth')
    from kronattn_mm.converters.backbone_names import convert

    save('classifier', convert(mobilenet.state_dict(), 'mmpretrain').state)
    cv2.imwrite(str(tmp_path / 'street.jpg'), np.random.randint(0, 255, (60, 90, 3), np.uint8))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_of_the_page_works(files: Path, capsys) -> None:
    assert len(COMMANDS) >= 19
    kinds = {shlex.split(command)[2] for command in COMMANDS}
    assert kinds == {'attention', 'non-local', 'backbone', 'nesting', 'publish'}
    for command in COMMANDS:
        words = shlex.split(command)[2:]
        assert main(words) == 0, command + capsys.readouterr().err
        output = words[2]
        if words[0] != 'publish' and '--dry-run' not in words:
            assert (files / output).is_file(), command
    # What the table says of going there and back.
    for first, last in (('theirs', 'theirs_again'), ('nl', 'nl_again')):
        assert_same(load(files / f'{last}.pth'), load(files / f'{first}.pth'))
    assert_same(
        load(files / 'torchvision.pth'), torch.load(files / 'mobilenet_v2.pth', weights_only=True)
    )
    assert len(list(files.glob('mask-rcnn_ea-*.pth'))) == 1


@pytest.mark.slow
def test_mask_rcnn_with_non_local_becomes_one_with_efficient_attention(
    tmp_path: Path, capsys
) -> None:
    """The config of the page, with the whole network."""
    pytest.importorskip('mmdet')
    folder = ROOT / 'configs' / 'efficient_attention'
    theirs = folder / 'mask-rcnn_r50_fpn_nonlocal2d-res4_1x_coco.py'
    snippet = re.search(r'```python\n(_base_.*?)```', TEXT, re.S)[1]
    ours = tmp_path / 'ea.py'
    ours.write_text(snippet.replace("'./", f"'{folder}/"))
    source = load_model(theirs)[0]
    for parameter in source.backbone.attention.parameters():
        parameter.data.normal_(0, 0.02)
    torch.save(dict(state_dict=source.state_dict()), tmp_path / 'nl.pth')
    code = main(
        [
            'non-local',
            str(tmp_path / 'nl.pth'),
            str(tmp_path / 'ea.pth'),
            '--source-config',
            str(theirs),
            '--config',
            str(ours),
            '--compare',
        ]
    )
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert 'key_channels=1024, value_channels=1024' in printed.out
    target = inferring(load_model(ours)[0])
    target.load_state_dict(load(tmp_path / 'ea.pth'))
    # Everything before the block is the same network.
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for got, expected in list(
            zip(target.backbone(x), inferring(source).backbone(x), strict=True)
        )[:3]:
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
