"""What can be wrong with a data set: kinds of findings, and how bad each of them is."""

from dataclasses import dataclass

ERROR, WARNING = 'error', 'warning'

# An error stops a training, or teaches or measures something else than was meant. A warning is what
# the libraries pass over, and what may be so on purpose.
KINDS = {
    'missing file': ERROR,
    'unreadable annotation': ERROR,
    'missing picture': ERROR,
    'unreadable picture': ERROR,
    'picture size': ERROR,
    'bad box': ERROR,
    'box outside': ERROR,
    'bad mask': ERROR,
    'unknown class': ERROR,
    'class not in file': ERROR,
    'class order': ERROR,
    'duplicate id': ERROR,
    'dangling reference': ERROR,
    'missing label map': ERROR,
    'label map': ERROR,
    'label out of range': ERROR,
    'train and test overlap': ERROR,
    'cannot be built': ERROR,
    'class left out': WARNING,
    'class without objects': WARNING,
    'no objects': WARNING,
    'box at the edge': WARNING,
    'box without area': WARNING,
    'area': WARNING,
    'empty mask': WARNING,
    'label map without picture': WARNING,
    'class names': WARNING,
    'same picture twice': WARNING,
    'not checked': WARNING,
}


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        kind: One of :data:`KINDS`.
        place: Where: a file, with the id of an object or the number of a line where there is one.
        message: What is there and what was expected.

    Raises:
        ValueError: The kind is none of them.
    """

    kind: str
    place: str
    message: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f'there is no kind {self.kind!r}; there are {", ".join(KINDS)}')

    @property
    def level(self) -> str:
        """``'error'`` or ``'warning'``."""
        return KINDS[self.kind]
