"""The same weights under other prefixes: list necks, wrappers, parts of models.

A neck that becomes a list (``neck=[dict(FPN), dict(BFP)]``) moves from ``neck.`` to ``neck.0.``;
wrappers put ``module.`` before every key; a backbone alone has no ``backbone.``. mmengine loads
what fits and only warns of the rest, so that such weights are silently not used.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from ..plugging.removal import added_keys
from .checkpoint import ConversionError
from .conversion import Conversion, prefix_rules, rename

_WRAPPERS = ('module', '_orig_mod')  # of DistributedDataParallel and averages; of torch.compile


def convert(
    state: Mapping[str, Tensor],
    rules: Mapping[str, str],
    drop: Iterable[str] = (),
    model: nn.Module | None = None,
    part: str = '',
) -> Conversion:
    """Give weights the prefixes of a model.

    Args:
        state (Mapping[str, Tensor]): Any weights.
        rules (Mapping[str, str]): New prefix by old; see :func:`.conversion.prefix_rules`.
        drop (Iterable[str]): Prefixes whose weights are left out.
        model (nn.Module, optional): The model that the result is for; prefixes that no rule
            names are found by comparing keys and shapes.
        part (str): Path of ``model`` in the whole model. If weights have it, those outside are
            left out.

    Raises:
        ConversionError: If a rule fits no key, two keys become one, or more than one new prefix
            would do.
    """
    conversion = Conversion()
    kept = {}
    for key, value in state.items():
        if any(_below(key, prefix) for prefix in drop):
            conversion.dropped[key] = 'as --drop says'
        elif key in ('n_averaged', 'steps') and value.dim() == 0:
            conversion.dropped[key] = 'counter of a moving average'
        else:
            kept[key] = value
    for prefix in drop:
        if not any(_below(key, prefix) for key in state):
            raise ConversionError(f'there is nothing to drop below {prefix!r}')
    for old in rules:
        if old and not any(_below(key, old) for key in kept):
            raise ConversionError(
                f'there is no key below {old!r} to rename; the prefixes are '
                f'{", ".join(dict.fromkeys(key.split(".")[0] for key in kept))}'
            )
    renamed = rename(kept, prefix_rules(rules))
    for wrapper in _WRAPPERS:
        # Only where it is before every key: a module may be called so.
        if all(_below(key, wrapper) for key in renamed.state) and not any(
            _below(new, wrapper) for new in rules.values()
        ):
            renamed = _again(renamed, {wrapper: ''})
            renamed.notes.append(f'the wrapper {wrapper}. was removed')
    if part and any(_below(key, part) for key in renamed.state):
        for key in list(renamed.state):
            if not _below(key, part):
                renamed.drop(key, f'not of {part}')
    if model is not None:
        found = find_rules(renamed.state, model)
        renamed = _again(renamed, found)
        renamed.notes += [
            f'{f"{old}." if old else "all keys"} -> {f"{new}." if new else "no prefix"}'
            for old, new in found.items()
        ]
    elif not rules and not conversion.dropped and not renamed.notes:
        raise ConversionError('nothing would change: give --rename OLD=NEW, --drop or --config')
    renamed.dropped |= conversion.dropped
    return renamed


def find_rules(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, str]:
    """Find new prefixes for the keys that a model does not have, by keys and shapes.

    A rule is made of a key that the model lacks and one that the weights lack: what is left of
    them without the longest common end. It holds if it takes most of the keys below it to keys of
    the model with the same shape.

    Args:
        state (Mapping[str, Tensor]): Weights.
        model (nn.Module): What they are for; inserted layers may be lacking.

    Returns:
        dict[str, str]: New prefix by old, none for what no rule brings to a place.

    Raises:
        ConversionError: If two rules for a prefix hold and bring keys to different places.
    """
    target = model.state_dict()
    optional = set(added_keys(model))
    rules: dict[str, str] = {}
    lost = [key for key in state if key not in target]
    free = {key for key in target if key not in state}
    while lost:
        holding = _holding(lost[0], lost, free, state, target)
        if not holding:
            lost = lost[1:]
            continue
        most = max(len(moved) for _, _, moved in holding)
        best = [(old, new, moved) for old, new, moved in holding if len(moved) == most]
        places = {frozenset(moved.items()) for _, _, moved in best}
        needed = [rule for rule in best if not set(rule[2].values()) <= optional] or best
        if len(places) > 1 and len(needed) > 1:
            words = ' or '.join(f'{old}={new}' for old, new, _ in needed[:3])
            raise ConversionError(
                f'{lost[0]} fits more than one place; say which with --rename {words}'
            )
        old, new, moved = needed[0]
        rules[old] = new
        lost = [key for key in lost if not _below(key, old)]
        free -= set(moved.values())
    return rules


def _holding(
    key: str,
    lost: list[str],
    free: set[str],
    state: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
) -> list[tuple[str, str, dict[str, str]]]:
    """Return the rules for ``key`` that hold, and where each brings the keys below it."""
    parts = key.split('.')
    candidates: dict[tuple[str, str], int] = {}
    for other in free:
        theirs = other.split('.')
        common = 0
        while common < min(len(parts), len(theirs)) and parts[-1 - common] == theirs[-1 - common]:
            common += 1
        # The last name alone (weight) says nothing, unless it is all that one of them has.
        if common >= min(2, len(parts), len(theirs)) and target[other].shape == state[key].shape:
            pair = '.'.join(parts[:-common]), '.'.join(theirs[:-common])
            candidates[pair] = max(common, candidates.get(pair, 0))
    found = []
    longest = max(candidates.values(), default=0)
    for (old, new), common in candidates.items():
        if common < longest:
            continue
        below = [name for name in state if _below(name, old)]
        if any(name not in lost for name in below):
            continue  # some are where they should be
        move = prefix_rules({old: new})
        moved = {
            name: move(name)
            for name in below
            if move(name) in free and target[move(name)].shape == state[name].shape
        }
        # The rest may be what a new task changes: another number of classes, a head less.
        if 2 * len(moved) >= len(below):
            found.append((old, new, moved))
    return found


def _again(conversion: Conversion, rules: Mapping[str, str]) -> Conversion:
    """Rename what was renamed before."""
    new_key = prefix_rules(rules)
    result = Conversion(dropped=conversion.dropped, notes=conversion.notes)
    for key, value in conversion.state.items():
        result.put(new_key(key), value, *conversion.origins[key])
    return result


def _below(key: str, prefix: str) -> bool:
    return not prefix or key == prefix or key.startswith(f'{prefix}.')
