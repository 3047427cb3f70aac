"""Write an ONNX file with sizes left open, and compare what it computes with the module.

The exporter of torch.onnx that builds on torch.export is used (``dynamo=True``): the older one, by
TorchScript, writes the sizes of the example into the graph wherever Python computed with them.
"""

import importlib.util
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..modes import inference_mode_of
from .parts import Deployed

DIMENSIONS = {'batch': 0, 'height': 2, 'width': 3}
INPUT = 'image'
_NEEDED = ('onnx', 'onnxscript', 'onnxruntime')


class ExportError(RuntimeError):
    """A module that the exporter cannot make a graph of; the message says why."""


@dataclass(frozen=True)
class Agreement:
    """How far one output of a graph is from that of the module, for one batch.

    Attributes:
        images: Shape ``(N, 3, H, W)`` of the batch.
        output: Name of the output.
        shape: Its shape.
        largest: Largest absolute difference; infinite where shapes differ or numbers are missing.
        scale: Largest absolute value of the module's output.
    """

    images: tuple[int, ...]
    output: str
    shape: tuple[int, ...]
    largest: float
    scale: float

    @property
    def relative(self) -> float:
        """The largest difference in units of the largest value."""
        return self.largest / self.scale if self.scale else float(self.largest > 0)


def check_packages(names: Sequence[str] = _NEEDED) -> None:
    """Raise ImportError, with the command that mends it, unless these packages are there."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f'{" and ".join(missing)} {"is" if len(missing) == 1 else "are"} not installed; '
            f'writing and checking ONNX files needs `pip install {" ".join(_NEEDED)}`'
        )


def write_onnx(
    module: Deployed,
    example: Tensor,
    path: str | Path,
    fixed: Collection[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write the graph of a module.

    Args:
        module (Deployed): In eval mode, with the names of its outputs.
        example (Tensor): Images, ``(N, 3, H, W)``. Dimensions that are left open must be at least
            2, as the exporter takes a size of 1 for a constant.
        path (str or Path): File to write; the caller replaces it if something fails later.
        fixed (Collection[str]): Which of ``'batch'``, ``'height'`` and ``'width'`` stay what they
            are in the example. Defaults to none.
        metadata (Mapping, optional): Written into the file, text as it is and the rest as JSON.

    Raises:
        ExportError: If no graph can be made.
        ImportError: If a package is missing.
        ValueError: If ``fixed`` names another dimension.
    """
    check_packages()
    import onnx

    from ..cost.config import quiet

    unknown = [name for name in fixed if name not in DIMENSIONS]
    if unknown:
        raise ValueError(f'fixed must be among {", ".join(DIMENSIONS)}, got {unknown[0]!r}')
    open_axes = {axis: name for name, axis in DIMENSIONS.items() if name not in fixed}
    shapes = {axis: torch.export.Dim.DYNAMIC for axis in open_axes}
    with quiet(), inference_mode_of(module):
        try:
            torch.onnx.export(
                module,
                (example,),
                str(path),
                dynamo=True,
                verbose=False,
                dynamic_shapes=(shapes,),
                input_names=[INPUT],
                output_names=list(module.names),
                external_data=False,
            )
        except Exception as error:  # whatever a model does that cannot be traced
            raise ExportError(_reason(error, list(open_axes.values()))) from error
    model = onnx.load(str(path))
    _name_sizes(model, open_axes)
    onnx.helper.set_model_props(
        model,
        {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in (metadata or {}).items()
        },
    )
    onnx.save(model, str(path))


def agreements(path: str | Path, module: Deployed, batches: Sequence[Tensor]) -> list[Agreement]:
    """Run a file with onnxruntime and compare it with the module, batch by batch.

    Args:
        path (str or Path): The file.
        module (Deployed): What it was made of, or what that was fused from.
        batches (Sequence[Tensor]): Images, each ``(N, 3, H, W)``.

    Returns:
        list[Agreement]: One for each batch and output.
    """
    session = open_session(path)
    rows = []
    with inference_mode_of(module):
        for images in batches:
            wanted = [tensor.numpy() for tensor in module(images)]
            actual = session.run(list(module.names), {INPUT: images.numpy()})
            for name, left, right in zip(module.names, wanted, actual, strict=True):
                rows.append(
                    Agreement(
                        tuple(images.shape),
                        name,
                        left.shape,
                        _largest(left, right),
                        float(np.abs(left).max()) if left.size else 0.0,
                    )
                )
    return rows


def open_session(path: str | Path) -> Any:
    """Open a file with onnxruntime on the CPU, with as many threads as torch has."""
    check_packages(['onnxruntime'])
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors: of sizes that it cannot infer it warns at length
    return onnxruntime.InferenceSession(os.fspath(path), options, ['CPUExecutionProvider'])


def _largest(left: np.ndarray, right: np.ndarray) -> float:
    if left.shape != right.shape:
        return float('inf')
    if not left.size:
        return 0.0
    difference = float(np.abs(left.astype(np.float64) - right).max())
    return difference if np.isfinite(difference) else float('inf')


def _name_sizes(model: Any, open_axes: Mapping[int, str]) -> None:
    """Call the exporter's ``s77`` what they are, in the input and in what is computed from it."""
    dimensions = model.graph.input[0].type.tensor_type.shape.dim
    words = {
        dimensions[axis].dim_param: name
        for axis, name in open_axes.items()
        if dimensions[axis].dim_param
    }
    if not words:
        return
    pattern = re.compile(rf'\b({"|".join(map(re.escape, words))})\b')
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:
                dimension.dim_param = pattern.sub(
                    lambda match: words[match[1]], dimension.dim_param
                )


def _reason(error: BaseException, open_names: Sequence[str]) -> str:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = ' '.join(str(cause).split())[:400] or type(cause).__name__
    hint = (
        f' (if it is about sizes: --fix {" ".join(open_names)} leaves none open)'
        if open_names
        else ''
    )
    return f'no graph can be made of this model: {text}{hint}'
