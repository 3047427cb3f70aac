"""The authors' module of efficient attention, written anew from its description, and ours."""

from pathlib import Path

import pytest
import torch
from converted import assert_same, load, trained
from torch import Tensor, nn

from kronattn_mm.converters.reference_attention import find_blocks
from kronattn_mm.layers import EfficientAttention2d


class Reference(nn.Module):
    """Softmax of queries over channels and of keys over positions, head by head; residual."""

    def __init__(
        self, in_channels: int, key_channels: int, head_count: int, value_channels: int
    ) -> None:
        super().__init__()
        self.head_count = head_count
        self.keys = nn.Conv2d(in_channels, key_channels, 1)
        self.queries = nn.Conv2d(in_channels, key_channels, 1)
        self.values = nn.Conv2d(in_channels, value_channels, 1)
        self.reprojection = nn.Conv2d(value_channels, in_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        outputs = []
        for key, query, value in zip(
            *(
                projection(x).flatten(2).chunk(self.head_count, 1)
                for projection in (self.keys, self.queries, self.values)
            ),
            strict=True,
        ):
            context = torch.einsum('nkp,nvp->nkv', key.softmax(2), value)
            outputs.append(torch.einsum('nkv,nkp->nvp', context, query.softmax(1)))
        return x + self.reprojection(torch.cat(outputs, 1).reshape(n, -1, h, w))


class Network(nn.Module):
    """Somebody's backbone with two modules in it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.ea_low = Reference(8, 4, 2, 6)
        self.head = nn.ModuleDict(dict(ea=Reference(16, 8, 2, 8)))


def test_modules_keep_their_weights_and_outputs_at_new_places(
    convert, save, tmp_path: Path
) -> None:
    network = trained(Network())
    places = ['ea_low=backbone.attention.layer1', 'head.ea=neck.attention.fpn1']
    text = convert(
        'attention', save(network), tmp_path / 'ours.pth', '--place', *places, '--head-count', 2
    )
    assert 'key_channels=4, value_channels=6, num_heads=2)' in text
    state = load(tmp_path / 'ours.pth')
    assert state['stem.weight'].shape == (8, 3, 3, 3)
    for old, new, channels, arguments in (
        (network.ea_low, 'backbone.attention.layer1.', 8, (4, 6)),
        (network.head['ea'], 'neck.attention.fpn1.', 16, (8, 8)),
    ):
        ours = EfficientAttention2d(channels, *arguments, num_heads=2).eval()
        ours.load_state_dict(
            {key.removeprefix(new): value for key, value in state.items() if key.startswith(new)}
        )
        x = torch.randn(2, channels, 7, 5)
        torch.testing.assert_close(ours(x), old(x), rtol=1e-5, atol=1e-6)
    convert(
        'attention',
        tmp_path / 'ours.pth',
        tmp_path / 'back.pth',
        '--place',
        *('='.join(reversed(place.split('='))) for place in places),
    )
    assert_same(load(tmp_path / 'back.pth'), network.state_dict())


CONFIG = """
default_scope = 'mmdet'
custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
layer = dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=6, num_heads=2)
model = dict(
    type='RetinaNet',
    backbone=dict(type='kronattn_mm.Plugged', base='mmdet.MobileNetV2', widen_factor=0.1,
                  out_indices=(1, 2, 4),
                  insert=[dict(at='{at}', layer=layer)]),
    neck=dict(type='FPN', in_channels=[8, 8, 16], out_channels=8, num_outs=5),
    bbox_head=dict(type='RetinaHead', num_classes=2, in_channels=8, feat_channels=8,
                   stacked_convs=1))
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    pytest.importorskip('mmdet')
    (tmp_path / 'config.py').write_text(CONFIG.format(at='layer3'))
    return tmp_path / 'config.py'


def test_the_only_place_that_fits_is_found(convert, save, tmp_path: Path, config: Path) -> None:
    network = trained(Reference(8, 4, 2, 6))
    options = [
        '--config',
        config,
        '--allow',
        'backbone.conv*',
        'backbone.layer*',
        'neck',
        'bbox_head',
        '--head-count',
        2,
    ]
    text = convert('attention', save(network), tmp_path / 'out.pth', *options)
    assert 'the module -> backbone.attention.layer3' in text and '0 of another shape' in text
    assert list(load(tmp_path / 'out.pth')) == [
        f'backbone.attention.layer3.{key}' for key in network.state_dict()
    ]
    options[-1] = 1
    text = convert('attention', save(network), tmp_path / 'no.pth', *options, code=1)
    assert "have 1 heads, the layer at 'backbone.attention.layer3' has num_heads=2" in text
    config.write_text(CONFIG.format(at='layer2-3'))
    text = convert('attention', save(network), tmp_path / 'no.pth', *options[:-2], code=1)
    assert 'several places fit' in text and 'layer2, backbone.attention.layer3' in text
    text = convert(
        'attention', save(Reference(8, 8, 1, 8)), tmp_path / 'no.pth', *options[:-2], code=1
    )
    assert 'no layer of the model fits' in text
    assert not (tmp_path / 'no.pth').exists()


def test_what_is_no_whole_block_is_refused(convert, save, tmp_path: Path) -> None:
    network = trained(Network())
    output = tmp_path / 'no.pth'
    state = network.state_dict()
    assert find_blocks(state).keys() == {'ea_low', 'head.ea'}
    assert "there is no attention block at 'ea'; they are at 'ea_low', 'head.ea'" in convert(
        'attention', save(state), output, '--place', 'ea=backbone.attention.layer1', code=1
    )
    assert '3 heads do not divide the 4 key and 6 value channels' in convert(
        'attention', save(state), output, '--place', 'ea_low=x', '--head-count', 3, code=1
    )
    assert 'would become ea_low.keys.weight' in convert(
        'attention', save(state), output, '--place', 'head.ea=ea_low', code=1
    )
    assert 'say where the blocks go' in convert('attention', save(state), output, code=1)
    del state['ea_low.values.bias']
    assert 'ea_low.values.bias is missing' in convert(
        'attention', save(state), output, '--place', 'ea_low=x', code=1
    )
    state['ea_low.values.bias'] = torch.zeros(5)
    assert 'ea_low.values is no 1x1 convolution that fits' in convert(
        'attention', save(state), output, '--place', 'ea_low=x', code=1
    )
    assert 'there is no attention block in the checkpoint' in convert(
        'attention', save(nn.Linear(2, 2)), output, '--place', 'a=b', code=1
    )
    assert not output.exists()
