"""Which layer works in which form, and how far each form is from the equations.

Each cell of the table is measured when the table is made: the layer in that form, at several sizes
and batches, against its straightforward form in float64 (:mod:`.straightforward`). The cell is the
largest difference in units of the largest value. A form that cannot be had is a cell with the
reason.
"""

import contextlib
import copy
import io
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..cost.config import quiet
from ..ops import use_backend
from ..plugging.fusing import fused
from .layer_cases import CHANNELS, LayerCase, make_active
from .onnx_file import check_packages, open_session
from .straightforward import straightforward

_CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
# How far a form may be from the straightforward one, in units of the largest value: float32 rounds
# at 1.2e-7, float16 at 9.8e-4, bfloat16 at 7.8e-3, and weights, input and each product round anew.
TOLERANCES = {
    'eager': 1e-5,
    'compile': 1e-5,
    'export': 1e-5,
    'onnx': 1e-5,
    'onnx-dynamic': 1e-5,
    'fused': 1e-5,
    'bf16': 8 * torch.finfo(torch.bfloat16).eps,
    'fp16': 8 * torch.finfo(torch.float16).eps,
}
STATES = tuple(TOLERANCES)
TITLES = {
    **{state: state for state in STATES},
    'compile': 'torch.compile',
    'export': 'torch.export',
    'onnx': 'ONNX',
    'onnx-dynamic': 'ONNX, sizes open',
}


@dataclass(frozen=True)
class Cell:
    """A layer in a form.

    Attributes:
        state: The form, one of :data:`STATES`.
        difference: Largest difference from the straightforward form, in units of its largest
            value, over all inputs; None if the form cannot be had.
        problem: Why not; empty otherwise.
        note: What has to be known about the figure; may be empty.
    """

    state: str
    difference: float | None
    problem: str = ''
    note: str = ''

    @property
    def passes(self) -> bool:
        """Whether the form can be had and is as near as it must be."""
        return self.difference is not None and self.difference <= TOLERANCES[self.state]


@dataclass(frozen=True)
class Row:
    """A layer in all forms.

    Attributes:
        name: The layer, with arguments that are not the defaults.
        oracle: Whether it was compared with a straightforward form; if not, with itself in
            float64.
        cells: In the order of the states asked for.
    """

    name: str
    oracle: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class _Test:
    """A module to bring into a form, inputs, and what it should return."""

    module: nn.Module
    inputs: list[Tensor]
    wanted: list[Tensor]

    def difference(self, function: Callable[[Tensor], Tensor], count: int | None = None) -> float:
        worst = 0.0
        for x, wanted in list(zip(self.inputs, self.wanted, strict=True))[:count]:
            actual = function(x)
            if actual.shape != wanted.shape:
                return float('inf')
            error = float((actual.double() - wanted).abs().max() / wanted.abs().max())
            worst = max(worst, error if error == error else float('inf'))
        return worst


def support_row(
    case: LayerCase,
    states: Sequence[str] = STATES,
    compiler: str = 'inductor',
    progress: Callable[[], object] = lambda: None,
) -> Row:
    """Test a layer in all forms. One that cannot be built, or does nothing, fails in all of them.

    Args:
        case (LayerCase): The layer.
        states (Sequence[str]): Which forms. Defaults to all.
        compiler (str): Backend of torch.compile. Defaults to ``'inductor'``.
        progress (Callable): Called after each form.

    Returns:
        Row: Its cells are in the order of ``states``.

    Raises:
        ValueError: If a state is unknown.
    """
    unknown = [state for state in states if state not in STATES]
    if unknown:
        raise ValueError(f'state must be one of {", ".join(STATES)}, got {unknown[0]!r}')
    try:
        layer = case.build()
        alone = _test(layer, case.inputs(), layer)
        _check_active(alone)
    except Exception as error:  # a layer that is new and not ready
        return Row(case.name, False, tuple(Cell(state, None, _reason(error)) for state in states))
    cells = []
    for state in states:
        test = _with_norm(case, layer) if state == 'fused' else alone
        cells.append(_cell(state, test, compiler))
        progress()
    return Row(case.name, straightforward(layer) is not None, tuple(cells))


