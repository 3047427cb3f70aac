"""The cost of everything inserted into a model, and its share of the model."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from ..plugging import inserted_layers, replaced_convs, switches
from ..plugging.switch import all_on
from .executed import ExecutedCost, counting, evaluating, executed_cost
from .layers import layer_cost
from .paper import PaperCost

_HEADS = ('bbox_head', 'decode_head', 'auxiliary_head', 'head')
NO_FORMULA = 'no formula in a paper'


@dataclass(frozen=True)
class LayerReport:
    """One inserted layer, or one replaced convolution.

    Attributes:
        name: Dotted path of the plugged module and point, such as ``'backbone.res3'``; for a
            convolution its dotted path.
        point: The point alone, such as ``'res3'``.
        layer: Name of the class.
        shape: Shape of its input for one image, ``(1, C, *spatial)``; None where it is not known,
            and then only the parameters are in ``executed``.
        paper: Cost in the accounting of the layer's paper; None if no paper gives a formula.
        executed: What running it costs.
        norm_eval: Whether norms in it are kept in eval mode.
        with_cp: Whether it is recomputed in the backward pass.
        reached: Whether it runs in the parts that :attr:`CostReport.parts` names. If not (a layer
            in a second stage), ``shape`` is that of one call when the model was built.
    """

    name: str
    point: str
    layer: str
    shape: tuple[int, ...] | None
    paper: PaperCost | None
    executed: ExecutedCost
    norm_eval: bool = False
    with_cp: bool = False
    reached: bool = True


@dataclass(frozen=True)
class CostReport:
    """Cost of what is inserted into a model, for one image.

    Attributes:
        image_shape: Height and width of the image.
        layers: The inserted layers, in the order of the model.
        convs: The replaced convolutions. ``executed`` is that of the whole new convolution,
            ``paper`` what its attention adds to the plain one.
        model_params: Parameters of the whole model.
        model_macc: Multiply-accumulates of the parts, everything inserted included; None if they
            cannot be counted.
        parts: The parts of the model that ``model_macc`` covers.
        problem: Why ``model_macc`` is None.
    """

    image_shape: tuple[int, int]
    layers: tuple[LayerReport, ...]
    convs: tuple[LayerReport, ...]
    model_params: int
    model_macc: int | None
    parts: tuple[str, ...]
    problem: str = ''

    @property
    def paper_total(self) -> PaperCost:
        """Sum over the layers for which there is a formula."""
        return sum((layer.paper for layer in self.layers if layer.paper is not None), PaperCost())

    @property
    def executed_total(self) -> ExecutedCost:
        """Sum over all inserted layers."""
        return sum((layer.executed for layer in self.layers), ExecutedCost())

    @property
    def convs_paper_total(self) -> PaperCost:
        """What attention adds to all replaced convolutions for which there is a formula."""
        return sum((conv.paper for conv in self.convs if conv.paper is not None), PaperCost())

    @property
    def convs_executed_total(self) -> ExecutedCost:
        """Sum over the replaced convolutions, attention included."""
        return sum((conv.executed for conv in self.convs), ExecutedCost())

    @property
    def params_share(self) -> float:
        """Share of the inserted layers in the parameters of the model."""
        return self.executed_total.params / self.model_params

    @property
    def macc_share(self) -> float | None:
        """Share of the inserted layers in the multiply-accumulates of the counted parts."""
        if not self.model_macc:
            return None
        return sum(layer.executed.macc for layer in self.layers if layer.reached) / self.model_macc

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists and numbers, fit for JSON."""
        return dict(
            image_shape=list(self.image_shape),
            layers=[_layer_dict(layer) for layer in self.layers],
            replaced_convs=[_layer_dict(conv) for conv in self.convs],
            replaced_convs_total=dict(
                paper=asdict(self.convs_paper_total), executed=asdict(self.convs_executed_total)
            ),
            total=dict(
                paper=asdict(self.paper_total),
                executed=asdict(self.executed_total),
                without_formula=[layer.name for layer in self.layers if layer.paper is None],
            ),
            model=dict(
                params=self.model_params,
                params_share=self.params_share,
                macc=self.model_macc,
                macc_of=list(self.parts),
                macc_share=self.macc_share,
                problem=self.problem,
            ),
        )


