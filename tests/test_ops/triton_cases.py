"""Triton's kernels on the CPU, by its interpreter; test_triton.py runs this with it on.

The interpreter is chosen when triton is first imported, so these tests need a process of their own.
"""

import copy

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime import interpreter

from kronattn_mm.layers import EfficientAttention1d, EfficientAttention2d, EfficientAttention3d
from kronattn_mm.ops import use_backend
from kronattn_mm.ops.projections import Projections
from kronattn_mm.ops.triton import availability, backward, block, forward, trial

LAYERS = {1: EfficientAttention1d, 2: EfficientAttention2d, 3: EfficientAttention3d}


def layer_of(d, d_k, d_v, heads=1, normalization='softmax', dims=2):
    layer = LAYERS[dims](d, d_k, d_v, heads, normalization, zero_init=False)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer


def run(layer, x, gradient, backend):
    """Output, gradient of the input and of each parameter."""
    layer, x = copy.deepcopy(layer), x.detach().requires_grad_()
    with use_backend(backend):
        y = layer(x)
    y.backward(gradient)
    return {'output': y.detach(), 'input': x.grad} | {
        name: parameter.grad for name, parameter in layer.named_parameters()
    }


def errors(actual, wanted):
    """Largest difference relative to the largest number, of each result."""
    return {
        name: float((actual[name] - theirs).abs().max() / theirs.abs().max().clamp_min(1e-2))
        for name, theirs in wanted.items()
    }


def oracle(layer, x, gradient):
    return run(copy.deepcopy(layer).double(), x.double(), gradient.double(), 'reference')


def assert_single_precision(layer, x, gradient=None):
    gradient = torch.randn(x.shape) if gradient is None else gradient
    actual = run(layer, x, gradient, 'triton')
    assert actual['output'].dtype == actual['input'].dtype == x.dtype
    differences = errors(actual, oracle(layer, x, gradient))
    assert max(differences.values()) < 1e-5, differences
    return actual


# channels, key channels, value channels, heads, spatial shape
SIZES = {
    'one_of_everything': (1, 1, 1, 1, (1, 1)),
    'odd': (21, 5, 7, 1, (37,)),
    'heads': (70, 15, 12, 3, (5, 9)),
    'volume': (33, 6, 10, 2, (2, 3, 7)),
    'full_tiles': (32, 16, 16, 1, (8, 8)),
}


@pytest.mark.parametrize(
    ('size', 'normalization'),
    [
        ('one_of_everything', 'scaling'),
        ('odd', 'softmax'),
        ('heads', 'softmax'),
        ('heads', 'scaling'),
        ('full_tiles', 'softmax'),
        pytest.param('one_of_everything', 'softmax', marks=pytest.mark.slow),
        pytest.param('odd', 'scaling', marks=pytest.mark.slow),
        pytest.param('volume', 'softmax', marks=pytest.mark.slow),
        pytest.param('volume', 'scaling', marks=pytest.mark.slow),
        pytest.param('full_tiles', 'scaling', marks=pytest.mark.slow),
    ],
)
def test_equals_the_straightforward_form(size, normalization):
    *channels, shape = SIZES[size]
    layer = layer_of(*channels, normalization, len(shape))
    assert_single_precision(layer, torch.randn(2, channels[0], *shape))


@pytest.mark.slow
@pytest.mark.parametrize('normalization', ['softmax', 'scaling'])
@pytest.mark.parametrize(
    'channels',
    [(64, 64, 64, 1), (64, 64, 64, 8), (130, 32, 48, 2), (48, 128, 128, 1), (40, 20, 100, 4)],
)
@pytest.mark.parametrize('shape', [(3, 5), (23, 31)])
def test_equals_the_straightforward_form_in_larger_sizes(shape, channels, normalization):
    assert_single_precision(layer_of(*channels, normalization), torch.randn(1, channels[0], *shape))


