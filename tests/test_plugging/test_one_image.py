"""One image through dynamic convolutions: laid out anew, and norms in the kernels."""

import contextlib
import copy
import pickle

import pytest
import torch
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS

pytest.importorskip('mmdet')
import kronattn_mm.registry  # noqa: F401
from kronattn_mm import attention_disabled, attention_scaled, plug, unplug
from kronattn_mm.ops import use_backend
from kronattn_mm.plugging import fused

DYNAMIC = dict(type='kronattn_mm.DynamicConv2d')
IMAGE = (1, 3, 48, 80)


def network(layer=DYNAMIC, at='layer*', affine=True):
    base = MODELS.build(
        dict(
            type='mmdet.MobileNetV2',
            widen_factor=0.25,
            out_indices=(0, 4, 7),
            norm_cfg=dict(type='BN', affine=affine),
        )
    )
    base.eval()
    module = plug(base, convs=[dict(at=at, layer=layer)])
    with torch.no_grad():
        for key, value in module.state_dict().items():
            if '.attention.' in key and key.endswith('weight'):
                value.copy_(torch.randn_like(value) * 0.1)
            elif '.bn.' in key and value.is_floating_point():
                # Spread about one where it is a variance or a factor, about zero otherwise.
                around = 0 if key.endswith(('bias', 'mean')) else 1
                value.copy_(around + torch.rand_like(value) - 0.5)
    return module


def norms_called(module, x):
    """Return the outputs, and how often something was normalised by itself."""
    with torch.profiler.profile() as profile:
        outputs = module(x)
    counts = {event.key: event.count for event in profile.key_averages()}
    return outputs, counts['aten::batch_norm']


def laid_out(module, x):
    """Return the outputs, and whether the map within the blocks was in channels_last."""
    seen = []
    handle = module.layer2[0].register_forward_hook(
        lambda _, inputs, __: seen.append(
            inputs[0].is_contiguous(memory_format=torch.channels_last)
            and not inputs[0].is_contiguous()
        )
    )
    try:
        outputs = module(x)
    finally:
        handle.remove()
    return outputs, seen[0]


def assert_same(actual, wanted, tolerance):
    assert type(actual) is type(wanted) and len(actual) == len(wanted) == 3
    for ours, theirs in zip(actual, wanted, strict=True):
        error = (ours - theirs).abs().max() / theirs.abs().max()
        assert error <= tolerance


@pytest.mark.parametrize('kind', ['DynamicConv2d', 'CondConv2d'])
@pytest.mark.parametrize(
    ('dtype', 'tolerance'), [(torch.float32, 1e-4), (torch.float64, 1e-12)], ids=str
)
def test_one_image_is_laid_out_and_put_back(kind, dtype, tolerance):
    module = network(dict(type=f'kronattn_mm.{kind}')).to(dtype)
    x = torch.randn(IMAGE, dtype=dtype)
    with torch.no_grad():
        with use_backend('reference'):
            wanted, plainly = laid_out(module, x)
        actual, apart = laid_out(module, x)
    assert apart and not plainly and x.is_contiguous()
    assert all(output.is_contiguous() for output in actual)
    assert_same(actual, wanted, tolerance)


@pytest.mark.parametrize('affine', [True, False])
def test_norms_are_in_the_kernels_where_the_map_is_larger(affine):
    module, x = network(affine=affine).double(), torch.randn(IMAGE, dtype=torch.float64)
    with torch.no_grad():
        with use_backend('reference'):
            wanted, all_of_them = norms_called(module, x)
        actual, some = norms_called(module, x)
    assert all_of_them == 52 and 2 < some < 40
    assert_same(actual, wanted, 1e-12)


@pytest.mark.parametrize('activate', [True, False])
@pytest.mark.parametrize('norm', [True, False])
def test_called_as_a_conv_module_is(activate, norm):
    block = network().layer2[0].expand_conv.double()
    x = torch.randn(1, 8, 24, 40, dtype=torch.float64)
    with torch.no_grad():
        actual = block(x, activate, norm=norm)
        with use_backend('reference'):
            wanted = block(x, activate=activate, norm=norm)
    torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('of', ['bn', 'conv'])
