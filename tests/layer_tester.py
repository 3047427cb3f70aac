"""The list of checks that every layer of the package goes through, as a class to inherit.

A test module says what to build and what the equations give; everything else comes from here.
"""

import copy
import io
import pickle
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

# The four projections of the attention blocks, and arguments that all of them must refuse.
BLOCK_KEYS = [
    f'{name}.{part}'
    for name in ('keys', 'queries', 'values', 'reprojection')
    for part in ('weight', 'bias')
]
BLOCK_BAD_ARGUMENTS = [
    (
        dict(key_channels=10, num_heads=4),
        ValueError,
        r'key_channels=10 and num_heads=4; 10 allows num_heads in \[1, 2, 5, 10\]',
    ),
    (dict(value_channels=9, num_heads=2, key_channels=4), ValueError, 'value_channels=9'),
    (dict(in_channels=0), ValueError, 'in_channels must be at least 1, got 0'),
    (dict(key_channels=2.5), TypeError, 'key_channels must be an integer, got 2.5'),
    (dict(num_heads=True), TypeError, 'num_heads must be an integer, got True'),
    (dict(normalization='sigmoid'), ValueError, "'softmax', 'scaling', got 'sigmoid'"),
    (dict(zero_init='no'), TypeError, "zero_init must be True or False, got 'no'"),
    (dict(key_chanels=4), TypeError, 'key_chanels'),
]


def weights_of(layer: nn.Module) -> dict[str, np.ndarray]:
    """The state of a layer as float64 arrays, for the reference."""
    return {key: value.double().numpy() for key, value in layer.state_dict().items()}


