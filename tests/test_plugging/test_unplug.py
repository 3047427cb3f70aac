"""Out again: nothing is left, on live models and in checkpoints."""

import copy
import pickle

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

import kronattn_mm.registry  # noqa: F401
from kronattn_mm import inserted_layers, plug, unplug
from kronattn_mm.plugging.removal import added_keys, merge, strip

EA = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4)


class BranchedConv2d(nn.Conv2d):
    """A convolution with a branch that starts at zero and has buffers of its own."""

    def __init__(self, *args, **geometry):
        super().__init__(*args, **geometry)
        self.attention = nn.Sequential(
            nn.Conv2d(self.in_channels, self.out_channels, 1), nn.BatchNorm2d(self.out_channels)
        )
        nn.init.zeros_(self.attention[1].weight)

    def forward(self, x):
        return super().forward(x) + self.attention(x.mean((2, 3), keepdim=True))


BRANCHED = dict(type=BranchedConv2d)
INSERTS = {
    'ResNet': (
        dict(type='mmdet.ResNet', depth=18),
        dict(
            insert=[
                dict(at='res2-3', layer=EA),
                dict(at='out2-3', layer=dict(type='NonLocal2d', norm_cfg=dict(type='BN'))),
            ],
            convs=[dict(at='layer4', layer=BRANCHED)],
        ),
    ),
    'MobileNetV2': (
        dict(type='mmdet.MobileNetV2', widen_factor=0.25),
        dict(convs=[dict(at='layer*', layer=BRANCHED)]),
    ),
    'PVT': (
        dict(
            type='mmdet.PyramidVisionTransformer',
            embed_dims=16,
            num_layers=[1, 1, 1, 1],
            pretrain_img_size=64,
        ),
        dict(insert=[dict(at='out0', layer=EA)]),
    ),
    'FPN': (
        dict(type='mmdet.FPN', in_channels=[8, 16], out_channels=8, num_outs=3),
        dict(insert=[dict(at='fpn1-3', layer=EA)]),
    ),
}


def traces(module):
    """Everything that tells one built module from another, by path."""
    found = {}
    for path, child in module.named_modules():
        found[path] = (
            type(child),
            {
                name: value
                if isinstance(value, (int, float, str, bool, type(None)))
                else type(value)
                for name, value in vars(child).items()
            },
            *(
                [
                    list(hooks)
                    for hooks in (
                        child._forward_hooks,
                        child._forward_pre_hooks,
                        child._backward_hooks,
                        child._state_dict_hooks,
                        child._load_state_dict_pre_hooks,
                    )
                ]
            ),
            list(child._parameters),
            list(child._buffers),
            list(child._modules),
        )
    return found


@pytest.mark.parametrize('base, inserts', INSERTS.values(), ids=list(INSERTS))
def test_plug_unplug_plug_leaves_no_trace(base, inserts):
    module = MODELS.build(base)
    untouched = traces(module), pickle.dumps(module), list(module.state_dict())
    children = dict(module.named_modules())
    state = {key: value.clone() for key, value in module.state_dict().items()}
    for _ in range(2):
        plug(module, **copy.deepcopy(inserts))
        plugged_keys = list(module.state_dict())
        assert traces(module) != untouched[0]
        assert unplug(module) is module
        assert traces(module) == untouched[0]
        assert list(module.state_dict()) == untouched[2] != plugged_keys
        assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())
        assert dict(module.named_modules()) == children, 'the very objects that were there'
        assert pickle.dumps(module) == untouched[1]
    plug(module, **copy.deepcopy(inserts))
    assert list(module.state_dict()) == plugged_keys
    assert unplug(unplug(module)) is module


