"""Non-local blocks of mmcv to efficient attention: theta, phi, g and conv_out one by one.

Papers: "Non-local Neural Networks" (arXiv 1711.07971), whose block mmcv has as ``NonLocal1d``,
``NonLocal2d`` and ``NonLocal3d``; "Efficient Attention" (arXiv 1812.01243), section 2.3: a block
of the one can take the place of a block of the other, component by component, and section 3.3:
with scaling in place of softmax both compute the same (equations 5 to 8).

==============================  ==============================================================
mmcv                            ours
==============================  ==============================================================
``theta``                       ``queries``
``phi``                         ``keys``
``g``                           ``values``
``conv_out``                    ``reprojection``
``mode='dot_product'``          ``normalization='scaling'``: equal up to rounding
``mode='embedded_gaussian'``    ``normalization='softmax'``: approximate, there is a softmax of
                                the channels and one of the positions for one of the similarities
``mode='gaussian'``             the same, with projections that are the identity
``mode='concatenation'``        no counterpart
``use_scale`` (softmax only)    queries and keys times d_k ** (-1/4) each
``norm_cfg`` (of conv_out)      part of the reprojection, as a batch norm computes in inference
``sub_sample``                  ``pooling`` of :class:`RegularAttention2d` (even heights and
                                widths); no counterpart in efficient attention
==============================  ==============================================================

Into :class:`kronattn_mm.layers.RegularAttention2d` the softmax modes are equal too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..layers import RegularAttention2d
from ..layers.attention_block import AttentionBlock
from .checkpoint import ConversionError
from .conversion import Conversion

MODES = ('dot_product', 'embedded_gaussian', 'gaussian')
TARGETS = ('EfficientAttention', 'RegularAttention')
_NAMES = {'queries': 'theta', 'keys': 'phi', 'values': 'g', 'reprojection': 'conv_out'}
_PLUGIN = {
    'NonLocal': 'nonlocal_block',
    'EfficientAttention': 'efficient_attention2d',
    'RegularAttention': 'regular_attention2d',
}


@dataclass(frozen=True)
class Settings:
    """What a non-local block is beside its weights.

    Attributes:
        mode: One of :data:`MODES`.
        use_scale: Divide similarities by the square root of their channels (softmax only).
        sub_sample: Keys and values are max pooled.
        norm_eps: Epsilon of the batch norm in ``conv_out``; None if there is none.
    """

    mode: str
    use_scale: bool = True
    sub_sample: bool = False
    norm_eps: float | None = None

    @property
    def normalization(self) -> str:
        """The ``normalization`` of our layer."""
        return 'scaling' if self.mode == 'dot_product' else 'softmax'


def find_blocks(state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the non-local blocks among weights: keys within the block, by prefix.

    Raises:
        ConversionError: If a block is one that has no counterpart (disentangled, concatenation).
    """
    blocks = {}
    for key in state:
        match = re.fullmatch(r'(?:(.*)\.)?conv_out\.conv\.weight', key)
        if match is None:
            continue
        prefix = match[1] or ''
        where = f'{prefix}.' if prefix else ''
        weights = {
            name.removeprefix(where): value
            for name, value in state.items()
            if name.startswith(where)
            and name.removeprefix(where).partition('.')[0]
            in ('g', 'theta', 'phi', 'conv_out', 'concat_project', 'conv_mask')
        }
        if not {'g.conv.weight', 'g.0.conv.weight'} & weights.keys():
            continue
        if any(name.startswith('conv_mask.') for name in weights):
            raise ConversionError(
                f'{prefix!r} is a disentangled non-local block (conv_mask); its '
                'whitened pair and unary term have no counterpart'
            )
        if any(name.startswith('concat_project.') for name in weights):
            raise ConversionError(
                f"{prefix!r} has mode='concatenation' (concat_project), which "
                'computes a network of each pair of positions and has no '
                'counterpart'
            )
        blocks[prefix] = weights
    return blocks


def settings_in(model: nn.Module) -> dict[str, Settings]:
    """Return the settings of the non-local blocks in a model, by path."""
    from mmcv.cnn.bricks.non_local import _NonLocalNd

    found = {}
    for path, module in model.named_modules():
        if isinstance(module, _NonLocalNd):
            norm = module.conv_out.norm if module.conv_out.with_norm else None
            found[path] = Settings(
                module.mode, module.use_scale, module.sub_sample, None if norm is None else norm.eps
            )
    return found


