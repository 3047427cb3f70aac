"""What there is to insert, and where: layers with their arguments, points with their shapes."""

from .layers import LayerEntry, list_layers
from .points import ConvGroup, PartPoints, PointEntry, list_points

__all__ = ['ConvGroup', 'LayerEntry', 'PartPoints', 'PointEntry', 'list_layers', 'list_points']
