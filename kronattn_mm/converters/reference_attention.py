"""The reference module of efficient attention, at any place in a network, to our points and back.

The authors' module (class ``EfficientAttention(in_channels, key_channels, head_count,
value_channels)``; paper: arXiv 1812.01243) has the projections ``keys``, ``queries``, ``values``
and ``reprojection``, all of them 1x1 convolutions with a bias, takes the softmax of the queries
over the channels of a head and of the keys over the positions, and adds its input. Ours has the
same names, the same heads and, with ``normalization='softmax'``, the same output, so only the
places differ: theirs is wherever its author put it, ours at ``attention.<point>`` of the module
that it was plugged into. In both directions nothing but prefixes changes.

============================  =======================
theirs                        ours
============================  =======================
``in_channels``               ``in_channels``
``key_channels``              ``key_channels``
``head_count`` (no weights)   ``num_heads``
``value_channels``            ``value_channels``
============================  =======================
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from ..layers.attention_block import AttentionBlock
from .checkpoint import ConversionError
from .conversion import Conversion, prefix_rules, rename

_PROJECTIONS = ('keys', 'queries', 'values', 'reprojection')


@dataclass(frozen=True)
class Block:
    """Channels and dimensions of one attention block, as its weights have them."""

    in_channels: int
    key_channels: int
    value_channels: int
    spatial_dims: int

    def config(self, num_heads: int | None = None) -> str:
        """Return the config of our layer with these weights."""
        heads = '' if num_heads in (None, 1) else f', num_heads={num_heads}'
        return (
            f"dict(type='kronattn_mm.EfficientAttention{self.spatial_dims}d', "
            f'key_channels={self.key_channels}, value_channels={self.value_channels}{heads})'
        )


def find_blocks(state: Mapping[str, Tensor]) -> dict[str, Block]:
    """Return the attention blocks among weights, by their prefix (without a dot at the end).

    Raises:
        ConversionError: If a block lacks a weight, or its weights do not belong together.
    """
    prefixes = [
        key.removesuffix('reprojection.weight').removesuffix('.')
        for key in state
        if key == 'reprojection.weight' or key.endswith('.reprojection.weight')
    ]
    return {prefix: _block(state, prefix) for prefix in prefixes}


def convert(
    state: Mapping[str, Tensor],
    places: Mapping[str, str],
    model: nn.Module | None = None,
    head_count: int | None = None,
) -> Conversion:
    """Bring attention blocks to other places; everything else keeps its name.

    Args:
        state (Mapping[str, Tensor]): Weights with at least one block.
        places (Mapping[str, str]): New prefix by old. Where a model is given, blocks that are not
            named go to the one place in it that has their channels and is free.
        model (nn.Module, optional): The model that the result is for.
        head_count (int, optional): Heads of every block. The weights do not tell; with a model,
            it is an error if a layer there has another number.

    Raises:
        ConversionError: If there is no block, a place is unknown or not clear, or the heads differ.
    """
    blocks = find_blocks(state)
    if not blocks:
        raise ConversionError(
            'there is no attention block in the checkpoint: nothing ends in '
            'reprojection.weight with keys, queries and values beside it'
        )
    for place in places:
        if place not in blocks:
            raise ConversionError(
                f'there is no attention block at {place!r}; they are at '
                f'{", ".join(map(repr, blocks))}'
            )
    for prefix, block in blocks.items():
        if head_count and (block.key_channels % head_count or block.value_channels % head_count):
            raise ConversionError(
                f'{head_count} heads do not divide the {block.key_channels} key '
                f'and {block.value_channels} value channels at {prefix!r}'
            )
    rules = dict(places)
    layers = {} if model is None else _layers(model)
    open_blocks = [prefix for prefix in blocks if prefix not in rules]
    if layers:
        for prefix in open_blocks:
            if prefix not in layers:
                rules[prefix] = _only_place(prefix, blocks, layers, rules)
    elif open_blocks and not places:
        raise ConversionError(
            'say where the blocks go with --place OLD=NEW or give a --config '
            'that has them; they are at ' + ', '.join(map(repr, blocks))
        )
    conversion = rename(state, prefix_rules(rules))
    for prefix, block in blocks.items():
        target = rules.get(prefix, prefix)
        layer = layers.get(target)
        if head_count and layer is not None and layer.num_heads != head_count:
            raise ConversionError(
                f'the blocks have {head_count} heads, the layer at {target!r} '
                f'has num_heads={layer.num_heads}'
            )
        if layer is not None and layer.normalization != 'softmax':
            conversion.notes.append(
                f'{target}: the reference module has softmax, this layer has '
                f'normalization={layer.normalization!r}: another function'
            )
        conversion.notes.append(f'{prefix or "the module"} -> {target}: {block.config(head_count)}')
    if head_count is None:
        conversion.notes.append(
            'the number of heads is not in the weights: num_heads must be the '
            'head_count of the module (--head-count checks it)'
        )
    return conversion


def _block(state: Mapping[str, Tensor], prefix: str) -> Block:
    where = f'{prefix}.' if prefix else ''
    weights = {}
    for name in _PROJECTIONS:
        for part in ('weight', 'bias'):
            key = f'{where}{name}.{part}'
            if key not in state:
                raise ConversionError(
                    f'the attention block at {prefix!r} is not complete, {key} is missing'
                )
            weights[f'{name}.{part}'] = state[key]
    keys, values = weights['keys.weight'], weights['values.weight']
    kernel = (1,) * (keys.dim() - 2)
    d, d_k, d_v = keys.shape[1] if keys.dim() > 1 else 0, keys.shape[0], values.shape[0]
    shapes = dict(keys=(d_k, d), queries=(d_k, d), values=(d_v, d), reprojection=(d, d_v))
    for name, shape in shapes.items():
        weight, bias = weights[f'{name}.weight'], weights[f'{name}.bias']
        if (
            keys.dim() not in (3, 4, 5)
            or tuple(weight.shape) != shape + kernel
            or tuple(bias.shape) != shape[:1]
        ):
            raise ConversionError(
                f'{where}{name} is no 1x1 convolution that fits the others of '
                f'its block: its weight has the shape {tuple(weight.shape)}'
            )
    return Block(d, d_k, d_v, keys.dim() - 2)


def _layers(model: nn.Module) -> dict[str, AttentionBlock]:
    return {
        path: module for path, module in model.named_modules() if isinstance(module, AttentionBlock)
    }


def _only_place(
    prefix: str,
    blocks: Mapping[str, Block],
    layers: Mapping[str, AttentionBlock],
    rules: Mapping[str, str],
) -> str:
    block = blocks[prefix]
    taken = set(rules.values())
    fitting = [
        path
        for path, layer in layers.items()
        if path not in taken
        and block
        == Block(layer.in_channels, layer.key_channels, layer.value_channels, layer.spatial_dims)
    ]
    alike = [other for other, its in blocks.items() if its == block and other not in rules]
    if len(fitting) == 1 and alike == [prefix]:
        return fitting[0]
    if not fitting:
        raise ConversionError(
            f'no layer of the model fits the block at {prefix!r}, which is '
            f'{block.config()} for {block.in_channels} channels'
        )
    raise ConversionError(
        f'several places fit the block at {prefix!r}: {", ".join(fitting)}; say '
        f'which with --place {prefix}=...'
    )