def to_attention(weights: Mapping[str, Tensor], settings: Settings) -> dict[str, Tensor]:
    """Turn the weights of a non-local block into those of an attention block.

    Args:
        weights (Mapping[str, Tensor]): Of mmcv's block, without prefix.
        settings (Settings): What else the block is.

    Returns:
        dict[str, Tensor]: ``keys.weight`` and so on, in the dtype of the source.

    Raises:
        ConversionError: If a weight is missing or the norm is none that can be folded.
    """
    g = 'g.0.conv' if 'g.0.conv.weight' in weights else 'g.conv'
    phi = 'phi.0.conv' if 'phi.0.conv.weight' in weights else 'phi.conv'
    values = _conv(weights, g)
    inner, channels = values[0].shape[:2]
    if settings.mode == 'gaussian':
        eye = torch.eye(channels, dtype=values[0].dtype)
        eye = eye.reshape(channels, channels, *(1,) * (values[0].dim() - 2))
        queries = keys = (eye, torch.zeros(channels, dtype=values[0].dtype))
    else:
        factor = inner**-0.25 if settings.use_scale and settings.normalization == 'softmax' else 1
        queries = _scaled(*_conv(weights, 'theta.conv'), factor)
        keys = _scaled(*_conv(weights, phi), factor)
    out = _without_norm(weights, settings)
    return {
        f'{name}.{part}': value
        for name, pair in (
            ('keys', keys),
            ('queries', queries),
            ('values', values),
            ('reprojection', out),
        )
        for part, value in zip(('weight', 'bias'), pair, strict=True)
    }


def from_attention(weights: Mapping[str, Tensor], settings: Settings) -> dict[str, Tensor]:
    """Turn the weights of an attention block into those of a non-local block of mmcv.

    Where the block is to have a batch norm, it becomes one that changes nothing in inference.

    Raises:
        ConversionError: If keys and values differ in channels, which mmcv's block does not allow.
    """
    queries, keys, values = (_conv(weights, name) for name in ('queries', 'keys', 'values'))
    weight, bias = _conv(weights, 'reprojection')
    inner = values[0].shape[0]
    if settings.mode == 'gaussian' or settings.sub_sample:
        raise ConversionError(
            "only modes 'dot_product' and 'embedded_gaussian' without "
            'sub_sample can be made of an attention block'
        )
    if keys[0].shape[0] != inner:
        raise ConversionError(
            f'a non-local block has as many key as value channels, this one has '
            f'{keys[0].shape[0]} and {inner}'
        )
    factor = inner**0.25 if settings.use_scale and settings.normalization == 'softmax' else 1
    result = {}
    for name, pair in (
        ('theta', _scaled(*queries, factor)),
        ('phi', _scaled(*keys, factor)),
        ('g', values),
    ):
        result[f'{name}.conv.weight'], result[f'{name}.conv.bias'] = pair
    result['conv_out.conv.weight'] = weight
    if settings.norm_eps is None:
        result['conv_out.conv.bias'] = bias
    else:
        one = torch.ones_like(bias)
        result |= {
            'conv_out.bn.weight': one * (1 + settings.norm_eps) ** 0.5,
            'conv_out.bn.bias': bias,
            'conv_out.bn.running_mean': one * 0,
            'conv_out.bn.running_var': one,
            'conv_out.bn.num_batches_tracked': torch.tensor(0),
        }
    return result