@pytest.mark.parametrize('by', ['hook', 'forward', 'another module'])
def test_whoever_listens_or_steps_in_is_called(of, by):
    module, seen = network(), []
    block = module.layer2[0].expand_conv
    part = getattr(block, of)

    class Listening(torch.nn.Module):
        def forward(self, x):
            seen.append(x)
            return part(x)

    if by == 'hook':
        part.register_forward_hook(lambda _, inputs, output: seen.append(output))
    elif by == 'forward':
        inner = part.forward
        part.forward = lambda x: (seen.append(x), inner(x))[1]
    else:
        setattr(block, of, Listening())
    with torch.no_grad():
        module(torch.randn(IMAGE))
    assert len(seen) == 1


def test_norms_reverted_from_several_processes():
    module, x = network().double(), torch.randn(IMAGE, dtype=torch.float64)
    with torch.no_grad():
        wanted, calls = norms_called(module, x)
        for convert in (torch.nn.SyncBatchNorm.convert_sync_batchnorm, revert_sync_batchnorm):
            module = convert(module)
            actual, again = norms_called(module, x)
            assert_same(actual, wanted, 1e-12)
            assert again == calls


def test_statistics_move_in_training_and_strength_is_kept():
    module, x = network().double(), torch.randn(IMAGE, dtype=torch.float64)
    wanted, actual = copy.deepcopy(module), copy.deepcopy(module)
    wanted.train()
    actual.train()
    with torch.no_grad():
        with use_backend('reference'):
            outputs = wanted(x)
        assert_same(actual(x), outputs, 1e-9)
    for (name, ours), theirs in zip(actual.named_buffers(), wanted.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10, msg=name)
    with torch.no_grad(), attention_scaled(module, 0.5):
        with use_backend('reference'):
            outputs = module(x)
        assert_same(module(x), outputs, 1e-9)


def test_whoever_gives_channels_last_gets_it():
    module = network()
    x = torch.randn(IMAGE).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        outputs, apart = laid_out(module, x)
    assert apart
    for output in outputs:
        assert output.is_contiguous(memory_format=torch.channels_last)


def test_only_depthwise_dynamic_convolutions_ask_for_it():
    assert 'forward' not in vars(network(dict(type='kronattn_mm.ShiftBalanceConv2d')))
    assert 'forward' not in vars(network(at='*.linear_conv.conv+layer7.0.expand_conv.conv'))
    assert 'forward' in vars(network(at='layer3.1.depthwise_conv.conv'))


@pytest.mark.parametrize('case', ['two images', 'gradients', 'autocast', 'half precision', 'off'])
def test_other_passes_are_left_as_they_are(case):
    module = network()
    x = torch.randn(2 if case == 'two images' else 1, *IMAGE[1:])
    if case == 'half precision':
        module, x = module.bfloat16(), x.bfloat16()
    with (
        torch.set_grad_enabled(case == 'gradients'),
        torch.autocast('cpu', enabled=case == 'autocast'),
        attention_disabled(module) if case == 'off' else contextlib.nullcontext(),
    ):
        _, apart = laid_out(module, x)
    assert not apart


@pytest.mark.filterwarnings('ignore')
def test_graphs_hold_no_change_of_layout():
    module, x = network(at='layer1*'), torch.randn(IMAGE)
    with torch.no_grad():
        wanted = module(x)
        traced = torch.jit.trace(module, x)
        compiled = torch.compile(module, backend='eager')
        for form in (traced, compiled):
            assert_same(form(x), wanted, 1e-4)
    assert 'contiguous' not in str(traced.inlined_graph)


def test_copies_pickles_and_fused_networks_keep_it_and_unplug_takes_it_out():
    module, x = network(), torch.randn(IMAGE)
    with torch.no_grad():
        wanted = module(x)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), fused(module)):
            outputs, apart = laid_out(other, x)
            assert apart and other.forward.__self__.module is other
            assert_same(outputs, wanted, 1e-4)
    unplug(module)
    assert not any('forward' in vars(part) for part in module.modules())
    with torch.no_grad():
        assert not laid_out(module, x)[1]
