"""Hooks for mmengine's runner."""

from .attention_map_hook import AttentionMapHook
from .epoch_seed import EpochSeed
from .freeze_hook import FreezeHook
from .validation_pictures import ValidationPictures

__all__ = ['AttentionMapHook', 'EpochSeed', 'FreezeHook', 'ValidationPictures']