def test_trained_weights_stay():
    module = MODELS.build(
        dict(
            type='kronattn_mm.Plugged',
            base='mmdet.ResNet',
            depth=18,
            norm_eval=False,
            insert=[dict(at='res3', layer=EA)],
            convs=[dict(at='layer2+layer4', layer=BRANCHED)],
        )
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module.train()
    for _ in range(2):
        optimizer.zero_grad()
        sum(output.square().mean() for output in module(torch.randn(2, 3, 64, 64))).backward()
        optimizer.step()
    module = copy.deepcopy(module)  # hooks are found in copies too
    ours = added_keys(module)
    trained = {key: value.clone() for key, value in module.state_dict().items()}
    module.layer4[0].conv1.weight.requires_grad_(False)
    unplug(module)
    plain = MODELS.build(dict(type='mmdet.ResNet', depth=18, norm_eval=False))
    assert list(plain.state_dict()) == list(module.state_dict())
    assert traces(module).keys() == traces(plain).keys()
    assert all(
        type(child) is type(module.get_submodule(path)) for path, child in plain.named_modules()
    )
    assert not module.layer4[0].conv1.weight.requires_grad
    assert module.layer4[0].conv2.weight.requires_grad
    for key, value in module.state_dict().items():
        assert torch.equal(value, trained[key]), key
    rest, removed = strip(trained, ours)
    assert list(rest) == list(plain.state_dict()) and removed == ours
    plain.load_state_dict(rest)
    plain.eval(), module.eval()
    x = torch.randn(1, 3, 64, 64)
    assert all(torch.equal(a, b) for a, b in zip(plain(x), module(x), strict=True))
    sum(output.sum() for output in module(x)).backward()


def test_whole_detector_and_only_its_own_attention():
    """Layers of somebody else that are called attention stay, in models and in checkpoints."""
    config = dict(
        type='mmdet.RetinaNet',
        data_preprocessor=dict(type='mmdet.DetDataPreprocessor'),
        backbone=dict(type='mmdet.ResNet', depth=18, out_indices=(2, 3)),
        neck=dict(type='mmdet.FPN', in_channels=[256, 512], out_channels=8, num_outs=2),
        bbox_head=dict(type='mmdet.RetinaHead', num_classes=2, in_channels=8, feat_channels=8),
    )
    plain = MODELS.build(config)
    backbone = dict(
        config['backbone'],
        type='kronattn_mm.Plugged',
        base='mmdet.ResNet',
        insert=[dict(at='res3', layer=EA)],
    )
    neck = dict(
        config['neck'],
        type='kronattn_mm.Plugged',
        base='mmdet.FPN',
        insert=[dict(at='fpn1', layer=EA)],
    )
    model = MODELS.build(dict(config, backbone=backbone, neck=neck))
    model.bbox_head.attention = nn.Sequential(nn.Conv2d(8, 8, 1))
    ours = added_keys(model)
    assert len(ours) == 16 and all(
        key.startswith(('backbone.attention.res3.', 'neck.attention.fpn1.')) for key in ours
    )
    state = model.state_dict()
    rest, removed = strip({f'module.{key}': value for key, value in state.items()}, ours)
    assert len(removed) == 16 and 'module.bbox_head.attention.0.weight' in rest
    unplug(model)
    assert not inserted_layers(model)
    assert isinstance(model.bbox_head.attention, nn.Sequential)
    del model.bbox_head.attention
    assert traces(model) == traces(plain)


def test_a_failed_plug_leaves_no_trace():
    module = MODELS.build(dict(type='mmdet.ResNet', depth=18))
    before = traces(module), pickle.dumps(module)
    for insert, convs, message in (
        ([dict(at='res9', layer=EA)], [dict(at='layer1', layer=BRANCHED)], 'res9'),
        (
            [dict(at='res2', layer=EA), dict(at='res3', layer=dict(EA, num_heads=3))],
            [],
            'num_heads',
        ),
        ([], [dict(at='layer1', layer=BRANCHED), dict(at='lyer2', layer=BRANCHED)], 'lyer2'),
    ):
        with pytest.raises(ValueError, match=message):
            plug(module, insert, convs)
        assert (traces(module), pickle.dumps(module)) == before
    plug(module, [dict(at='res2', layer=EA)])
    with pytest.raises(ValueError, match='inserted into this ResNet before; unplug it first'):
        plug(module, [dict(at='res3', layer=EA)])
    assert list(inserted_layers(module)) == ['res2'], 'what was there stays'


def test_refusals():
    module = plug(MODELS.build(dict(type='mmdet.ResNet', depth=18)), [dict(at='res2', layer=EA)])
    with pytest.raises(ValueError, match='EfficientAttention2d cannot be merged.*depends on'):
        merge(module)
    with pytest.raises(ValueError, match='is compiled'):
        unplug(torch.compile(module))
