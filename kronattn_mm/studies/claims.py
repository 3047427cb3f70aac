"""What the paper says about the order of its results on CIFAR-10, and whether a study agrees.

Paper: "Shift-and-Balance Attention" (arXiv 2103.13080), sections 5.3 and 5.4. Its tables' numbers
are not at hand; the sentences about them are. Each becomes a pair of networks of which the first
is said to be more accurate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, variance


@dataclass(frozen=True)
class Claim:
    """One network is said to be better than another.

    Args:
        source (str): The table of the paper.
        better (str): Name of an arm; see :class:`~kronattn_mm.studies.arms.Arm`.
        worse (str): Another.
        widths (tuple, optional): At which widths. Defaults to None, at all.
    """

    source: str
    better: str
    worse: str
    widths: tuple[float, ...] | None = None


CLAIMS = (
    Claim('table 6', 'sb-3', 'static'),
    Claim('table 6', 'sb-3', 'dyconv'),
    Claim('table 5', 'sb-2', 'sb-1'),
    Claim('table 5', 'sb-3', 'sb-2'),
    Claim('table 5', 'sb-3', 'sb-1'),
    Claim('table 5', 'se-1', 'se-2'),
    Claim('table 5', 'se-2', 'se-3'),
    Claim('table 5', 'se-1', 'se-3'),
    Claim('table 5', 'se-1', 'sb-1'),
    Claim('table 5', 'sb-3', 'se-3'),
    Claim('table 5', 'se-1', 'sb-3', (0.75, 1.0)),
    Claim('table 7', 'sb-3 dropout=0.2', 'sb-3'),
    *(
        Claim('table 8', f'sb-3 lambda_init={small}', f'sb-3 lambda_init={large}')
        for small in ('0.01', '0.05', '0.1')
        for large in ('0.5', '1')
    ),
    Claim('table 8', 'sb-3 lambda_init=0.05', 'sb-3 lambda_init=0.1', (0.35, 1.0)),
    Claim('table 8', 'sb-3 lambda_init=0.01', 'sb-3 lambda_init=0.1', (0.5, 0.75)),
    Claim('table 9', 'sb-3 gate=sigmoid', 'sb-3 gate=tanh', (0.35,)),
    Claim('table 9', 'sb-3 gate=tanh', 'sb-3 gate=sigmoid', (0.5, 0.75, 1.0)),
    Claim('table 9', 'sb-3 gate=none', 'sb-3 gate=tanh', (0.75, 1.0)),
    *(
        Claim('table 9', 'se-3 gate=sigmoid', f'se-3 gate={gate}')
        for gate in ('tanh', 'softmax', 'relu', 'none')
    ),
    *(
        Claim('table 10', 'sb-3 hidden_ratio=3', f'sb-3 hidden_ratio={other}', (0.35,))
        for other in (1, 2, 4)
    ),
)


@dataclass(frozen=True)
class Verdict:
    """A claim against measured accuracies.

    Attributes:
        claim: The claim.
        width: At which width.
        difference: Mean accuracy of the better minus that of the worse, in points.
        error: Standard error of the difference; None with fewer than two seeds for either.
    """

    claim: Claim
    width: float
    difference: float
    error: float | None

    @property
    def text(self) -> str:
        """``'agrees'`` or ``'disagrees'``, or that the seeds do not tell.

        They are said to tell where the difference is at least twice its standard error, which with
        few seeds is a weak test.
        """
        if self.error is None:
            return 'one seed: not told'
        if abs(self.difference) < 2 * self.error or self.difference == 0:
            return 'seeds do not tell'
        return 'agrees' if self.difference > 0 else 'disagrees'


def verdicts(accuracies: Mapping[tuple[float, str], Sequence[float]]) -> list[Verdict]:
    """Compare the paper's order with accuracies, where both networks of a claim were trained.

    Args:
        accuracies (Mapping): Accuracies of the seeds by width and name of the arm.
    """
    found = []
    for claim in CLAIMS:
        for width in sorted({width for width, _ in accuracies}):
            if claim.widths is not None and width not in claim.widths:
                continue
            pair = [accuracies.get((width, name)) for name in (claim.better, claim.worse)]
            if all(pair):
                better, worse = pair
                error = None
                if min(map(len, pair)) > 1:
                    error = math.sqrt(variance(better) / len(better) + variance(worse) / len(worse))
                found.append(Verdict(claim, width, mean(better) - mean(worse), error))
    return found