class LayerTester:
    """Inherit, set ``layer_class`` and ``variants``, and implement :meth:`reference`."""

    layer_class: ClassVar[type[nn.Module]]
    # Constructor arguments beside in_channels; each is tested.
    variants: ClassVar[list[dict[str, Any]]] = [{}]
    # Tracing takes seconds each, so it is done for the first few variants, which come in an order
    # that puts the most different ones first.
    traced: ClassVar[int] = 2
    in_channels: ClassVar[int] = 6
    # Spatial shapes: odd, rectangular, one position.
    shapes: ClassVar[list[tuple[int, ...]]] = []
    # Keys of the state dict, in order, for the first variant; other people's files hold them.
    keys: ClassVar[list[str]] = []
    # Arguments that must be refused: (arguments, exception, part of the message).
    bad_arguments: ClassVar[list[tuple[dict[str, Any], type[Exception], str]]] = []

    def reference(self, layer: nn.Module, image: np.ndarray) -> np.ndarray:
        """Compute one image ``(C, *spatial)`` in float64 from the equations."""
        raise NotImplementedError

    # -- what the tests build ------------------------------------------------------------------

    @property
    def traced_variants(self) -> list[dict[str, Any]]:
        return self.variants[: self.traced]

    def build(self, variant: dict[str, Any] | None = None, **changes: Any) -> nn.Module:
        arguments = {**(self.variants[0] if variant is None else variant), **changes}
        return self.layer_class(in_channels=self.in_channels, **arguments)

    def build_active(self, variant: dict[str, Any] | None = None) -> nn.Module:
        """Build a layer whose output differs from its input, with weights of usual size."""
        layer = self.build(variant, zero_init=False)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.normal_(std=0.5)
        return layer

    def input(
        self,
        shape: tuple[int, ...] | None = None,
        batch: int = 2,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        return torch.randn(batch, self.in_channels, *(shape or self.shapes[0]), dtype=dtype)

    # -- the list --------------------------------------------------------------------------------

    def test_equations(self):
        for variant in self.variants:
            for shape in self.shapes:
                for batch in (1, 2):
                    layer = self.build_active(variant).double().eval()
                    x = self.input(shape, batch, torch.float64)
                    wanted = np.stack([self.reference(layer, image) for image in x.numpy()])
                    scale = np.abs(wanted).max()
                    with torch.no_grad():
                        exact = layer(x).numpy()
                        single = layer.float()(x.float()).numpy()
                    assert np.abs(exact - wanted).max() < 1e-12 * scale, (variant, shape)
                    assert np.abs(single - wanted).max() < 1e-5 * scale, (variant, shape)

    def test_identity_at_init(self):
        for variant in self.variants:
            layer = self.build(variant)
            x = self.input()
            assert torch.equal(layer(x), x), variant

    def test_init_weights_restores_the_identity(self):
        layer = self.build_active()
        layer.zero_init = True
        layer.init_weights()
        x = self.input()
        assert torch.equal(layer(x), x)

    def test_every_parameter_gets_a_gradient(self):
        for variant in self.variants:
            layer = self.build_active(variant)
            x = self.input().requires_grad_()
            (layer(x) * torch.randn_like(x)).sum().backward()
            for name, parameter in layer.named_parameters():
                assert parameter.grad is not None, (variant, name)
                # The softmax over positions does not change when a constant is added to all
                # keys, so the gradient of the keys' bias is zero there, by the equations.
                if not (name == 'keys.bias' and layer.normalization == 'softmax'):
                    assert parameter.grad.abs().max() > 1e-6, (variant, name)
            assert x.grad.abs().max() > 0

    def test_first_step_from_zero_moves_the_layer(self):
        layer = self.build()
        x = self.input()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            ((layer(x) - 1) ** 2).mean().backward()
            assert all(parameter.grad is not None for parameter in layer.parameters())
            optimizer.step()
        assert not torch.equal(layer(x), x)

    def test_gradient_before_a_batch_norm_of_one_image(self):
        """torch's batch norm takes some layouts of a gradient for others, if N is 1."""
        if len(self.shapes[0]) == 1:
            pytest.skip('batch norm of signals is not affected')
        norms = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
        norm = norms[len(self.shapes[0])](self.in_channels).double()
        for variant in self.variants:
            layer = self.build_active(variant).double().eval()
            x = self.input(batch=1, dtype=torch.float64).requires_grad_()
            gradients = []
            for mend in (False, True):
                normed = norm(x)
                if mend:
                    normed.register_hook(torch.Tensor.contiguous)
                (layer(normed) ** 2).sum().backward()
                gradients.append(x.grad)
                x.grad = None
            torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9, msg=str(variant))

    def test_gradcheck(self):
        for variant in self.variants:
            layer = self.build_active(variant).double()
            x = self.input(tuple(min(size, 2) for size in self.shapes[0]), 1, torch.float64)
            names = [name for name, _ in layer.named_parameters()]

            def run(x, *values, layer=layer, names=names):
                return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), x)

            values = [
                parameter.detach().clone().requires_grad_() for parameter in layer.parameters()
            ]
            assert torch.autograd.gradcheck(run, (x.requires_grad_(), *values)), variant

    def test_keys_are_stable(self):
        assert list(self.build().state_dict()) == self.keys

    def test_copies_are_independent(self):
        layer = self.build_active()
        x = self.input()
        before = layer(x)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(other(x), before)
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.zero_()
            assert torch.equal(layer(x), before)

    def test_state_dict_round_trip(self):
        layer, other = self.build_active(), self.build()
        buffer = io.BytesIO()
        torch.save(layer.state_dict(), buffer)
        buffer.seek(0)
        other.load_state_dict(torch.load(buffer, weights_only=True))
        x = self.input()
        assert torch.equal(layer(x), other(x))

    @pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
    def test_autocast(self, dtype):
        for variant in self.variants:
            layer = self.build_active(variant)
            x = self.input().requires_grad_()
            wanted = layer(x)
            with torch.autocast('cpu', dtype=dtype):
                actual = layer(x)
            assert actual.dtype == torch.float32, 'the residual keeps the dtype of the input'
            error = (actual - wanted).abs().max() / wanted.abs().max()
            assert error < 8 * torch.finfo(dtype).eps, (variant, float(error))
            actual.sum().backward()
            assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())

    def test_channels_last(self):
        if len(self.shapes[0]) != 2:
            pytest.skip('memory formats are for images')
        layer = self.build_active()
        x = self.input()
        torch.testing.assert_close(
            layer(x.contiguous(memory_format=torch.channels_last)), layer(x), rtol=1e-5, atol=1e-6
        )

    def test_empty_batch(self):
        layer = self.build_active()
        assert layer(self.input(batch=0)).shape == (0, self.in_channels, *self.shapes[0])

    def test_meta_device(self):
        """Shapes and costs of large inputs are computed without data."""
        x = torch.zeros(1, self.in_channels, *[1000] * len(self.shapes[0]), device='meta')
        if len(self.shapes[0]) < 3:
            assert self.build().to('meta')(x).shape == x.shape

    def test_compile_fullgraph(self):
        for variant in self.traced_variants:
            layer = self.build_active(variant)
            compiled = torch.compile(layer, fullgraph=True, backend='aot_eager', dynamic=True)
            for shape in (self.shapes[0], self.shapes[-1]):
                x = self.input(shape)
                torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)
            torch.compiler.reset()

    def test_export_with_dynamic_sizes(self):
        for variant in self.traced_variants:
            layer = self.build_active(variant).eval()
            dims = {axis: torch.export.Dim.DYNAMIC for axis in range(2, 2 + len(self.shapes[0]))}
            program = torch.export.export(layer, (self.input(),), dynamic_shapes=(dims,))
            for shape in self.shapes:
                if 1 in shape:
                    continue  # torch.export specialises sizes of 0 and 1
                x = self.input(shape)
                torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-5, atol=1e-5)

    def test_onnx_with_dynamic_sizes(self, tmp_path):
        runtime = pytest.importorskip('onnxruntime')
        pytest.importorskip('onnxscript')
        for number, variant in enumerate(self.traced_variants):
            layer = self.build_active(variant).eval()
            file = tmp_path / f'{number}.onnx'
            axes = {
                axis: torch.export.Dim.DYNAMIC for axis in (0, *range(2, 2 + len(self.shapes[0])))
            }
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')
                torch.onnx.export(
                    layer,
                    (self.input(),),
                    str(file),
                    dynamo=True,
                    verbose=False,
                    dynamic_shapes=(axes,),
                    input_names=['x'],
                )
            session = runtime.InferenceSession(str(file), providers=['CPUExecutionProvider'])
            for shape in self.shapes:
                for batch in (2, 3):
                    x = self.input(shape, batch)
                    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
                    with torch.no_grad():
                        wanted = layer(x).numpy()
                    np.testing.assert_allclose(
                        actual, wanted, rtol=1e-4, atol=1e-5, err_msg=f'{variant} {shape}'
                    )

    def test_bad_arguments(self):
        for arguments, error, message in self.bad_arguments:
            with pytest.raises(error, match=message):
                self.layer_class(**{'in_channels': self.in_channels, **arguments})

    def test_bad_input(self):
        layer = self.build()
        with pytest.raises(ValueError, match=rf'\(N, {self.in_channels}, .*got'):
            layer(torch.zeros(1, self.in_channels + 1, *self.shapes[0]))
        with pytest.raises(ValueError, match='got'):
            layer(torch.zeros(1, self.in_channels, *self.shapes[0], 2))

    def test_repr_shows_the_arguments(self):
        text = repr(self.build())
        assert self.layer_class.__name__ in text and f'in_channels={self.in_channels}' in text
