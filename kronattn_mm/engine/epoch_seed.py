"""A hook that makes an interrupted and resumed training equal to one that ran through.

mmengine restores weights, optimizer, schedulers and the order of the data, and the seed, but not
the state of the random generators: a resumed run draws other flips, proposals and dropout masks.
"""

from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner, set_random_seed

from ..registry import HOOKS


@HOOKS.register_module()
class EpochSeed(Hook):
    """Seed Python, NumPy and torch at the start of each epoch from the run's seed and the epoch.

    What an epoch draws then depends on nothing before it, and training resumed from a checkpoint
    that was saved at the end of an epoch continues bit for bit, on hardware whose operators are
    deterministic. Data workers have generators of their own, which the first epoch of a process
    seeds: exactness needs ``num_workers=0`` or ``persistent_workers=False``.

    Loops that count iterations have one epoch; for them this seeds once, at the start.
    """

    priority = 'VERY_HIGH'

    def before_train_epoch(self, runner: Runner) -> None:
        # With `diff_rank_seed` the seeds of the processes are consecutive; steps of the world size
        # keep all of them, over all epochs, different.
        set_random_seed((runner.seed + runner.epoch * get_world_size()) % 2**32)