@pytest.mark.parametrize(
    'normalization', ['softmax', pytest.param('scaling', marks=pytest.mark.slow)]
)
def test_parts_are_merged(monkeypatch, normalization):
    """Maxima that differ from part to part, and a last part that is not full."""
    monkeypatch.setattr(block, '_LEAST_PART', 32)
    monkeypatch.setattr(block, '_multiprocessors', lambda device: 50)
    monkeypatch.setattr(block, '_MERGED', 32)  # two parts at a time
    assert block._parts(torch.empty(0), 150, 1, 32) == (3, 64)
    layer = layer_of(10, 6, 4, 2, normalization)
    x = torch.randn(1, 10, 10, 15) * torch.linspace(0.1, 4, 150).view(10, 15)
    assert_single_precision(layer, x)


@pytest.mark.parametrize(
    'memory', ['channels_last', 'expanded', pytest.param('sliced', marks=pytest.mark.slow)]
)
def test_any_memory_layout(memory):
    layer = layer_of(20, 8, 8)
    x, gradient = torch.randn(2, 20, 6, 10), torch.randn(2, 20, 6, 10)
    if memory == 'channels_last':
        x = x.contiguous(memory_format=torch.channels_last)
    elif memory == 'sliced':
        x = x[:, :, ::2, ::2]
        gradient = gradient[:, :, ::2, ::2]
    else:
        gradient = torch.ones(()).expand(x.shape)
    actual = assert_single_precision(layer, x, gradient)
    if memory == 'channels_last':
        assert actual['output'].is_contiguous(memory_format=torch.channels_last)


def test_without_biases():
    layer = layer_of(12, 4, 6)
    for parameter in (layer.keys, layer.queries, layer.values, layer.reprojection):
        torch.nn.init.zeros_(parameter.bias)
    weights = [
        tensor
        for conv in (layer.keys, layer.queries, layer.values, layer.reprojection)
        for tensor in (conv.weight.detach().flatten(1).requires_grad_(), None)
    ]
    x = torch.randn(2, 12, 5, 5)
    gradient = torch.randn_like(x)
    for normalization in ('softmax', 'scaling'):
        layer.normalization = normalization
        ours = x.clone().requires_grad_()
        y = block.block(ours, Projections(*weights), 1, normalization, torch.float32)
        dx, d_keys = torch.autograd.grad(y, (ours, weights[0]), gradient)
        wanted = oracle(layer, x, gradient)
        actual = {'output': y.detach(), 'input': dx, 'keys.weight': d_keys.view(4, 12, 1, 1)}
        assert max(errors(actual, {name: wanted[name] for name in actual}).values()) < 1e-5


