"""What Plugged does beside inserting: norms, frozen stages, other people's layers, refusals."""

import copy

import pytest
import torch
from mmengine.model import BaseModule, revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import nn

import kronattn_mm
import kronattn_mm.registry
from kronattn_mm.plugging import inserted_layers, insertion_shapes

EA = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4)


def plugged(*insert, base='mmdet.ResNet', **arguments):
    if base == 'mmdet.ResNet':
        arguments.setdefault('depth', 18)
    return MODELS.build(
        dict(type='kronattn_mm.Plugged', base=base, insert=list(insert), **arguments)
    )


def image():
    return torch.randn(2, 3, 48, 64)


class NormLayer(nn.Module):
    """A user's own layer: a norm inside, and no initialisation but its constructor's."""

    def __init__(self, in_channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(in_channels)
        self.mix = nn.Conv2d(in_channels, in_channels, 1)
        self.gain = nn.Conv2d(in_channels, in_channels, 1)
        nn.init.zeros_(self.gain.weight)
        nn.init.zeros_(self.gain.bias)

    def forward(self, x):
        return x + self.gain(self.mix(self.norm(x)))


def test_python_call_and_lazy_name():
    module = kronattn_mm.Plugged('mmdet.ResNet', insert=[dict(at='res2', layer=EA)], depth=18)
    assert list(inserted_layers(module)) == ['res2']


def test_without_insertions_it_is_the_plain_module():
    module = plugged()
    assert not hasattr(module, 'attention')


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain'])
def test_reachable_from_every_scope(scope):
    pytest.importorskip(scope)
    from mmengine.registry import init_default_scope

    init_default_scope(scope)
    module = MODELS.build(
        dict(
            type='kronattn_mm.Plugged', base='ResNet', depth=18, insert=[dict(at='res4', layer=EA)]
        )
    )
    assert type(module).__module__.startswith(scope)


def test_layer_at_frozen_stage_trains():
    module = plugged(dict(at='res1', layer=EA), frozen_stages=1)
    module.train()
    assert not any(p.requires_grad for p in module.layer1.parameters())
    sum(output.sum() for output in module(image())).backward()
    assert all(p.grad is not None for p in module.attention.parameters())
    assert all(child.training for child in module.attention.modules())


@pytest.mark.parametrize('norm_eval', [False, True])
def test_norms_follow_the_layer_not_the_backbone(norm_eval):
    module = plugged(
        dict(at='res3', layer=dict(type=NormLayer), norm_eval=norm_eval), norm_eval=True
    )
    norm = module.attention.res3.norm
    for _ in range(2):
        module.train()
        module(image())
        assert norm.training is not norm_eval
        assert not module.bn1.training
    assert (norm.num_batches_tracked.item() > 0) is not norm_eval
    tracked = norm.num_batches_tracked.item()
    module.eval()
    module(image())
    assert not norm.training and norm.num_batches_tracked.item() == tracked
    module.train()
    module.attention.res3.eval()  # said by hand, it stays
    module(image())
    assert not norm.training
    other = copy.deepcopy(module)
    other.train()
    other(image())
    assert other.attention.res3.norm.training is not norm_eval
    assert not norm.training


@pytest.mark.parametrize(
    'layer',
    [
        dict(type='NonLocal2d', reduction=2),
        dict(type='NonLocal2d', reduction=2, mode='dot_product', norm_cfg=dict(type='BN')),
        dict(type='ContextBlock', ratio=0.25),
        dict(type=NormLayer),
        dict(type='kronattn_mm.RegularAttention2d', key_channels=4, value_channels=4, pooling=True),
    ],
    ids=['NonLocal2d', 'NonLocal2d-norm', 'ContextBlock', 'own', 'RegularAttention2d'],
)
def test_layers_of_others(layer):
    plain = MODELS.build(dict(type='mmdet.ResNet', depth=18, init_cfg=None))
    module = plugged(
        dict(at='res2-4', layer=layer),
        init_cfg=[
            dict(type='Constant', val=3.0, layer=['Conv2d', 'LayerNorm']),
            dict(type='Constant', val=1.0, layer=['_BatchNorm']),
        ],
    )
    module.init_weights()
    module.load_state_dict(plain.state_dict(), strict=False)
    plain.eval(), module.eval()
    x = image()
    assert all(torch.equal(a, b) for a, b in zip(module(x), plain(x), strict=True))
    weights = [p for name, p in module.attention.named_parameters() if name.endswith('weight')]
    assert any(p.std() > 0 for p in weights if p.numel() > 1), 'weights are drawn, not constant'
    module.train()
    sum(output.square().sum() for output in module(x)).backward()
    assert all(p.grad is not None for p in module.attention.parameters())


def test_gradient_checkpointing_gives_the_same_gradients():
    modules = [
        plugged(dict(at='res2-4', layer=dict(**EA, zero_init=False), with_cp=with_cp))
        for with_cp in (False, True)
    ]
    modules[1].load_state_dict(modules[0].state_dict())
    x = image()
    saved = []
    for module in modules:
        module.train()
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: (sizes.append(t.numel()), t)[1], lambda t: t
        ):
            loss = sum(output.square().mean() for output in module(x))
        loss.backward()
        saved.append(sum(sizes))
    assert saved[1] < saved[0]
    for a, b in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def active(*insert, **arguments):
    module = plugged(*insert, **arguments)
    with torch.no_grad():
        for parameter in module.attention.parameters():
            parameter.normal_(std=0.1)
        for child in module.modules():
            if isinstance(child, nn.BatchNorm2d):
                child.running_mean.normal_()
                child.running_var.uniform_(0.5, 2)
    module.eval()
    return module


