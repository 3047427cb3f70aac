"""A conversion: the weights that come out of it, and what became of every key that went in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from .checkpoint import Checkpoint, ConversionError


@dataclass
class Conversion:
    """Result of a converter.

    Attributes:
        state: The weights by their new keys.
        origins: From each new key, the keys whose weights it was made of.
        dropped: From each key that has no place in the result, the reason.
        notes: Sentences for the user: what is exact, what is not, how to go on.
    """

    state: dict[str, Tensor] = field(default_factory=dict)
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, key: str, value: Tensor, *origins: str) -> None:
        """Add one weight.

        Raises:
            ConversionError: If there is one with that key already.
        """
        if key in self.state:
            first = self.origins[key][0] if self.origins[key] else 'a new weight'
            raise ConversionError(f'both {first} and {origins[0]} would become {key}')
        self.state[key] = value
        self.origins[key] = origins

    def drop(self, key: str, reason: str) -> None:
        """Take a weight out of the result."""
        for origin in self.origins.pop(key):
            self.dropped[origin] = reason
        del self.state[key]

    def renamed(self) -> dict[str, str]:
        """Return what was only renamed, from new key to old."""
        return {
            key: origins[0]
            for key, origins in self.origins.items()
            if len(origins) == 1 and origins[0] != key
        }

    def versions(self, source: Checkpoint) -> dict[str, object]:
        """Return the versions of modules for the result; see :class:`Checkpoint`.

        A module that was renamed takes its version along. Of the modules that only hold others,
        those keep theirs whose path still leads to something.
        """
        paths = {''}
        found = {}
        for key, origins in self.origins.items():
            path = key.rpartition('.')[0]
            if len(origins) == 1:
                old = origins[0].rpartition('.')[0]
                if old in source.versions:
                    found[path] = source.versions[old]
            while path and path not in paths:
                paths.add(path)
                path = path.rpartition('.')[0]
        kept = {path: value for path, value in source.versions.items() if path in paths}
        return kept | found


def rename(state: Mapping[str, Tensor], new_key: Callable[[str], str]) -> Conversion:
    """Give every weight the name that ``new_key`` says.

    Raises:
        ConversionError: If two would have the same name.
    """
    conversion = Conversion()
    for key, value in state.items():
        conversion.put(new_key(key), value, key)
    return conversion


def prefix_rules(rules: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces the prefix of a key; the longest that fits counts.

    Args:
        rules (Mapping[str, str]): New prefix by old. Prefixes are dotted paths of modules,
            without a dot at the end; the empty one is that of every key.
    """
    ordered = sorted(rules.items(), key=lambda rule: len(rule[0]), reverse=True)

    def new_key(key: str) -> str:
        for old, new in ordered:
            if not old:
                return f'{new}.{key}' if new else key
            if key == old or key.startswith(f'{old}.'):
                rest = key[len(old) :]
                return new + rest if new else rest.removeprefix('.')
        return key

    return new_key
