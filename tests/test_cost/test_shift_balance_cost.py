"""The accounting of the Shift-and-Balance paper: by hand, on layers, and its networks' sizes."""

import functools
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip('mmpretrain')

from analysis_tool import ROOT, call_tool, load_tool

from kronattn_mm.cost import layer_cost, paper_cost
from kronattn_mm.cost.config import load_model, quiet
from kronattn_mm.cost.report import CostReport, cost_report
from kronattn_mm.cost.shift_balance import scaled_attention_operations, shift_balance_operations
from kronattn_mm.layers import (
    CondConv2d,
    DynamicConv2d,
    ShiftBalance2d,
    ShiftBalanceConv2d,
    SqueezeExcite2d,
    SqueezeExciteConv2d,
)

CONFIGS = ROOT / 'configs' / 'shift_and_balance' / 'classification' / 'imagenet'
# Worked out from the paper's rules: parameters in millions (static, SE block, SB in the pointwise
# convolutions, SB in all three, DyConv), multiply-adds in millions (static, SB in all three),
# values of lambda.
SIZES = {
    1.0: ((3.505, 3.960, 10.00, 11.53, 11.15), (300.8, 308.7), 15744),
    0.75: ((2.636, 2.894, 6.33, 7.20, 7.01), (209.1, 213.6), 12016),
    0.5: ((1.969, 2.083, 3.62, 4.01, 3.94), (97.1, 99.1), 7976),
    0.35: ((1.677, 1.734, 2.50, 2.70, 2.69), (59.3, 60.3), 5744),
}
CLASSIFIER = 1280 * 1000  # its multiply-adds, which are in the head


@functools.cache
def network(variant: str, width: float) -> nn.Module:
    path = CONFIGS / f'mobilenetv2-x1.0_{variant}_4xb64-300e_in1k.py'
    return load_model(path, {'model.backbone.widen_factor': width})[0]


def params(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_by_hand():
    sizes = dict(in_channels=6, hidden_channels=4, out_channels=10, positions=35)
    shift = shift_balance_operations(**sizes, out_positions=12)
    assert shift.multiplies == 6 + 6 * 4 + 4 * 10 + 10
    assert shift.adds == 6 * 35 + 6 * 4 + 4 * 10 + 10 * 12
    scale = scaled_attention_operations(**sizes, out_positions=12)
    assert scale.multiplies == 6 + 6 * 4 + 4 * 10 + 10 * 12
    assert scale.adds == 6 * 35 + 6 * 4 + 4 * 10
    # Same size before and after, unless it is given.
    assert shift_balance_operations(**sizes).adds == 6 * 35 + 64 + 10 * 35
    with pytest.raises(ValueError, match='positions must be a positive integer, got 0'):
        paper_cost('shift_balance', **dict(sizes, positions=0))


@pytest.mark.parametrize(
    'layer',
    [
        ShiftBalanceConv2d(6, 10, 3, stride=2, padding=1, bias=False),
        ShiftBalanceConv2d(6, 10, 1, norm=None, lambda_per='layer'),
        ShiftBalanceConv2d(12, 12, (3, 5), padding='same', groups=12),
        SqueezeExciteConv2d(6, 10, 3, stride=(2, 1), dilation=2, hidden_ratio=0.5),
        SqueezeExciteConv2d(6, 10, 3, padding='valid', norm='layer_norm'),
        ShiftBalance2d(6, hidden_channels=3),
        SqueezeExcite2d(6, bias=True),
        DynamicConv2d(6, 10, 3, bias=False),
        DynamicConv2d(8, 8, 3, groups=8, num_kernels=3),
        CondConv2d(6, 10, 1, num_kernels=8),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_formula_against_the_layer(layer: nn.Module):
    shape = (2, layer.in_channels, 11, 9)
    cost = layer_cost(layer, shape)
    conv = isinstance(layer, nn.modules.conv._ConvNd)
    plain = sum(
        layer._parameters[name].numel()
        for name in ('weight', 'bias')
        if conv and layer._parameters[name] is not None
    )
    assert cost.params == params(layer) - plain
    # What is a multiplication: by weights, by 1 / (h w), and the last step.
    x = torch.randn(shape)
    output = layer.eval()(x)
    weights = sum(
        module.weight.numel() for module in layer.modules() if isinstance(module, nn.Linear)
    )
    last = 0
    if isinstance(layer, (ShiftBalanceConv2d, ShiftBalance2d)):
        last = output.shape[1]
    elif isinstance(layer, (SqueezeExciteConv2d, SqueezeExcite2d)):
        last = output[0].numel()
    assert cost.macc == layer.in_channels + weights + last
    assert cost.memory == 0


@pytest.mark.parametrize('width', SIZES)
def test_parameters_of_table_1(width: float):
    printed, _, lambdas = SIZES[width]
    variants = ('static', 'se-block', 'sb-2', 'sb-3', 'dyconv')
    for variant, million in zip(variants, printed, strict=True):
        assert params(network(variant, width)) / 1e6 == pytest.approx(million, abs=0.0052), variant
    values = [
        value
        for name, value in network('sb-3', width).named_parameters()
        if name.endswith('lambda_')
    ]
    assert len(values) == 50
    assert sum(value.numel() for value in values) == lambdas
    # "With close parameters" (section 5.1).
    assert params(network('dyconv', width)) == pytest.approx(
        params(network('sb-3', width)), rel=0.04
    )


@functools.cache
def report_of(variant: str, width: float) -> CostReport:
    with quiet():
        return cost_report(network(variant, width), (224, 224))


@pytest.mark.parametrize('width', SIZES)
def test_multiply_adds_of_table_1(width: float):
    for variant, printed in zip(('static', 'sb-3'), SIZES[width][1], strict=True):
        macc = report_of(variant, width).model_macc + CLASSIFIER
        assert macc / 1e6 == pytest.approx(printed, abs=0.051), variant


def test_extra_operations_at_full_width():
    """Equations 16 and 17 over the 50 convolutions of MobileNetV2 x1.0."""
    model, report = network('sb-3', 1.0), report_of('sb-3', 1.0)
    assert len(report.convs) == 50
    assert report.convs_paper_total.macc == 7_989_280
    adds = 0
    for item in report.convs:
        conv = model.get_submodule(item.name)
        height, width = item.shape[2:]
        adds += shift_balance_operations(
            in_channels=conv.in_channels,
            hidden_channels=conv.attention.hidden_channels,
            out_channels=conv.out_channels,
            positions=height * width,
            out_positions=-(-height // conv.stride[0]) * -(-width // conv.stride[1]),
        ).adds
    assert adds == pytest.approx(20.77e6, abs=5e3)
    assert report.convs_paper_total.params == params(model) - params(network('static', 1.0))


def test_the_tool_shows_replaced_convolutions(tmp_path: Path, capfd):
    tool = load_tool('cost')
    path = str(CONFIGS / 'mobilenetv2-x0.35_sb-3_4xb64-300e_in1k.py')
    code, out, _ = call_tool(tool, capfd, path)
    assert code == 0
    assert 'backbone.layer7.0.conv.2.conv  ShiftBalanceConv2d' in out
    total = params(network('sb-3', 0.35)) - params(network('static', 0.35))
    assert f'{total:,} parameters' in out
    assert 'no layer is inserted' not in out
