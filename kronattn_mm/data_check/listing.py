"""What a data set lists, before its pictures are read: the result of reading its annotations."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .findings import Finding

# Passes over items (what they are, how many) and shows how far it is.
Track = Callable[[Iterable, str, int], Iterable]


@dataclass(frozen=True)
class LabelMap:
    """A picture whose values are classes, one a pixel.

    Attributes:
        path: The file.
        allowed: The values that may stand in it.
    """

    path: Path
    allowed: frozenset[int]


@dataclass(frozen=True)
class Picture:
    """A picture to be read.

    Attributes:
        path: The file.
        size: Width and height in pixels that its annotation names, None where it names none.
        labels: Its label map, None where it has none.
    """

    path: Path
    size: tuple[int, int] | None = None
    labels: LabelMap | None = None


@dataclass
class Listing:
    """What the annotations of a data set list.

    Attributes:
        pictures: The pictures to be read.
        objects: Number of objects (boxes), None for sets without.
        stored: Number of pictures that lie in the annotation files themselves (CIFAR's).
        findings: What is wrong in the annotations.
    """

    pictures: list[Picture] = field(default_factory=list)
    objects: int | None = None
    stored: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind: str, place: object, message: str) -> None:
        """Note a finding."""
        self.findings.append(Finding(kind, str(place), message))
