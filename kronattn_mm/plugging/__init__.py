"""Put layers into built modules, and find them again."""

from .insertion import Insertion
from .plugged import Plugged
from .points import Point, resolve_points, split_points
from .status import inserted_layers, insertion_shapes, replaced_convs

__all__ = [
    'Insertion', 'Plugged', 'Point', 'inserted_layers', 'insertion_shapes', 'replaced_convs',
    'resolve_points', 'split_points'
]