@pytest.mark.parametrize('at', ['res1-4', 'layer1.0+layer4.1', 'maxpool', 'out0-3'])
def test_survives_sync_batchnorm_and_fusing(at):
    from mmengine.model.utils import convert_sync_batchnorm

    module = active(dict(at=at, layer=EA))
    x = image()
    with torch.no_grad():
        before = module(x)
        converted = revert_sync_batchnorm(convert_sync_batchnorm(copy.deepcopy(module)))
        converted.eval()
        fused = _fuse(copy.deepcopy(module))
        for other in (converted, fused):
            for a, b in zip(other(x), before, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert isinstance(fused.bn1, nn.Identity), 'fusing did happen'


def _fuse(module):
    from mmcv.cnn import fuse_conv_bn

    return fuse_conv_bn(module)


@pytest.mark.parametrize(
    'entry, error, message',
    [
        (
            dict(at='res3', layer=dict(**EA, num_heads=3)),
            ValueError,
            r'key_channels=4 and num_heads=3; 4 allows num_heads in \[1, 2, 4\]',
        ),
        (
            dict(at='res3', layer=dict(type='kronattn_mm.EfficientAttention2d', key_chanels=4)),
            TypeError,
            "no argument 'key_chanels', did you mean 'key_channels'.*value given: 4",
        ),
        (
            dict(at='res3', layer=dict(type='kronattn_mm.EfficentAttention2d')),
            ValueError,
            "did you mean 'kronattn_mm.EfficientAttention2d'",
        ),
        (
            dict(at='res3', layer=dict(type='EfficientAttention2d')),
            ValueError,
            "did you mean 'kronattn_mm.EfficientAttention2d'",
        ),
        (
            dict(at='res3', layer=dict(type='mmcv.NonLocal2d')),
            ValueError,
            "did you mean 'NonLocal2d'",
        ),
        (dict(at='res3', layer=dict(key_channels=4)), ValueError, 'a layer needs a type'),
        (dict(at='res3', layer='EfficientAttention2d'), TypeError, '`layer` must be a dict'),
        (dict(at='res3'), ValueError, "has no 'layer'"),
        (dict(layer=EA), ValueError, "has no 'at'"),
        (dict(att='res3', layer=EA), ValueError, "unknown key 'att'.*keys are at, layer"),
        (
            dict(at='res3', layer=EA, norm_eval='yes'),
            TypeError,
            '`norm_eval` must be True or False',
        ),
        (
            dict(at='res3', layer=dict(type='Conv2d', out_channels=8, kernel_size=3)),
            ValueError,
            r"Conv2d at 'res3' must keep the shape of its input \(1, 256, 4, 4\).*\(1, 8, 2, 2\)",
        ),
        (
            dict(at='res3', layer=dict(type='kronattn_mm.EfficientAttention3d')),
            ValueError,
            r"EfficientAttention3d cannot run at 'res3'.*\(1, 256, 4, 4\)",
        ),
        (dict(at='res3', layer=dict(**EA, in_channels=64)), ValueError, r"cannot run at 'res3'"),
        ('res3', TypeError, 'must be a list of dicts'),
    ],
)
def test_bad_entries(entry, error, message):
    with pytest.raises(error, match=message):
        plugged(entry)


def test_bad_base():
    with pytest.raises(
        ValueError, match="'mmdet.RseNet' is not registered; did you mean 'mmdet.ResNet'"
    ):
        plugged(base='mmdet.RseNet')
    with pytest.raises(TypeError, match='must be a list of dicts'):
        MODELS.build(
            dict(
                type='kronattn_mm.Plugged',
                base='mmdet.ResNet',
                depth=18,
                insert=dict(at='res3', layer=EA),
            )
        )
    with pytest.raises(TypeError, match='dpeth'):
        plugged(base='mmdet.ResNet', dpeth=18, depth=18)
    with pytest.raises(ValueError, match='attribute `attention` of its own'):
        plugged(dict(at='conv', layer=EA), base=WithAttention)


class WithAttention(BaseModule):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.attention = nn.Identity()

    def forward(self, x):
        return self.attention(self.conv(x))


def test_building_leaves_random_numbers_and_modes_alone():
    torch.manual_seed(3)
    plain = MODELS.build(dict(type='mmdet.ResNet', depth=18))
    torch.manual_seed(3)
    module = plugged(dict(at='res3', layer=EA))
    for key, value in plain.state_dict().items():
        assert torch.equal(module.state_dict()[key], value), 'the probe changes no buffer'
    assert module.training and all(child.training for child in module.modules())


def test_missing_operators_are_explained(monkeypatch):
    """A half-installed mmcv is named, with the command that mends it."""
    import importlib

    from kronattn_mm import environment

    real = importlib.import_module

    def broken(name, package=None):
        if name == 'mmcv._ext':
            raise ModuleNotFoundError("No module named 'mmcv._ext'")
        return real(name, package)

    monkeypatch.setattr(environment.importlib, 'import_module', broken)
    with pytest.raises(ImportError, match='without its compiled operators.*MMCV_WITH_OPS=1 pip'):
        plugged(base='mmdet.NoSuchThing')


def detector():
    from mmengine.registry import init_default_scope

    init_default_scope('mmdet')
    return MODELS.build(
        dict(
            type='mmdet.RetinaNet',
            data_preprocessor=dict(type='mmdet.DetDataPreprocessor'),
            backbone=dict(
                type='kronattn_mm.Plugged',
                base='mmdet.ResNet',
                depth=18,
                insert=[dict(at='res3', layer=EA)],
            ),
            neck=dict(
                type='kronattn_mm.Plugged',
                base='mmdet.FPN',
                in_channels=[128, 256, 512],
                out_channels=16,
                num_outs=3,
                start_level=0,
                insert=[dict(at='fpn1-3', layer=EA)],
            ),
            bbox_head=dict(
                type='kronattn_mm.Plugged',
                base='mmdet.RetinaHead',
                num_classes=2,
                in_channels=16,
                feat_channels=16,
                stacked_convs=1,
                insert=[dict(at='cls_convs.0', layer=EA)],
            ),
        )
    )


def test_shapes_in_a_whole_detector():
    model = detector()
    model.backbone.out_indices = (1, 2, 3)
    assert list(inserted_layers(model)) == [
        'backbone.res3',
        'neck.fpn1',
        'neck.fpn2',
        'neck.fpn3',
        'bbox_head.cls_convs.0',
    ]
    shapes = insertion_shapes(model, (320, 448))
    assert shapes['backbone.res3'] == (1, 256, 20, 28)
    assert shapes['neck.fpn1'] == (1, 16, 40, 56)
    assert shapes['neck.fpn3'] == (1, 16, 10, 14)
    assert shapes['bbox_head.cls_convs.0'][:2] == (1, 16)
    with pytest.raises(TypeError, match='no extract_feat'):
        insertion_shapes(model.backbone, (64, 64))