def cost_report(model: nn.Module, image_shape: tuple[int, int]) -> CostReport:
    """Work out the cost of everything that ``Plugged`` put into a model, as if all of it was on.

    Args:
        model (nn.Module): A whole detector, segmenter or classifier.
        image_shape (tuple[int, int]): Height and width of the image after resizing, in pixels.

    Raises:
        TypeError: If the model cannot extract features.
        ValueError: If the image is too small for the model.
    """
    if not hasattr(model, 'extract_feat'):
        raise TypeError(
            f'{type(model).__name__} has no extract_feat; give a whole detector, '
            'segmenter or classifier'
        )
    # What is switched off costs nothing, and what it would cost is asked for.
    with all_on(switches(model).values()):
        return _report(model, image_shape)


def _report(model: nn.Module, image_shape: tuple[int, int]) -> CostReport:
    insertions = inserted_layers(model)
    modules = dict(model.named_modules())
    convs = {name: modules[name] for name in replaced_convs(model)}
    watched = {name: insertion.layer for name, insertion in insertions.items()} | convs
    macc, parts, seen, problem = _run_model(model, image_shape, watched)
    return CostReport(
        tuple(image_shape),
        tuple(
            _layer_report(
                name,
                insertion.point,
                insertion.layer,
                seen.get(name, insertion.shape),
                name in seen,
                insertion.norm_eval,
                insertion.with_cp,
            )
            for name, insertion in insertions.items()
        ),
        tuple(
            _layer_report(name, name, conv, seen.get(name), name in seen)
            for name, conv in convs.items()
        ),
        sum(parameter.numel() for parameter in model.parameters()),
        macc,
        parts,
        problem,
    )


def _layer_report(
    name: str,
    point: str,
    layer: nn.Module,
    shape: tuple[int, ...] | None,
    reached: bool,
    norm_eval: bool = False,
    with_cp: bool = False,
) -> LayerReport:
    kind = type(layer).__name__
    if shape is None:
        executed = ExecutedCost(params=sum(item.numel() for item in layer.parameters()))
        return LayerReport(name, point, kind, None, None, executed, norm_eval, with_cp, reached)
    return LayerReport(
        name,
        point,
        kind,
        shape,
        layer_cost(layer, shape),
        executed_cost(layer, shape, with_cp),
        norm_eval,
        with_cp,
        reached,
    )


class _Shapes:
    """Forward pre-hooks that write down the shape of a module's first input."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[int, ...]] = {}

    def hook(self, name: str) -> Any:
        def record(module: nn.Module, args: tuple) -> None:
            self.seen[name] = tuple(args[0].shape)

        return record


def _run_model(
    model: nn.Module, image_shape: tuple[int, int], watched: dict[str, nn.Module]
) -> tuple[int | None, tuple[str, ...], dict[str, tuple[int, ...]], str]:
    """Run backbone, neck and those dense heads that hold something of ours.

    Returns:
        tuple: Multiply-accumulates (None if they cannot be counted), what was run, the shapes that
        the watched modules saw, and why nothing was counted.
    """
    parts = [name for name in ('backbone', 'neck') if getattr(model, name, None) is not None]
    heads = dict(_plugged_heads(model))
    parts += heads
    shapes = _Shapes()
    handles = [
        module.register_forward_pre_hook(shapes.hook(name)) for name, module in watched.items()
    ]

    def run() -> None:
        features = model.extract_feat(torch.zeros(1, 3, *image_shape))
        for head in heads.values():
            head(features)

    try:
        try:
            with counting(model) as macc:
                run()
                return macc(), tuple(parts), shapes.seen, ''
        except Exception as error:  # foreign code on tensors without data may raise anything
            problem = ' '.join(str(error).split()) or type(error).__name__
        # With data, for the shapes alone: an operator that torch cannot see into is not counted.
        with evaluating(model):
            run()
    except RuntimeError as error:
        raise ValueError(
            f'{type(model).__name__} cannot take an image of {image_shape[0]} x '
            f'{image_shape[1]}: {error}'
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return None, tuple(parts), shapes.seen, problem


def _plugged_heads(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name in _HEADS:
        head = getattr(model, name, None)
        if head is None:
            continue
        several = isinstance(head, nn.ModuleList)
        for index, part in enumerate(head if several else [head]):
            if inserted_layers(part) or replaced_convs(part):
                yield (f'{name}.{index}' if several else name), part


def _layer_dict(layer: LayerReport) -> dict[str, Any]:
    content = asdict(layer)
    content['shape'] = None if layer.shape is None else list(layer.shape)
    if layer.paper is None:
        content['paper_note'] = NO_FORMULA
    return content