def convert(
    state: Mapping[str, Tensor],
    settings: Settings | Mapping[str, Settings],
    places: Mapping[str, str],
    target: str = 'EfficientAttention',
    without_sub_sample: bool = False,
    model: nn.Module | None = None,
) -> Conversion:
    """Turn every non-local block into an attention block; everything else keeps its name.

    Args:
        state (Mapping[str, Tensor]): Weights with at least one block.
        settings (Settings or Mapping[str, Settings]): Of all blocks, or of each by its prefix.
        places (Mapping[str, str]): New prefix by old, for what does not go where :func:`place_of`
            says.
        target (str): One of :data:`TARGETS`. Defaults to ``'EfficientAttention'``.
        without_sub_sample (bool): Convert blocks with ``sub_sample`` although efficient attention
            has no pooling. Defaults to False.
        model (nn.Module, optional): The model that the result is for. Where it has a non-local
            block too, the block stays; a layer there with another normalization is noted.

    Raises:
        ConversionError: If there is no block, or one that cannot be converted.
    """
    blocks = find_blocks(state)
    if not blocks:
        raise ConversionError(
            'there is no non-local block in the checkpoint (g, theta, phi and '
            'conv_out side by side)'
        )
    _check_places(places, blocks)
    staying = {} if model is None else settings_in(model)
    conversion = Conversion()
    done = set()
    for prefix, weights in blocks.items():
        if prefix in staying:
            conversion.notes.append(f'{prefix} stays: the model has a non-local block there')
            continue
        its = settings_of(prefix, weights, settings)
        new = places.get(prefix, None)
        new = place_of(prefix, target) if new is None else new
        dims = weights['conv_out.conv.weight'].dim() - 2
        if target == 'RegularAttention' and dims != 2:
            raise ConversionError(
                f'{prefix!r} has {dims} spatial dimensions, RegularAttention2d has two'
            )
        if its.sub_sample and target == 'EfficientAttention' and not without_sub_sample:
            raise ConversionError(
                f'{prefix!r} has sub_sample: keys and values are max pooled, which efficient '
                'attention is not; --to RegularAttention keeps it (pooling=True), and '
                '--without-sub-sample takes the weights over without it, to be fine-tuned'
            )
        converted = to_attention(weights, its)
        for name, value in converted.items():
            origins = _origins(prefix, weights, name)
            conversion.put(f'{new}.{name}' if new else name, value, *origins)
        for name in weights:
            key = f'{prefix}.{name}' if prefix else name
            done.add(key)
            if name.endswith('num_batches_tracked'):
                conversion.dropped[key] = 'folded batch norm'
        conversion.notes.append(_note(prefix, new, weights, converted, its, target, dims))
        _check_layer(conversion, model, new, its)
    _keep_rest(conversion, state, done)
    return conversion


def convert_back(
    state: Mapping[str, Tensor],
    settings: Settings,
    places: Mapping[str, str],
    model: nn.Module | None = None,
) -> Conversion:
    """Turn attention blocks into non-local blocks of mmcv.

    Args:
        state (Mapping[str, Tensor]): Weights with at least one attention block.
        settings (Settings): Mode and scale of the blocks to make.
        places (Mapping[str, str]): New prefix by old, as in :func:`convert`.
        model (nn.Module, optional): The model that the result is for; it says which blocks have a
            batch norm, and its modes count. Where it has attention of ours, the block stays.

    Raises:
        ConversionError: If there is no block, or one that cannot be converted.
    """
    from .reference_attention import find_blocks as find_attention

    blocks = find_attention(state)
    if not blocks:
        raise ConversionError('there is no attention block in the checkpoint')
    _check_places(places, blocks)
    wanted = {} if model is None else settings_in(model)
    modules = {} if model is None else dict(model.named_modules())
    conversion = Conversion()
    done = set()
    for prefix in blocks:
        if isinstance(modules.get(prefix), AttentionBlock):
            conversion.notes.append(f'{prefix} stays: the model has attention there')
            continue
        new = places.get(prefix)
        new = place_of(prefix, 'NonLocal') if new is None else new
        where = f'{prefix}.' if prefix else ''
        weights = {
            f'{name}.{part}': state[f'{where}{name}.{part}']
            for name in _NAMES
            for part in ('weight', 'bias')
        }
        its = wanted.get(new, settings)
        for name, value in from_attention(weights, its).items():
            ours = {theirs: own for own, theirs in _NAMES.items()}[name.partition('.')[0]]
            part = 'bias' if name in ('conv_out.bn.bias',) else name.rpartition('.')[2]
            made = name.startswith('conv_out.bn.') and part != 'bias'
            conversion.put(
                f'{new}.{name}' if new else name,
                value,
                *(() if made else (f'{where}{ours}.{part}',)),
            )
        done |= {f'{where}{name}' for name in weights}
        conversion.notes.append(
            f'{prefix or "the block"} -> {new or "the block"}: mode={its.mode!r}, use_scale='
            f'{its.use_scale}; '
            + (
                'equal up to rounding if normalization was scaling'
                if its.mode == 'dot_product'
                else 'approximate from efficient attention'
            )
        )
    _keep_rest(conversion, state, done)
    return conversion


