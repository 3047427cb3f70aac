"""LatentGNN's and CGNL's formulae against what the layers hold and execute, and against Table 3."""

import pytest

from kronattn_mm.cost import executed_cost, layer_cost, paper_cost
from kronattn_mm.layers import CGNL2d, LatentGNN2d

POSITIONS = {'res2': 112 * 160, 'res3': 56 * 80, 'res4': 28 * 40}  # of 896 x 1280
CHANNELS = {'res2': 512, 'res3': 1024, 'res4': 2048}


@pytest.mark.parametrize(
    'layer',
    [
        LatentGNN2d(16, (5, 3), channel_stride=2),
        LatentGNN2d(16, 7, mode='symmetric'),
        CGNL2d(16, groups=4),
        CGNL2d(16, inner_channels=6, groups=2),
    ],
    ids=['latent-gnn', 'latent-gnn-symmetric', 'cgnl', 'cgnl-narrow'],
)
def test_formulae_agree_with_the_layers(layer):
    shape = (1, 16, 5, 7)
    cost = layer_cost(layer, shape)
    assert cost.params == sum(parameter.numel() for parameter in layer.parameters())
    executed = executed_cost(layer, shape).macc
    # torch's counter sees matrix products and convolutions, CGNL multiplies element by element
    if isinstance(layer, CGNL2d):
        executed += 2 * 35 * layer.inner_channels
    assert cost.macc == executed
    # memory: the paper counts each computed tensor once, and no norm or activation
    assert 0 < cost.memory < executed_cost(layer, shape).allocated


def test_a_taylor_order_costs_its_powers():
    plain, expanded = CGNL2d(16, groups=4), CGNL2d(16, groups=4, order=3)
    difference = layer_cost(expanded, (1, 16, 5, 7)).macc - layer_cost(plain, (1, 16, 5, 7)).macc
    assert difference == (13 - 2) * 35 * 8


def shares(cost, network):
    """Smallest and largest percentage of a network whose size is known within bounds."""
    return 100 * cost / network[1], 100 * cost / network[0]


def test_shares_of_table_3():
    """What docs/cost.md says of them; one decimal is printed."""
    # 7 modules of efficient attention (the second figure is Table 2's) are 2.9 % and 5.3 %
    params = [1_119_808 / share for share in (0.0295, 0.0285)]
    macc = [8_847_032_320 / share for share in (0.0535, 0.0525)]

    def latent(nodes):
        parts = [
            paper_cost(
                'latent_gnn',
                positions=POSITIONS[at],
                in_channels=CHANNELS[at],
                latent_channels=[nodes],
            )
            for at in POSITIONS
        ]
        return sum(part.params for part in parts), sum(part.macc for part in parts)

    low, high = shares(latent(128)[0], params)
    assert low < 11.15 and high > 11.05
    low, high = shares(latent(128)[1], macc)
    assert low < 7.65 and high > 7.55
    assert shares(latent(100)[1], macc)[1] < 7.45
    block = paper_cost('cgnl', positions=POSITIONS['res4'], in_channels=2048, groups=1)
    assert shares(block.params, params) == pytest.approx((21.4, 22.1), abs=0.05)
    low, high = shares(block.macc, macc)
    assert low < 5.75 and high > 5.65
    grouped = paper_cost('cgnl', positions=POSITIONS['res3'], in_channels=1024)
    assert shares(grouped.params, params) == pytest.approx((4.2, 4.3), abs=0.05)


@pytest.mark.parametrize(
    'name, sizes, message',
    [
        ('latent_gnn', dict(channel_stride=3), 'channel_stride=3 must divide'),
        ('latent_gnn', dict(latent_channels=[0]), 'latent_channels'),
        ('cgnl', dict(groups=3), 'groups=3 must divide'),
        ('cgnl', dict(order=0), 'order'),
    ],
)
def test_bad_sizes(name, sizes, message):
    with pytest.raises(ValueError, match=message):
        paper_cost(name, positions=10, in_channels=16, **sizes)
