"""Hooks for mmengine's runner."""

from .attention_map_hook import AttentionMapHook
from .epoch_seed import EpochSeed
from .validation_pictures import ValidationPictures

__all__ = ['AttentionMapHook', 'EpochSeed', 'ValidationPictures']