def place_of(prefix: str, target: str) -> str:
    """Say where a block goes: to the place that has the same input and output in the new model.

    ==============================  ==========================================================
    ``<...>.attention.<point>``     stays: ``Plugged`` names points, not layers
    ``<...>.nonlocal_block<n>``     mmdet's ``plugins``: ``efficient_attention2d<n>``, and back
    ``<head>.nl_block``             mmseg's NLHead: ``attention.convs_0`` of an FCNHead with
                                    two convolutions
    empty                           stays
    ==============================  ==========================================================

    Raises:
        ConversionError: If the place is none of these.
    """
    parent, _, name = prefix.rpartition('.')
    if not prefix or parent.rpartition('.')[2] == 'attention':
        return prefix
    where = f'{parent}.' if parent else ''
    if name == 'nl_block' and target != 'NonLocal':
        return f'{where}attention.convs_0'
    for word in _PLUGIN.values():
        if re.fullmatch(rf'{word}\w*', name):
            return f'{where}{_PLUGIN[target]}{name[len(word) :]}'
    raise ConversionError(
        f'where the block at {prefix!r} goes is not clear: it is neither at a '
        'point of Plugged, nor a plugin of mmdet, nor in an NLHead; say so with '
        f'--place {prefix}=NEW'
    )


def compare(
    weights: Mapping[str, Tensor], settings: Settings, x: Tensor, target: str = 'EfficientAttention'
) -> tuple[float, float]:
    """Run a non-local block and its conversion on a feature map.

    Args:
        weights (Mapping[str, Tensor]): Of mmcv's block, without prefix.
        settings (Settings): What else the block is.
        x (Tensor): ``(N, in_channels, *spatial)``.
        target (str): One of :data:`TARGETS`.

    Returns:
        tuple[float, float]: The largest difference of the outputs, and that as a share of the
        largest value that the non-local block adds to its input (infinite if it adds nothing and
        the outputs differ all the same).
    """
    import mmcv.cnn.bricks.non_local as bricks

    from .. import layers

    converted = {name: value.float() for name, value in to_attention(weights, settings).items()}
    inner, channels = converted['values.weight'].shape[:2]
    dims = x.dim() - 2
    norm = None if settings.norm_eps is None else dict(type=f'BN{dims}d', eps=settings.norm_eps)
    block = getattr(bricks, f'NonLocal{dims}d')(
        in_channels=channels,
        reduction=max(channels // inner, 1),
        mode=settings.mode,
        use_scale=settings.use_scale,
        sub_sample=settings.sub_sample,
        norm_cfg=norm,
    ).eval()
    if block.inter_channels != inner:
        raise ConversionError(
            f'mmcv has no block with {inner} of {channels} channels to compare with'
        )
    block.load_state_dict(weights)
    arguments = dict(pooling=settings.sub_sample) if target == 'RegularAttention' else {}
    layer = getattr(layers, f'{target}{dims}d')(
        channels,
        converted['keys.weight'].shape[0],
        inner,
        normalization=settings.normalization,
        **arguments,
    ).eval()
    layer.load_state_dict(converted)
    with torch.no_grad():
        theirs = block(x.float())
        difference = (layer(x.float()) - theirs).abs().max().item()
        added = (theirs - x).abs().max().item()
    return difference, difference / added if added else (0.0 if not difference else float('inf'))


def settings_of(
    prefix: str, weights: Mapping[str, Tensor], settings: Settings | Mapping[str, Settings]
) -> Settings:
    """Return the settings of one block, completed by what its weights tell.

    Raises:
        ConversionError: If nothing was said of the block, or what was said cannot be.
    """
    if not isinstance(settings, Settings):
        if prefix not in settings:
            raise ConversionError(
                f'the model of --source-config has no non-local block at '
                f'{prefix!r}; its blocks are at '
                f'{", ".join(map(repr, settings)) or "no place"}'
            )
        return settings[prefix]
    without_theta = 'theta.conv.weight' not in weights
    if without_theta != (settings.mode == 'gaussian'):
        has = (
            "no theta, so its mode is 'gaussian'"
            if without_theta
            else "a theta, so its mode is not 'gaussian'"
        )
        raise ConversionError(f'{prefix!r} has {has}, but {settings.mode!r} was said')
    normed = any(
        name.startswith('conv_out.') and not name.startswith('conv_out.conv.') for name in weights
    )
    return replace(
        settings,
        sub_sample='g.0.conv.weight' in weights,
        norm_eps=(settings.norm_eps or 1e-5) if normed else None,
    )


def _conv(weights: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    for part in ('weight', 'bias'):
        if f'{name}.{part}' not in weights:
            raise ConversionError(f'{name}.{part} is missing in a block')
    weight = weights[f'{name}.weight']
    if any(size != 1 for size in weight.shape[2:]):
        raise ConversionError(
            f'{name} is no 1x1 convolution, its weight has the shape {tuple(weight.shape)}'
        )
    return weight, weights[f'{name}.bias']


def _scaled(weight: Tensor, bias: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    if factor == 1:
        return weight, bias
    return ((weight.double() * factor).to(weight.dtype), (bias.double() * factor).to(bias.dtype))


def _without_norm(weights: Mapping[str, Tensor], settings: Settings) -> tuple[Tensor, Tensor]:
    """Return weight and bias of ``conv_out`` with the batch norm after it folded in."""
    if settings.norm_eps is None:
        return _conv(weights, 'conv_out.conv')
    weight = weights['conv_out.conv.weight']
    names = [
        name.removesuffix('.running_var')
        for name in weights
        if name.startswith('conv_out.') and name.endswith('.running_var')
    ]
    if len(names) != 1:
        raise ConversionError(
            'conv_out has a norm without running statistics, which is no fixed '
            'factor and cannot become part of the reprojection'
        )
    scale, offset, mean, var = (
        weights[f'{names[0]}.{part}'].double()
        for part in ('weight', 'bias', 'running_mean', 'running_var')
    )
    factor = scale * torch.rsqrt(var + settings.norm_eps)
    bias = weights.get('conv_out.conv.bias')
    bias = offset - mean * factor + (0 if bias is None else bias.double() * factor)
    shaped = factor.reshape(-1, *(1,) * (weight.dim() - 1))
    return (weight.double() * shaped).to(weight.dtype), bias.to(weight.dtype)


def _origins(prefix: str, weights: Mapping[str, Tensor], name: str) -> tuple[str, ...]:
    child, _, part = name.partition('.')
    theirs = _NAMES[child]
    names = [f'{theirs}.conv.{part}', f'{theirs}.0.conv.{part}']
    if theirs == 'conv_out':
        names += [
            other
            for other in weights
            if other.startswith('conv_out.')
            and '.conv.' not in other
            and not other.endswith('num_batches_tracked')
        ]
    return tuple(f'{prefix}.{other}' if prefix else other for other in names if other in weights)


def _keep_rest(conversion: Conversion, state: Mapping[str, Tensor], done: set[str]) -> None:
    for key, value in state.items():
        if key not in done:
            conversion.put(key, value, key)


def _check_places(places: Mapping[str, str], blocks: Mapping[str, object]) -> None:
    for place in places:
        if place not in blocks:
            raise ConversionError(
                f'there is no block at {place!r}; they are at {", ".join(map(repr, blocks))}'
            )


def _note(
    prefix: str,
    new: str,
    weights: Mapping[str, Tensor],
    converted: Mapping[str, Tensor],
    settings: Settings,
    target: str,
    dims: int,
) -> str:
    words = [f'normalization={settings.normalization!r}']
    if settings.sub_sample and target == 'RegularAttention':
        words.append('pooling=True')
    layer = (
        f"dict(type='kronattn_mm.{target}{dims}d', "
        f'key_channels={converted["keys.weight"].shape[0]}, '
        f'value_channels={converted["values.weight"].shape[0]}, {", ".join(words)})'
    )
    if settings.sub_sample and target == 'EfficientAttention':
        exact = 'approximate: pooling of keys and values is lost'
    elif settings.normalization == 'scaling' or target == 'RegularAttention':
        exact = 'equal up to rounding'
        if settings.sub_sample:
            exact += ' where height and width are even'
    else:
        exact = 'approximate: two softmaxes for one (--compare prints by how much)'
    if settings.norm_eps is not None:
        exact += f'; batch norm (eps {settings.norm_eps:g}) folded, as in inference'
    return f'{prefix or "the block"} -> {new or "the block"}: {layer}; {exact}'


def _check_layer(
    conversion: Conversion, model: nn.Module | None, path: str, settings: Settings
) -> None:
    """Note where the layer of the model computes something else than the block did."""
    layer = None if model is None else dict(model.named_modules()).get(path)
    if not isinstance(layer, AttentionBlock):
        return
    if layer.num_heads != 1:
        raise ConversionError(
            f'a non-local block has one head, the layer at {path!r} has num_heads={layer.num_heads}'
        )
    if layer.normalization != settings.normalization:
        conversion.notes.append(
            f'{path} of the model has normalization={layer.normalization!r}, '
            f'which is not that of mode={settings.mode!r}: approximate'
        )
    if isinstance(layer, RegularAttention2d) and layer.pooling != settings.sub_sample:
        conversion.notes.append(
            f'{path} of the model has pooling={layer.pooling}, the block has '
            f'sub_sample={settings.sub_sample}: approximate'
        )
