"""Tiles: stretches of positions that are worked on together, and views of tensors by them.

A product of several tiles at once is a batch of small products, of which each thread takes whole
ones: on two cores that is up to a third faster than sharing out each product, and what a thread has
written it finds in its own cache. Where a map has few positions a tile is a whole image.
"""

import functools
import math
from typing import NamedTuple

from torch import Tensor

# Maps of fewer positions are not divided.
SMALLEST_DIVIDED = 2048
# Positions in a tile, about.
TILE = 512
# Tiles that are worked on at once, for each thread: with several, a thread that was held up costs
# less, and there are fewer calls.
_TILES_OF_THREAD = 4
# Numbers in a cache line, in single precision: rows of tiles that begin with one are read faster.
_LINE = 16


class Group(NamedTuple):
    """Tiles of equal length that are worked on at once.

    Attributes:
        first: Number of the first of them among all tiles, image by image.
        image: The image they are of, or the first of several, of which each is one tile.
        start: First position of the first tile.
        count: How many tiles.
        length: Positions in each.
        whole: The tiles are whole images.
    """

    first: int
    image: int
    start: int
    count: int
    length: int
    whole: bool

    def of(self, tokens: Tensor) -> Tensor:
        """Return the tiles of ``(N, C, n)`` as a view, ``(count, C, length)``."""
        if self.whole:
            return tokens[self.image : self.image + self.count]
        of_image, of_channel, of_position = tokens.stride()
        return tokens.as_strided(
            (self.count, tokens.shape[1], self.length),
            (self.length * of_position, of_channel, of_position),
            tokens.storage_offset() + self.image * of_image + self.start * of_position,
        )

    def part(self, scratch: Tensor) -> Tensor:
        """Return a dense tensor ``(count, C, length)`` in the memory of ``(most, C, longest)``.

        Args:
            scratch (Tensor): One of :meth:`Tiles.scratch`.
        """
        shape = (self.count, scratch.shape[1], self.length)
        if shape == scratch.shape:
            return scratch
        return scratch.view(-1)[: math.prod(shape)].view(shape)

    def of_tiles(self, tensor: Tensor) -> Tensor:
        """Return the entries of these tiles in a tensor that has one for each tile."""
        return tensor[self.first : self.first + self.count]

    def of_sums(self, tensor: Tensor) -> Tensor:
        """Return what the tiles are summed up in, ``(count, ...)``.

        Args:
            tensor (Tensor): From :meth:`Tiles.sums`.
        """
        if self.whole:
            return tensor[self.image : self.image + self.count, 0]
        return tensor[self.image, : self.count]

    def of_images(self, tensor: Tensor) -> Tensor:
        """Return the tiles' images' entries, ``(count, ...)``, in a tensor ``(N, ...)``."""
        if self.whole:
            return tensor[self.image : self.image + self.count]
        return tensor[self.image].expand(self.count, *tensor.shape[1:])


class Tiles(NamedTuple):
    """How the positions of a batch are divided.

    Attributes:
        images: Images in the batch.
        positions: Positions n in each.
        length: Positions in a tile; what is left over at an image's end is a tile of its own.
        together: Tiles worked on at once.
    """

    images: int
    positions: int
    length: int
    together: int

    @property
    def of_image(self) -> int:
        """Tiles of one image."""
        return -(-self.positions // self.length)

    def parts(self, tokens: Tensor) -> list[tuple[Group, Tensor]]:
        """Return the tiles in groups, in the order of their numbers, and those of a map.

        In a second pass over a map they are best taken in the opposite order: what the first read
        last is still in the cache.

        Args:
            tokens (Tensor): ``(N, C, n)``.

        Returns:
            list[tuple[Group, Tensor]]: Groups and :meth:`Group.of` them.
        """
        return [(group, group.of(tokens)) for group in groups_of(self)]

    @property
    def most(self) -> int:
        """Tiles in the largest group."""
        most = self.images if self.length >= self.positions else self.positions // self.length
        return min(self.together, most)

    def scratch(self, like: Tensor, number: int, channels: int) -> list[Tensor]:
        """Return memory for so many tensors with so many channels of any group."""
        shape = (self.most, channels, min(self.length, self.positions))
        return [like.new_empty(shape) for _ in range(number)]

    def sums(self, like: Tensor, *shape: int) -> Tensor:
        """Return zeros for sums over positions, by image and tile worked on at once.

        Returns:
            Tensor: ``(N, most, *shape)``, or ``(N, 1, *shape)`` where tiles are whole images.
        """
        return like.new_zeros(self.images, 1 if self.of_image == 1 else self.most, *shape)


@functools.lru_cache(maxsize=256)
def groups_of(tiles: Tiles) -> tuple[Group, ...]:
    """Return the tiles in groups, in the order of their numbers."""
    groups = []
    if tiles.length >= tiles.positions:
        for image in range(0, tiles.images, tiles.together):
            count = min(tiles.together, tiles.images - image)
            groups.append(Group(image, image, 0, count, tiles.positions, True))
        return tuple(groups)
    full, rest = divmod(tiles.positions, tiles.length)
    for image in range(tiles.images):
        first = image * tiles.of_image
        for tile in range(0, full, tiles.together):
            count = min(tiles.together, full - tile)
            start = tile * tiles.length
            groups.append(Group(first + tile, image, start, count, tiles.length, False))
        if rest:
            groups.append(Group(first + full, image, full * tiles.length, 1, rest, False))
    return tuple(groups)


@functools.lru_cache(maxsize=256)
def divide(images: int, positions: int, threads: int) -> Tiles:
    """Divide a batch into tiles of about one size.

    Args:
        images (int): Images in the batch.
        positions (int): Positions in each.
        threads (int): Threads that work on them; each gets tiles of at least half of ``TILE``.
    """
    together = _TILES_OF_THREAD * threads
    if positions < SMALLEST_DIVIDED:
        return Tiles(images, positions, positions, together)
    together = min(together, 2 * positions // TILE)
    steps = max(1, round(positions / (TILE * together)))
    length = positions // (steps * together) // _LINE * _LINE
    return Tiles(images, positions, length, together)