def test_large_keys_and_queries():
    layer = layer_of(8, 8, 8)
    with torch.no_grad():
        layer.keys.weight.mul_(60)
        layer.queries.weight.mul_(60)
    x = torch.randn(1, 8, 12, 12)
    with torch.no_grad(), use_backend('triton'):
        actual = layer(x)
    wanted = copy.deepcopy(layer).double()(x.double())
    assert (actual - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.fixture
def bfloat16_products(monkeypatch):
    """The interpreter's two shortcomings with bfloat16, put right.

    It keeps such numbers as integers and multiplies those (triton issue 11584), and cuts digits off
    where a card rounds to the nearest.
    """
    builder = interpreter.InterpreterBuilder
    create_dot, cast = builder.create_dot, builder.cast_impl
    bfloat16 = interpreter.tl.bfloat16

    def as_float(handle):
        if handle.dtype.scalar != bfloat16:
            return handle
        data = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(data, interpreter.tl.float32)

    def dot(self, a, b, *others):
        return create_dot(self, as_float(a), as_float(b), *others)

    def rounding_cast(self, source, to):
        if source.dtype.scalar == interpreter.tl.float32 and to.scalar == bfloat16:
            rounded = torch.from_numpy(np.array(source.data)).bfloat16().view(torch.int16).numpy()
            return interpreter.TensorHandle(rounded.view(np.uint16), bfloat16)
        return cast(self, source, to)

    monkeypatch.setattr(builder, 'create_dot', dot)
    monkeypatch.setattr(builder, 'cast_impl', rounding_cast)
    monkeypatch.setattr(builder, 'create_fp_trunc', rounding_cast)
    monkeypatch.setattr(availability, '_INTERPRETER_MULTIPLIES_BFLOAT16', True)


@pytest.mark.parametrize(
    'normalization', ['softmax', pytest.param('scaling', marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ('dtype', 'autocast'),
    [
        (torch.float16, False),
        (torch.bfloat16, True),
        pytest.param(torch.float16, True, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, False, marks=pytest.mark.slow),
    ],
)
def test_half_precision_is_no_worse_than_plain(request, dtype, autocast, normalization):
    """Against float64: no more than twice the error of the straightforward form in that dtype."""
    if dtype == torch.bfloat16:
        request.getfixturevalue('bfloat16_products')
    layer, x = layer_of(40, 16, 16, 2, normalization), torch.randn(1, 40, 7, 9)
    gradient = torch.randn_like(x)
    if not autocast:
        layer, x, gradient = layer.to(dtype), x.to(dtype), gradient.to(dtype)
    wanted = oracle(layer, x, gradient)
    with torch.autocast('cpu', dtype, enabled=autocast):
        ours, plain = (run(layer, x, gradient, name) for name in ('triton', 'reference'))
    assert ours['output'].dtype == x.dtype
    assert ours['keys.weight'].dtype == layer.keys.weight.dtype
    ours, plain = errors(ours, wanted), errors(plain, wanted)
    worse = {name: (ours[name], plain[name]) for name in ours if ours[name] > 2 * plain[name]}
    assert not worse


@pytest.mark.slow
def test_small_weights_in_float16():
    """Key maps of many positions: a normalised weight would be below float16's normal numbers."""
    layer, x = layer_of(16, 16, 16).half(), torch.randn(1, 16, 64, 100).half()
    with torch.no_grad():
        layer.keys.weight.mul_(0.01)
    gradient = torch.randn_like(x) * 1e-3
    wanted = oracle(layer, x, gradient)
    ours, plain = (errors(run(layer, x, gradient, n), wanted) for n in ('triton', 'reference'))
    assert all(ours[name] <= 2 * plain[name] for name in ours), (ours, plain)


class Counter:
    """Stands in the place of a kernel and counts its launches; hides them from dispatch modes."""

    def __init__(self, kernel, counts):
        self.kernel, self.counts = kernel, counts

    def __getitem__(self, grid):
        def launch(*args, **constants):
            name = self.kernel.__name__
            self.counts[name] = self.counts.get(name, 0) + 1
            with _disable_current_modes():  # the interpreter's copies of its arguments
                self.kernel[grid](*args, **constants)

        return launch


@pytest.fixture
def launches(monkeypatch):
    counts = {}
    for module, names in ((forward, forward.__all__), (backward, backward.__all__)):
        for name in names:
            monkeypatch.setattr(module, name, Counter(getattr(module, name), counts))
    return counts


class Allocations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.storages = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.storages[storage.data_ptr()] = storage.nbytes()
        return out


def test_launches_and_memory(launches):
    """Three launches forward, two backward; of the map's size only the output and dx are made."""
    layer, x = layer_of(64, 16, 16).half(), torch.randn(1, 64, 16, 40).half().requires_grad_()
    gradient = torch.randn(x.shape).half()
    size = x.numel() * x.element_size()
    own = {tensor.untyped_storage().data_ptr() for tensor in (x, gradient)}

    def large(allocations):
        return [s for p, s in allocations.storages.items() if s > size / 4 and p not in own]

    with use_backend('triton'), Allocations() as made:
        y = layer(x)
    assert launches == {'gather': 1, 'merge': 1, 'write': 1}
    assert large(made) == [size]
    own.add(y.untyped_storage().data_ptr())
    launches.clear()
    with Allocations() as made:
        y.backward(gradient)
    assert launches == {'query_side': 1, 'key_side': 1}
    assert large(made) == [size]


def test_little_is_kept_for_the_backward_pass():
    layer, x = layer_of(64, 16, 16), torch.randn(1, 64, 16, 16, requires_grad=True)
    own = {tensor.untyped_storage().data_ptr() for tensor in (x, *layer.parameters())}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), use_backend('triton'):
        y = layer(x)
    # context, mixing matrix and one number for each key channel, float32
    assert sum(kept.values()) == 4 * (16 * 16 + 64 * 16 + 16)
    del y


def test_runs_repeat_bit_for_bit():
    layer, x, gradient = layer_of(20, 8, 8), torch.randn(1, 20, 9, 9), torch.randn(1, 20, 9, 9)
    first, second = (run(layer, x, gradient, 'triton') for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_only_what_needs_a_gradient_has_one():
    layer = layer_of(8, 4, 4)
    layer.requires_grad_(False)
    layer.values.weight.requires_grad_()
    with use_backend('triton'):
        layer(torch.randn(1, 8, 4, 4)).sum().backward()
        assert layer.values.weight.grad is not None and layer.keys.weight.grad is None
        y = layer(torch.randn(1, 8, 4, 4, requires_grad=True))
        (first,) = torch.autograd.grad(y.square().sum(), layer.values.weight, create_graph=True)
    with pytest.raises(RuntimeError, match='once_differentiable'):
        first.sum().backward()


class TestWhatIsNotTaken:
    def refused(self, layer, x, reason):
        with use_backend('triton'), pytest.raises(ValueError, match=reason):
            layer(x)

    def test_reasons(self):
        layer, x = layer_of(8, 4, 4), torch.randn(1, 8, 4, 4)
        self.refused(layer.double(), x.double(), 'the input or a weight is float64')
        self.refused(copy.deepcopy(layer).bfloat16(), x.bfloat16(), 'multiplies bfloat16')
        self.refused(copy.deepcopy(layer).half(), x, 'different dtypes, and autocast is off')
        layer = layer.float()
        self.refused(layer, x[:0], 'the input is empty')
        self.refused(copy.deepcopy(layer).to('meta'), x.to('meta'), 'the input is on meta')
        large = torch.zeros(1, 8, 1, 1).expand(1, 8, 2**14, 2**14)
        self.refused(layer, large, 'reaches over 2.31 numbers or more')
        self.refused(layer_of(8, 129, 4), x, 'more than 128 channels')
        self.refused(layer_of(8, 4, 260), x, 'more than 128 channels')
        self.refused(layer_of(8, 85, 5, heads=5), x, 'rounded up to a power of two')
        layer.keys.register_forward_hook(lambda *arguments: None)
        self.refused(layer, x, 'a projection has hooks')

    def test_graphs(self):
        layer, x = layer_of(8, 4, 4), torch.randn(1, 8, 4, 4)
        with use_backend('triton'):
            with pytest.raises(ValueError, match='a graph is being traced'):
                torch.jit.trace(layer, x, check_trace=False)
            with pytest.raises(ValueError, match='transformation of torch.func'):
                torch.func.vmap(layer)(x[None])

    def test_auto_leaves_the_interpreter_alone(self, launches):
        layer_of(8, 4, 4)(torch.randn(1, 8, 9, 9))
        assert not launches


class TestTrial:
    @pytest.fixture(autouse=True)
    def anew(self):
        trial.fault.cache_clear()
        yield
        trial.fault.cache_clear()

    @pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
    def test_kernels_that_work(self, dtype, launches):
        state = torch.get_rng_state()
        with torch.inference_mode():
            assert trial.fault(torch.device('cpu'), dtype, backward=True) is None
        assert torch.equal(torch.get_rng_state(), state)
        assert len(launches) == 5
        assert trial.fault(torch.device('cpu'), dtype, backward=True) is None
        assert set(launches.values()) == {1}  # tried once

    def test_kernels_that_fail(self, monkeypatch, caplog):
        class Broken:
            def __getitem__(self, grid):
                raise OSError('no C compiler')

        monkeypatch.setattr(forward, 'write', Broken())
        reason = trial.fault(torch.device('cpu'), torch.float32, backward=False)
        assert 'fail on cpu: OSError: no C compiler' in reason
        assert 'KRONATTN_BACKEND=torch' in caplog.text

    def test_kernels_that_are_wrong(self, monkeypatch):
        kernel = backward.key_side

        class Wrong:
            def __getitem__(self, grid):
                def launch(*args, **constants):
                    kernel[grid](*args, **constants)
                    args[10].mul_(1.1)  # the gradient of the input

                return launch

        monkeypatch.setattr(backward, 'key_side', Wrong())
        reason = trial.fault(torch.device('cpu'), torch.float32, backward=True)
        assert 'compute something else on cpu (gradient of input)' in reason
