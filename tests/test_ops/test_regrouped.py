"""The regrouped block against the straightforward one, in float64, forward and backward."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kronattn_mm.layers import EfficientAttention1d, EfficientAttention2d, EfficientAttention3d
from kronattn_mm.ops import use_backend
from kronattn_mm.ops.regrouped import (
    Projections,
    grouping_costs,
    regrouped_attention,
    regrouped_cost,
    regrouping_pays,
)
from kronattn_mm.ops.tiles import SMALLEST_DIVIDED, Tiles, divide
from kronattn_mm.ops.whole_map import whole_map_attention

LAYERS = {1: EfficientAttention1d, 2: EfficientAttention2d, 3: EfficientAttention3d}


def layer_of(dims=2, dtype=torch.float64, **arguments):
    torch.manual_seed(0)
    layer = LAYERS[dims](
        zero_init=False, **{**dict(in_channels=6, key_channels=4, value_channels=8), **arguments}
    ).to(dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer


def projections(layer):
    return Projections(
        *[
            tensor
            for conv in (layer.keys, layer.queries, layer.values, layer.reprojection)
            for tensor in (conv.weight.flatten(1), conv.bias)
        ]
    )


def tiled(tile=None):
    """The form in tiles, whatever the size of the map."""
    return lambda layer, x: regrouped_attention(
        x, projections(layer), layer.num_heads, layer.normalization, tile or 1000
    )


def whole(grouping):
    """The form on the whole map."""
    return lambda layer, x: whole_map_attention(
        x, projections(layer), layer.num_heads, layer.normalization, grouping
    )


def by_backend(name):
    def form(layer, x):
        with use_backend(name):
            return layer(x)

    return form


def run(layer, x, gradient, form):
    layer, x = copy.deepcopy(layer), x.detach().clone(memory_format=torch.preserve_format)
    x.requires_grad_()
    y = form(layer, x)
    y.backward(gradient)
    return y.detach(), x.grad, {name: p.grad for name, p in layer.named_parameters()}


def assert_equal_results(layer, x, form, tolerance=1e-12):
    gradient = torch.randn_like(x)
    wanted, dx, weights = run(layer, x, gradient, by_backend('reference'))
    actual, our_dx, our_weights = run(layer, x, gradient, form)
    for name, ours, theirs in (
        ('output', actual, wanted),
        ('input', our_dx, dx),
        *((name, our_weights[name], weights[name]) for name in weights),
    ):
        scale = max(float(theirs.abs().max()), 1.0)
        if name == 'keys.bias' and layer.normalization == 'softmax':
            # It cancels: what the straightforward form has there is rounding.
            scale = max(float(weights['keys.weight'].abs().max()), 1.0)
        assert (ours - theirs).abs().max() < tolerance * scale, name


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_equals_the_straightforward_form(data):
    dims = data.draw(st.integers(1, 3))
    heads = data.draw(st.sampled_from([1, 2]))
    layer = layer_of(
        dims,
        num_heads=heads,
        key_channels=heads * data.draw(st.integers(1, 3)),
        value_channels=heads * data.draw(st.integers(1, 3)),
        in_channels=data.draw(st.integers(1, 7)),
        normalization=data.draw(st.sampled_from(['softmax', 'scaling'])),
    )
    x = torch.randn(
        data.draw(st.integers(1, 2)),
        layer.in_channels,
        *[data.draw(st.integers(1, 5)) for _ in range(dims)],
        dtype=torch.float64,
    )
    form = data.draw(
        st.sampled_from(
            [tiled(1), tiled(3), tiled(), *map(whole, ('context', 'similarities', 'inputs'))]
        )
    )
    assert_equal_results(layer, x, form)


@pytest.mark.parametrize('normalization', ['softmax', 'scaling'])
@pytest.mark.parametrize('heads', [1, 2])
@pytest.mark.parametrize('images', [1, 2])
def test_equals_the_straightforward_form_on_a_map_of_many_tiles(normalization, heads, images):
    layer = layer_of(normalization=normalization, num_heads=heads)
    x = torch.randn(images, 6, 59, 79, dtype=torch.float64)
    assert 59 * 79 > 2 * SMALLEST_DIVIDED
    assert_equal_results(layer, x, by_backend('auto'))


@given(
    st.integers(1, 3), st.integers(1, 40000), st.integers(1, 9), st.sampled_from([None, 1, 7, 300])
)
def test_tiles_are_a_partition(images, positions, threads, length):
    tiles = divide(images, positions, threads)
    if length is not None:
        tiles = Tiles(images, positions, length, threads)
    if positions > 2000 * (length or 1000):
        return  # so many that it takes long
    seen = torch.zeros(images, 1, positions, dtype=torch.int16)
    numbers = []
    for group, part in tiles.parts(seen):
        assert part.shape == (group.count, 1, group.length)
        part += 1
        numbers += range(group.first, group.first + group.count)
        for scratch in tiles.scratch(torch.zeros(1), 2, 3):
            assert group.part(scratch).shape == (group.count, 3, group.length)
    assert (seen == 1).all()
    assert numbers == list(range(images * tiles.of_image))


@pytest.mark.parametrize('normalization', ['softmax', 'scaling'])
@pytest.mark.parametrize('heads', [1, 2])
@pytest.mark.parametrize('tile', [None, 5])
def test_gradcheck(normalization, heads, tile):
    layer = layer_of(num_heads=heads, normalization=normalization)
    x = torch.randn(2, 6, 3, 4, dtype=torch.float64, requires_grad=True)
    weights = [tensor.detach().requires_grad_() for tensor in projections(layer)]

    def block(x, *weights):
        return regrouped_attention(x, Projections(*weights), heads, normalization, tile)

    # The bias of the keys cancels in the softmax: its gradient is zero, here exactly.
    assert torch.autograd.gradcheck(block, (x, *weights), atol=1e-6)


@pytest.mark.parametrize('form', [by_backend('torch'), tiled(7)], ids=['whole', 'tiled'])
@pytest.mark.parametrize('memory', ['channels_last', 'sliced', 'expanded', 'turned'])
def test_any_memory_layout(memory, form):
    layer = layer_of()
    x = torch.randn(2, 6, 5, 8, dtype=torch.float64)
    if memory == 'channels_last':
        x = x.contiguous(memory_format=torch.channels_last)
    elif memory == 'sliced':
        x = torch.randn(2, 6, 10, 16, dtype=torch.float64)[:, :, ::2, ::2]
    elif memory == 'turned':
        x = torch.randn(2, 6, 8, 5, dtype=torch.float64).transpose(2, 3)
    else:
        x = x[:1].expand(2, -1, -1, -1)
    with torch.no_grad():
        wanted, actual = by_backend('reference')(layer, x), form(layer, x)
    torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)
    if memory == 'channels_last':
        assert actual.is_contiguous(memory_format=torch.channels_last)
        assert form(layer, x.requires_grad_()).is_contiguous(memory_format=torch.channels_last)
    assert_equal_results(layer, x, form)


@pytest.mark.parametrize('shape', [(0, 6, 5, 5), (0, 6, 60, 50), (2, 6, 0, 5)])
def test_nothing_in_nothing_out(shape):
    layer, x = layer_of(), torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == shape
    assert all(float(p.grad.abs().sum()) == 0 for p in layer.parameters())


def test_an_expanded_gradient():
    layer, x = layer_of(), torch.randn(1, 6, 9, 9, dtype=torch.float64)
    gradient = torch.ones(1, 1, 1, 1, dtype=torch.float64).expand(1, 6, 9, 9)
    for form in (tiled(10), by_backend('torch')):
        wanted = run(layer, x, gradient, by_backend('reference'))[1]
        torch.testing.assert_close(run(layer, x, gradient, form)[1], wanted)


def test_large_keys_in_float32():
    """Maxima that grow from tile to tile, and exponentials that would overflow without them."""
    layer = layer_of(dtype=torch.float32)
    with torch.no_grad():
        layer.keys.weight.mul_(40)
        layer.queries.weight.mul_(40)
    x = torch.randn(1, 6, 40, 60) * torch.linspace(0.1, 3, 60)
    wanted = copy.deepcopy(layer).double()(x.double())
    with use_backend('torch'), torch.no_grad():
        actual = regrouped_attention(x, projections(layer), 1, 'softmax', tile=100)
    assert torch.isfinite(actual).all()
    assert (actual - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_gradients_of_large_keys_in_float32():
    """The backward pass takes the exponential of keys of several hundreds less their log-sum."""
    layer = layer_of(dtype=torch.float32)
    with torch.no_grad():
        layer.keys.weight.mul_(40)
    x = torch.randn(1, 6, 40, 60) * torch.linspace(0.1, 3, 60)
    gradient = torch.randn_like(x)
    exact = copy.deepcopy(layer).double()
    _, dx, weights = run(exact, x.double(), gradient.double(), by_backend('reference'))
    _, our_dx, our_weights = run(layer, x, gradient, tiled(100))
    assert (our_dx - dx).abs().max() < 1e-4 * dx.abs().max()
    for name, wanted in weights.items():
        # Where a few keys take all the weight, their gradient vanishes and what is left is
        # rounding, which is held against the size of what cancels: that of the values' gradient.
        scale = weights['values.weight' if name.startswith('keys') else name].abs().max()
        assert (our_weights[name] - wanted).abs().max() < 1e-4 * scale, name


@pytest.mark.parametrize('form', [by_backend('torch'), tiled(100)], ids=['whole', 'tiled'])
def test_single_precision_gradients(form):
    layer = layer_of(dtype=torch.float32, in_channels=32, key_channels=16, value_channels=16)
    x = torch.randn(2, 32, 30, 41)
    gradient = torch.randn_like(x)
    _, dx, weights = run(layer.double(), x.double(), gradient.double(), by_backend('reference'))
    _, our_dx, our_weights = run(layer.float(), x, gradient, form)
    assert (our_dx - dx).abs().max() < 1e-4 * dx.abs().max()
    # That of the keys' bias is zero but for rounding, in the straightforward form as well.
    weights['keys.bias'] = weights['keys.weight'].sum(1).flatten() * 0
    for name, wanted in weights.items():
        scale = weights[name.replace('bias', 'weight')].abs().max()
        assert (our_weights[name] - wanted).abs().max() < 1e-4 * scale, name


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('normalization', ['softmax', 'scaling'])
def test_half_precision_errs_at_most_twice_as_much_as_the_plain_form(dtype, normalization):
    settings = dict(in_channels=32, key_channels=16, value_channels=16)
    layer = layer_of(dtype=dtype, normalization=normalization, **settings)
    x = torch.randn(1, 32, 60, 80).to(dtype)
    wanted = copy.deepcopy(layer).double()(x.double())

    key, query, value = (conv(x).flatten(2) for conv in (layer.keys, layer.queries, layer.values))
    if normalization == 'softmax':
        key, query = key.softmax(2), query.softmax(1)
    else:
        key, query = key / 4800**0.5, query / 4800**0.5
    attended = value @ key.transpose(1, 2) @ query
    plain = x + layer.reprojection(attended.view(1, 16, 60, 80))
    assert (layer(x) - wanted).abs().max() <= 2 * (plain - wanted).abs().max()


def kept(layer, x, backend):
    """Bytes that the graph holds beside the input and the weights, each storage once."""
    storages = {}
    own = {tensor.untyped_storage().data_ptr() for tensor in (x, *layer.parameters())}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        use_backend(backend),
    ):
        y = layer(x)
    del y
    return sum(storages.values())


def test_little_is_kept_for_the_backward_pass():
    layer = EfficientAttention2d(256, zero_init=False)
    x = torch.randn(1, 256, 56, 80, requires_grad=True)
    ours, theirs = kept(layer, x, 'torch'), kept(layer, x, 'reference')
    assert theirs >= 4 * 64 * 56 * 80 * 4
    assert ours < 0.02 * theirs, (ours, theirs)


def test_only_once_differentiable():
    x = torch.randn(1, 6, 5, 5, dtype=torch.float64, requires_grad=True)
    y = tiled()(layer_of(), x)
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match='once_differentiable'):
        first.sum().backward()


class TestWhenItRuns:
    @pytest.fixture(autouse=True)
    def count(self, monkeypatch):
        from kronattn_mm.layers import efficient_attention

        self.calls = []

        def counted(*arguments):
            self.calls.append(arguments)
            return regrouped_attention(*arguments)

        monkeypatch.setattr(efficient_attention, 'regrouped_attention', counted)

    def regroups(self, layer, x):
        self.calls.clear()
        layer(x)
        return bool(self.calls)

    @pytest.mark.parametrize(
        'size, grouping', [(7, 'similarities'), (14, 'context'), (17, 'inputs')]
    )
    def test_the_cheapest_grouping_of_a_small_map(self, size, grouping):
        costs = grouping_costs(size**2, 256, 64, 64)
        assert min(costs, key=costs.__getitem__) == grouping
        assert self.regroups(EfficientAttention2d(256), torch.randn(1, 256, size, size))

    def test_costs(self):
        d, k = 256, 64
        assert regrouped_cost(256, d, k, k) == 256 * (4 * d * k + 2 * k * k)
        assert grouping_costs(9, d, k, 2 * k, num_heads=2) == dict(
            context=9 * (d * 6 * k + 2 * k * k),
            similarities=9 * (d * 6 * k + 9 * 3 * k),
            inputs=9 * 4 * d * k + 2 * d * k * k,
        )

    def test_not_where_keys_outnumber_values(self):
        layer = EfficientAttention2d(64, key_channels=64, value_channels=8)
        assert not self.regroups(layer, torch.randn(1, 64, 46, 46))
        assert self.regroups(layer, torch.randn(1, 64, 40, 40))
        assert not regrouping_pays(46 * 46, 64, 64, 8)

    def test_backends(self, monkeypatch):
        layer, large, small = (
            EfficientAttention2d(8, 4, 2),
            torch.randn(1, 8, 9, 9),
            torch.randn(1, 8, 50, 50),  # where keys outnumber values
        )
        assert self.regroups(layer, large) and not self.regroups(layer, small)
        with use_backend('torch'):
            assert self.regroups(layer, small)
            with use_backend('reference'):
                assert not self.regroups(layer, large)
            assert self.regroups(layer, small)
        monkeypatch.setenv('KRONATTN_BACKEND', 'reference')
        assert not self.regroups(layer, large)
        with use_backend('auto'):
            assert self.regroups(layer, large)
        monkeypatch.setenv('KRONATTN_BACKEND', 'fast')
        with pytest.raises(
            ValueError,
            match="KRONATTN_BACKEND must be one of 'auto', 'torch', 'triton', 'reference', got",
        ):
            layer(large)
        with pytest.raises(ValueError, match="got 'fast'"), use_backend('fast'):
            pass

    def test_hooks_and_other_children_are_not_passed_over(self):
        x = torch.randn(1, 8, 9, 9)
        layer = EfficientAttention2d(8, 4, 4)
        seen = []
        handle = layer.values.register_forward_hook(lambda *args: seen.append(1))
        assert not self.regroups(layer, x) and seen
        handle.remove()
        for register in ('register_full_backward_hook', 'register_full_backward_pre_hook'):
            handle = getattr(layer.values, register)(lambda *args: seen.append(2))
            layer(x.clone().requires_grad_()).sum().backward()
            assert seen.pop() == 2
            handle.remove()
        assert self.regroups(layer, x)
        layer.keys = nn.Sequential(layer.keys)
        assert not self.regroups(layer, x)

    def test_parametrized_weights_are_read(self):
        layer = EfficientAttention2d(8, 4, 4, zero_init=False).double()
        x = torch.randn(1, 8, 9, 9, dtype=torch.float64)
        torch.nn.utils.parametrizations.spectral_norm(layer.keys)
        layer.eval()
        with use_backend('reference'):
            wanted = layer(x)
        torch.testing.assert_close(layer(x), wanted)

    def test_autocast_half_and_graphs_keep_the_straightforward_form(self):
        layer = EfficientAttention2d(8, 4, 4, zero_init=False)
        x = torch.randn(1, 8, 9, 9)
        with torch.autocast('cpu', torch.bfloat16):
            assert not self.regroups(layer, x)
        assert not self.regroups(copy.deepcopy(layer).bfloat16(), x.bfloat16())
        assert not self.regroups(copy.deepcopy(layer).to('meta'), x.to('meta'))
        self.calls.clear()
        torch.jit.trace(layer, x, check_trace=False)
        torch.export.export(layer, (x,))
        torch.func.vmap(layer)(x[None])
        assert not self.calls

    def test_under_checkpointing(self):
        layer = layer_of()
        x = torch.randn(2, 6, 9, 9, dtype=torch.float64, requires_grad=True)
        layer(x).sum().backward()
        wanted, x.grad = x.grad, None
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()
        torch.testing.assert_close(x.grad, wanted)
