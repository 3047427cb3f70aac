"""What was put into a model and in which state it is, as a table."""

from collections.abc import Sequence

from torch import nn

from ..cost.quantity import quantity
from ..cost.text import plain_table
from ..plugging.status import AttentionStatus, attention_status

_NONE = '-'


def status_text(model: nn.Module, image_shape: tuple[int, int] | None = None) -> str:
    """Lay out the state of everything inserted into a model, and how much of it is trained.

    Args:
        model (nn.Module): A whole model or a part of one.
        image_shape (tuple[int, int], optional): Height and width of an image, in pixels, for the
            shapes and multiply-accumulates; the model must then be a whole one. Defaults to None.

    Raises:
        TypeError: If an image shape is given and the model cannot extract features.
        ValueError: If the image is too small for the model.
    """
    rows = attention_status(model, image_shape)
    total = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    added = sum(row.parameters for row in rows)
    trains = f'{trained:,} are trained ({trained / max(total, 1):.2%})'
    if not rows:
        return f'nothing is inserted; of {total:,} parameters {trains}'
    return (
        f'{status_table(rows)}\n{len(rows)} inserted, {added:,} of {total:,} parameters '
        f'({added / max(total, 1):.2%}); {trains}'
    )


def status_table(rows: Sequence[AttentionStatus]) -> str:
    """Lay out status rows; without shapes, the channels stand in their place."""
    shapes = any(row.shape is not None for row in rows)
    header = [
        'point',
        'layer',
        'feature map' if shapes else 'channels',
        'params',
        'MACs',
        'share',
        'state',
        'trained',
        'norms',
    ]
    body = [
        [
            row.name,
            row.layer,
            _map(row),
            quantity(row.parameters),
            _NONE if row.macs is None else quantity(row.macs),
            f'{row.share:.2%}',
            _state(row),
            row.trainable,
            _norms(row),
        ]
        for row in rows
    ]
    if not shapes:
        header.remove('MACs')
        body = [line[:4] + line[5:] for line in body]
    return plain_table(header, body, left=3 if shapes else 2)


def state_table(rows: Sequence[AttentionStatus]) -> str:
    """Lay out the states alone: on or off, trained or frozen, and how norms run."""
    return plain_table(
        ['point', 'state', 'trained', 'norms'],
        [[row.name, _state(row), row.trainable, _norms(row)] for row in rows],
        left=4,
    )


def _norms(row: AttentionStatus) -> str:
    return _NONE if row.norms == 'none' else row.norms


def _map(row: AttentionStatus) -> str:
    if row.shape is not None:
        return 'x'.join(map(str, row.shape[1:]))
    return _NONE if row.channels is None else str(row.channels)


def _state(row: AttentionStatus) -> str:
    if not row.enabled:
        return 'off'
    return 'on' if row.scale == 1 else f'x {row.scale:g}'
