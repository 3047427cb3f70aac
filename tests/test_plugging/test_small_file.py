"""The small file: extract and attach are the identity, and what does not fit is said."""

import json
import os
import sys

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

pytest.importorskip('safetensors')
import kronattn_mm.registry  # noqa: F401
from kronattn_mm import inserted_layers, load_attention, plug_from_file, save_attention, unplug
from kronattn_mm.plugging.base_identity import digests
from kronattn_mm.plugging.small_file import SmallFileError, extract_attention, read_small_file

EA = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4)
NL = dict(type='NonLocal2d', reduction=2, norm_cfg=dict(type='BN'))


@MODELS.register_module()
class NormedConv2d(nn.Conv2d):
    """A convolution and what a batch norm makes of the mean of its input, added."""

    def __init__(self, *args, ratio=2, **geometry):
        super().__init__(*args, **geometry)
        self.attention = nn.Sequential(
            nn.Conv2d(self.in_channels, self.in_channels // ratio, 1),
            nn.BatchNorm2d(self.in_channels // ratio),
            nn.Conv2d(self.in_channels // ratio, self.out_channels, 1),
        )

    def forward(self, x):
        return super().forward(x) + self.attention(x.mean((2, 3), keepdim=True))


def detector(plug=True, num_classes=2, head='RetinaHead', **changes):
    backbone = dict(type='mmdet.ResNet', depth=18, out_indices=(1, 2, 3), norm_eval=False)
    neck = dict(type='mmdet.FPN', in_channels=[128, 256, 512], out_channels=16, num_outs=3)
    if plug:
        layer = {**EA, **changes}
        backbone = dict(
            backbone,
            type='kronattn_mm.Plugged',
            base='mmdet.ResNet',
            insert=[dict(at='res3-4', layer=layer)],
            convs=[dict(at='layer2', layer=dict(type='NormedConv2d', ratio=4))],
        )
        neck = dict(
            neck, type='kronattn_mm.Plugged', base='mmdet.FPN', insert=[dict(at='fpn1-2', layer=NL)]
        )
    model = MODELS.build(
        dict(
            type='mmdet.RetinaNet',
            data_preprocessor=dict(type='mmdet.DetDataPreprocessor'),
            backbone=backbone,
            neck=neck,
            bbox_head=dict(
                type=f'mmdet.{head}',
                num_classes=num_classes,
                in_channels=16,
                feat_channels=16,
                stacked_convs=1,
            ),
        )
    )
    model.eval()
    return model


@torch.no_grad()
def trained(plain):
    """A plugged model on the weights of ``plain``, with layers and norms in them that learned."""
    model = detector()
    model.load_state_dict(plain.state_dict(), strict=False)
    for key, value in model.state_dict().items():
        if '.attention.' in key and value.is_floating_point():
            value.copy_(torch.rand_like(value) * 0.2 + 0.1)
    return model


@torch.no_grad()
def outputs(model):
    torch.manual_seed(7)
    return [tensor for level in model(torch.randn(1, 3, 64, 96), mode='tensor') for tensor in level]


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_extract_and_attach_is_the_identity(tmp_path):
    plain = detector(plug=False)
    model = trained(plain)
    file = tmp_path / 'out' / 'attention.safetensors'
    content = save_attention(
        model,
        file,
        config='retina.py',
        plain=plain.state_dict(),
        metrics={'coco/bbox_mAP': 0.25},
        licence='CC-BY-4.0',
    )
    assert [path.name for path in file.parent.iterdir()] == ['attention.safetensors']
    assert set(content.tensors) == {key for key in model.state_dict() if '.attention.' in key}
    assert 'neck.attention.fpn1.conv_out.bn.running_mean' in content.tensors
    wanted = outputs(model)

    # The layers in a model of the same config, on the plain weights.
    other = detector()
    other.load_state_dict(plain.state_dict(), strict=False)
    assert not equal(outputs(other), wanted)
    attached = load_attention(other, file)
    assert attached.loaded == len(content.tensors) and attached.same_base
    assert equal(outputs(other), wanted)

    # The plain model, with no config of ours.
    assert plug_from_file(plain, file).same_base
    assert equal(outputs(plain), wanted)
    assert list(inserted_layers(plain)) == list(inserted_layers(model))
    assert not plain.neck.attention.fpn1.training
    again = extract_attention(plain, config='retina.py')
    assert again.parts == content.parts and again.base['weights'] == content.base['weights']
    unplug(plain)
    assert not equal(outputs(plain), wanted)

    read = read_small_file(file)
    assert read.metrics == {'coco/bbox_mAP': 0.25} and read.licence == 'CC-BY-4.0'
    assert read.base['moved'] == dict(statistics=0, weights=0, not_in_file=0)
    assert read.base['model'] == 'RetinaNet' and read.base['config'] == 'retina.py'
    assert read.versions['torch'] == torch.__version__
    backbone = read.parts[0]
    assert [entry['at'] for entry in backbone['insert']] == ['res3-4'] * 2
    assert [entry['path'] for entry in backbone['insert']] == ['layer3', 'layer4']
    assert backbone['convs'] == [
        dict(
            at='layer2',
            enabled=True,
            layer=dict(type='NormedConv2d', ratio=4),
            paths=[
                'layer2.0.conv1',
                'layer2.0.conv2',
                'layer2.0.downsample.0',
                'layer2.1.conv1',
                'layer2.1.conv2',
            ],
        )
    ]


def test_config_form_survives_init_weights_and_load_from(tmp_path):
    plain = detector(plug=False)
    model = trained(plain)
    file = str(tmp_path / 'attention.safetensors')
    save_attention(model, file)
    wanted = outputs(model)
    for insert in (dict(), dict(insert=[dict(at='fpn1-2', layer=NL)])):
        other = detector()
        other.backbone = MODELS.build(
            dict(
                type='kronattn_mm.Plugged',
                base='mmdet.ResNet',
                depth=18,
                out_indices=(1, 2, 3),
                norm_eval=False,
                attention_weights=file,
                init_cfg=[dict(type='Constant', val=3.0, layer=['Conv2d', 'BatchNorm2d'])],
            )
        )
        other.neck = MODELS.build(
            dict(
                type='kronattn_mm.Plugged',
                base='mmdet.FPN',
                in_channels=[128, 256, 512],
                out_channels=16,
                num_outs=3,
                attention_weights=dict(file=file, part='neck'),
                **insert,
            )
        )
        other.init_weights()
        assert other.backbone.conv1.weight.unique().tolist() == [3.0]
        other.load_state_dict(plain.state_dict(), strict=False)
        other.eval()
        assert equal(outputs(other), wanted)


def config_part(file, **changes):
    return MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.FPN',
            num_outs=3,
            **{
                **dict(in_channels=[128, 256, 512], out_channels=16, attention_weights=file),
                **changes,
            },
        )
    )


def test_wrong_bases_and_layers_are_named(tmp_path):
    file = tmp_path / 'attention.safetensors'
    save_attention(trained(detector(plug=False)), file, config='retina.py')
    other = detector(num_classes=3)
    with pytest.raises(
        SmallFileError,
        match=r'is for a RetinaNet of retina.py with \d+ tensors '
        r'\(fingerprint \w{12}\), and this is a RetinaNet with .*retina_cls.bias is '
        r"\[27\] here and \[18\] there, 2 differences in all; check='parts'",
    ):
        load_attention(other, file)
    before = outputs(other)
    load_attention(other, file, check='parts')
    assert not equal(outputs(other), before)
    deeper = MODELS.build(dict(type='mmdet.ResNet', depth=34))
    with pytest.raises(SmallFileError, match='is for a RetinaNet .*, and this is a ResNet with'):
        plug_from_file(deeper, file)
    with pytest.raises(SmallFileError, match='inserted into this RetinaNet already'):
        plug_from_file(other, file)
    with pytest.raises(SmallFileError, match='nothing is inserted'):
        load_attention(detector(plug=False), file)
    # Other arguments with the same keys and shapes would load, and compute something else.
    with pytest.raises(
        SmallFileError,
        match="backbone.res3 has normalization='softmax' in the "
        "file and normalization='scaling' in the model",
    ):
        load_attention(detector(normalization='scaling'), file)
    load_attention(detector(normalization='softmax', num_heads=1, zero_init=False), file)
    with pytest.raises(SmallFileError, match="part 'head'; its parts are backbone .ResNet, fing"):
        config_part(dict(file=str(file), part='head'))
    with pytest.raises(SmallFileError, match='and this FPN .fingerprint .* is none of them'):
        config_part(str(file), out_channels=8)
    with pytest.raises(TypeError, match='a path or a dict with file and part'):
        config_part(dict(path=str(file)))
    with pytest.raises(SmallFileError, match='fpn2 is in the file and not in the model'):
        config_part(str(file), insert=[dict(at='fpn1', layer=NL)])


def test_a_moved_base_is_refused_or_included(tmp_path):
    plain = detector(plug=False)
    model = trained(plain)
    before = digests(plain.state_dict())
    with torch.no_grad():
        model.backbone.bn1.running_mean += 1
    with pytest.raises(
        SmallFileError,
        match='the base moved: 1 statistics of batch norms and 0 '
        'weights differ from the plain checkpoint, such as backbone.bn1.running_mean'
        '.*include_norms',
    ):
        extract_attention(model, plain=before)
    content = extract_attention(model, plain=before, include_norms=True)
    assert content.base['moved'] == dict(statistics=1, weights=0, not_in_file=0)
    assert plug_from_file(plain, content).same_base
    assert equal(outputs(plain), outputs(model))
    content.save(tmp_path / 'norms.safetensors')
    with pytest.raises(SmallFileError, match='holds weights of the base too'):
        config_part(str(tmp_path / 'norms.safetensors'))

    unplug(plain)
    with torch.no_grad():
        model.bbox_head.retina_cls.weight += 1
    with pytest.raises(SmallFileError, match='0 statistics of batch norms and 1 weights.*also='):
        extract_attention(model, plain=before, include_norms=True)
    content = extract_attention(
        model, plain=before, include_norms=True, also=['bbox_head.retina_cls']
    )
    plug_from_file(plain, content)
    assert equal(outputs(plain), outputs(model))
    allowed = extract_attention(model, plain=before, allow_moved=True)
    assert allowed.base['moved'] == dict(statistics=1, weights=1, not_in_file=2)
    assert extract_attention(model).base['moved'] is None, 'not known, and not said'
    assert not load_attention(detector(), allowed).same_base
    with pytest.raises(SmallFileError, match="no module 'bbox_head.retina_cl'.*'bbox_head.retina_"):
        extract_attention(model, also=['bbox_head.retina_cl'])
    with pytest.raises(ValueError, match='lacks 2 of the .* tensors of the base, such as bbox_he'):
        extract_attention(
            model, plain={key: value for key, value in before.items() if 'retina_cls' not in key}
        )


def rewritten(file, target, change):
    """Copy a small file with a change to its texts."""
    from safetensors.torch import load_file, save_file

    content = read_small_file(file)
    texts = dict(
        kronattn_mm='1',
        **{
            name: json.dumps(getattr(content, name))
            for name in ('parts', 'base', 'extra', 'versions', 'metrics', 'licence')
        },
    )
    change(texts)
    save_file(load_file(file), target, texts)
    return target


def replace(name, old, new):
    def change(texts):
        assert old in texts[name]
        texts[name] = texts[name].replace(old, new)

    return change


def test_damaged_and_hostile_files(tmp_path):
    plain = detector(plug=False)
    keys = list(plain.state_dict())
    file = tmp_path / 'attention.safetensors'
    save_attention(trained(plain), file)
    data = file.read_bytes()
    bad = tmp_path / 'bad.safetensors'
    for content in (b'', data[:4], data[:1000], data[:-5], b'\xff' * 64, os.urandom(3000)):
        bad.write_bytes(content)
        with pytest.raises(SmallFileError, match='bad.safetensors cannot be read as a safetensors'):
            read_small_file(bad)
    with pytest.raises(SmallFileError, match='there is no file'):
        read_small_file(tmp_path / 'none.safetensors')
    for change, message in (
        (lambda texts: texts.pop('kronattn_mm'), 'but not one that kronattn_mm wrote'),
        (lambda texts: texts.update(kronattn_mm='99'), "has the format '99'"),
        (lambda texts: texts.update(parts='[{}]'), 'description in .* is damaged'),
        (lambda texts: texts.update(base='nonsense'), 'description in .* is damaged'),
        (lambda texts: texts.pop('extra'), 'description in .* is damaged'),
    ):
        with pytest.raises(SmallFileError, match=message):
            read_small_file(rewritten(file, bad, change))
    marker = tmp_path / 'imported'
    (tmp_path / 'evil_module.py').write_text(f'open({str(marker)!r}, "w").close()\nX = 1\n')
    sys.path.insert(0, str(tmp_path))
    try:
        for change, message in (
            (replace('parts', '"NonLocal2d"', '"evil_module.X"'), 'belongs to .evil_module'),
            (replace('parts', '"NonLocal2d"', '"os.system"'), "belongs to 'os'"),
            (replace('parts', '{"type": "BN"}', '{"type": "evil_module.X"}'), 'evil_module'),
            (replace('parts', '"NonLocal2d"', '"NonLocal9d"'), 'is not registered'),
            (
                replace('parts', '"reduction": 2', '"pretrained": "http://x.pth"'),
                'may not have anything loaded',
            ),
        ):
            with pytest.raises(ValueError, match=message):
                plug_from_file(plain, rewritten(file, bad, change))
            assert list(plain.state_dict()) == keys, 'the model stays plain'
    finally:
        sys.path.remove(str(tmp_path))
    assert not marker.exists()


class Unregistered(nn.Module):
    def __init__(self, in_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, in_channels, 1)

    def forward(self, x):
        return x + self.conv(x)


def test_what_no_file_can_name():
    module = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.ResNet',
            depth=18,
            insert=[dict(at='res2', layer=dict(type=Unregistered))],
        )
    )
    with pytest.raises(ValueError, match="at 'res2' is a Unregistered, which is not registered"):
        extract_attention(module)
    with pytest.raises(SmallFileError, match='nothing is inserted into this ResNet'):
        extract_attention(MODELS.build(dict(type='mmdet.ResNet', depth=18)))


def test_seven_layers_on_resnet50_are_four_and_a_half_megabytes(tmp_path):
    ea = dict(type='kronattn_mm.EfficientAttention2d')
    model = nn.Module()
    model.backbone = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.ResNet',
            depth=50,
            insert=[dict(at='res3-4', layer=ea)],
        )
    )
    model.neck = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.FPN',
            in_channels=[256, 512, 1024, 2048],
            out_channels=256,
            num_outs=5,
            insert=[dict(at='fpn1-5', layer=ea)],
        )
    )
    content = save_attention(model, tmp_path / 'ea.safetensors')
    assert sum(tensor.numel() for tensor in content.tensors.values()) == 1119808
    assert 4.45e6 < (tmp_path / 'ea.safetensors').stat().st_size < 4.55e6
    assert np.prod(content.base['shapes']['backbone.conv1.weight']) == 64 * 3 * 49