def _test(module: nn.Module, inputs: list[Tensor], layer: nn.Module) -> _Test:
    """What ``module`` should return, its part ``layer`` being in its straightforward form."""
    exact = copy.deepcopy(module).double()
    path = next(name for name, child in module.named_modules() if child is layer)
    inner = exact.get_submodule(path) if path else exact
    form = straightforward(inner)
    # Without one, the layer itself: float64, and the operators' reference forms.
    if form is not None:
        inner.forward = form
    with torch.no_grad(), use_backend('reference'):
        return _Test(module, inputs, [exact(x.double()) for x in inputs])


def _check_active(test: _Test) -> None:
    for x, wanted in zip(test.inputs, test.wanted, strict=True):
        if x.shape == wanted.shape and torch.allclose(x.double(), wanted, rtol=1e-3, atol=1e-3):
            raise ValueError('the layer returns what it is given, so nothing would be shown')


def _with_norm(case: LayerCase, layer: nn.Module) -> _Test:
    """The layer among convolutions and norms: a convolution before its norm, a block after one."""
    norm = _NORMS[case.axes](CHANNELS)
    if case.use == 'convs':
        chain = nn.Sequential(copy.deepcopy(layer), norm)
        make_active(norm)
        inner = chain[0]
    else:
        conv = _CONVS[case.axes](CHANNELS, CHANNELS, 3, padding=1, bias=False)
        chain = nn.Sequential(conv, norm, copy.deepcopy(layer))
        make_active(conv)
        make_active(norm)
        inner = chain[2]
    chain.eval()
    return _test(chain, case.inputs(), inner)


def _cell(state: str, test: _Test, compiler: str) -> Cell:
    note = ''
    try:
        with torch.no_grad(), warnings.catch_warnings(), quiet():
            warnings.simplefilter('ignore')
            if state == 'compile':
                difference = _compiled(test, compiler)
            elif state == 'export':
                difference = _exported(test)
            elif state in ('onnx', 'onnx-dynamic'):
                difference = _onnx(test, open_sizes=state == 'onnx-dynamic')
            elif state == 'fused':
                difference, note = _fused(test)
            elif state in ('bf16', 'fp16'):
                dtype = torch.bfloat16 if state == 'bf16' else torch.float16
                module = copy.deepcopy(test.module).to(dtype)
                difference = test.difference(lambda x: module(x.to(dtype)))
            else:
                difference = test.difference(test.module)
    except Exception as error:  # what a compiler or exporter raises is anybody's guess
        return Cell(state, None, _reason(error))
    return Cell(state, difference, note=note)


def _compiled(test: _Test, compiler: str) -> float:
    torch.compiler.reset()
    compiled = torch.compile(
        copy.deepcopy(test.module), fullgraph=True, dynamic=True, backend=compiler
    )
    try:
        return test.difference(compiled)
    finally:
        torch.compiler.reset()


def _open_axes(x: Tensor) -> dict[int, object]:
    return {axis: torch.export.Dim.DYNAMIC for axis in (0, *range(2, x.dim()))}


def _exported(test: _Test) -> float:
    x = test.inputs[0]
    program = torch.export.export(test.module, (x,), dynamic_shapes=(_open_axes(x),))
    return test.difference(program.module())


def _onnx(test: _Test, open_sizes: bool) -> float:
    check_packages()
    x = test.inputs[0]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / 'layer.onnx')
        with contextlib.redirect_stderr(io.StringIO()):
            torch.onnx.export(
                test.module,
                (x,),
                path,
                dynamo=True,
                verbose=False,
                dynamic_shapes=(_open_axes(x),) if open_sizes else None,
                input_names=['x'],
                external_data=False,
            )
        session = open_session(path)

    def run(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {'x': x.numpy()})[0])

    return test.difference(run, None if open_sizes else 1)


def _fused(test: _Test) -> tuple[float, str]:
    before = _norms(test.module)
    result = fused(test.module)
    after = _norms(result)
    note = '' if after < before else 'nothing folded'
    return test.difference(result), note


def _norms(module: nn.Module) -> int:
    return sum(isinstance(child, _BatchNorm) for child in module.modules())


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = ' '.join(str(error).split())
    return f'{type(error).__name__}: {text}'[:160].rstrip(': ')


def failures(rows: Iterable[Row]) -> list[str]:
    """Say what does not pass, one line for each cell."""
    lines = []
    for row in rows:
        for cell in row.cells:
            if cell.problem:
                lines.append(f'{row.name}, {cell.state}: {cell.problem}')
            elif not cell.passes:
                lines.append(
                    f'{row.name}, {cell.state}: {cell.difference:.1e} is above '
                    f'{TOLERANCES[cell.state]:.1e}'
                )
    return lines
