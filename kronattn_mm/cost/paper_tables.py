"""The cost figures that the efficient-attention paper prints, and the same worked out here.

Paper: "Efficient Attention" (arXiv 1812.01243), section 1, Table 1, section 3.5, Tables 2 and 7.
"""

import math
from dataclasses import dataclass

from .paper import PaperCost, efficient_attention, non_local
from .quantity import quantity

# Table 2 has d_k = d_v = 64, an input of 896 x 1280 and a ResNet-50: (channels, height, width).
TABLE_2_LAYERS = {
    'res3': (1024, 56, 80),
    'res4': (2048, 28, 40),
    'fpn1': (256, 224, 320),
    'fpn2': (256, 112, 160),
    'fpn3': (256, 56, 80),
    'fpn4': (256, 28, 40),
    'fpn5': (256, 14, 20),
}
TABLE_2_ROWS = {
    **{layer: (layer,) for layer in TABLE_2_LAYERS},
    'res3-4+fpn3-5': ('res3', 'res4', 'fpn3', 'fpn4', 'fpn5'),
    'res3-4+fpn1-5': tuple(TABLE_2_LAYERS),
}
TABLE_2_COLUMNS = ('EA memory', 'EA MACC', 'NL memory', 'NL MACC')
# As printed: efficient attention's memory (bytes) and computation (MACC), then non-local's.
TABLE_2_PRINTED = {
    'res3': ('41.3 M', '1.21 G', '122 M', '3.74 G'),
    'res4': ('19.5 M', '596 M', '24.5 M', '748 M'),
    'fpn1': ('220 M', '5.28 G', '20.8 G', '662 G'),
    'fpn2': ('55.1 M', '1.32 G', '1.34 G', '42.3 G'),
    'fpn3': ('13.8 M', '330 M', '94.0 M', '2.86 G'),
    'fpn4': ('3.46 M', '82.6 M', '8.46 M', '234 M'),
    'fpn5': ('877 K', '20.6 M', '1.17 M', '28.4 M'),
    'res3-4+fpn3-5': ('78.9 M', '2.24 G', '250 M', '7.62 G'),
    'res3-4+fpn1-5': ('354 M', '8.85 G', '22.4 G', '712 G'),
}


@dataclass(frozen=True)
class Check:
    """One figure of the paper beside ours.

    Attributes:
        what: Row and column, or the sentence.
        printed: As the paper has it.
        ours: The same, worked out, in the paper's digits.
        exact: The same before rounding.
        matches: Whether the two agree.
    """

    what: str
    printed: str
    ours: str
    exact: float
    matches: bool


def table_2_row(row: str) -> tuple[PaperCost, PaperCost]:
    """Return the costs of one row of Table 2, of efficient attention and of non-local modules.

    Raises:
        ValueError: If Table 2 has no such row.
    """
    if row not in TABLE_2_ROWS:
        raise ValueError(f'Table 2 has no row {row!r}; there are {", ".join(TABLE_2_ROWS)}')
    efficient, regular = PaperCost(), PaperCost()
    for layer in TABLE_2_ROWS[row]:
        channels, height, width = TABLE_2_LAYERS[layer]
        efficient += efficient_attention(height * width, channels)
        regular += non_local(height * width, channels)
    return efficient, regular


def table_2() -> list[list[Check]]:
    """Return the cost columns of Table 2, row by row, four cells each."""
    rows = []
    for row, printed in TABLE_2_PRINTED.items():
        efficient, regular = table_2_row(row)
        values = (efficient.memory, efficient.macc, regular.memory, regular.macc)
        rows.append(
            [
                _check(f'{row}, {column}', figure, value)
                for column, figure, value in zip(TABLE_2_COLUMNS, printed, values, strict=True)
            ]
        )
    return rows


def section_3_5_costs(*shape: int, channels: int = 64) -> tuple[PaperCost, PaperCost]:
    """Return the costs in the setting of Table 1, section 3.5 and Figure 2.

    There d = d_v = 2 d_k (64 channels in the examples), and there is no reprojection.

    Args:
        *shape (int): Height and width of the feature map, or the sizes of a volume.
        channels (int): Channels d. Defaults to 64.

    Returns:
        tuple[PaperCost, PaperCost]: Of efficient attention and of the non-local module.
    """
    sizes = dict(
        positions=math.prod(shape),
        in_channels=channels,
        key_channels=channels // 2,
        value_channels=channels,
        reprojection=False,
    )
    return efficient_attention(**sizes), non_local(**sizes)


def examples() -> list[Check]:
    """Return the examples in the paper's text, in its order, and the memory in Table 7."""
    map_64, map_128, map_256 = (section_3_5_costs(side, side) for side in (64, 128, 256))
    tiny, large = section_3_5_costs(28, 28, 4), section_3_5_costs(64, 64, 32)
    # 960 x 540 pictures at a quarter of their size, a quarter of 192 disparities; 32 channels.
    stereo = section_3_5_costs(48, 135, 240, channels=32)

    def memory_ratio(pair: tuple[PaperCost, PaperCost]) -> float:
        return pair[1].memory / pair[0].memory

    def macc_ratio(pair: tuple[PaperCost, PaperCost]) -> float:
        return pair[1].macc / pair[0].macc

    return [
        _over('section 1: 128 x 128, non-local, memory (B)', '1 G', map_128[1].memory, 1e9),
        _over('section 1: 128 x 128, non-local, MACC', '25 G', map_128[1].macc, 25e9),
        _over('section 1: 64 x 64 x 32, non-local, memory (B)', '68 G', large[1].memory, 68e9),
        _over('section 1: 64 x 64 x 32, non-local, MACC', '1.6 T', large[1].macc, 1.6e12),
        _ratio('section 3.5: 64 x 64, saving of memory', 17, memory_ratio(map_64)),
        _ratio('section 3.5: 64 x 64, saving of computation', 33, macc_ratio(map_64)),
        _check('section 3.5: 256 x 256, non-local, memory (B)', '17.2 G', map_256[1].memory),
        _check('section 3.5: 256 x 256, non-local, MACC', '413 G', map_256[1].macc),
        _ratio('section 3.5: 256 x 256, saving of memory', 257, memory_ratio(map_256)),
        _ratio('section 3.5: 256 x 256, saving of computation', 513, macc_ratio(map_256)),
        _over('section 3.5: 28 x 28 x 4, saving of memory', '10', memory_ratio(tiny), 10),
        _over('section 3.5: 28 x 28 x 4, saving of computation', '10', macc_ratio(tiny), 10),
        _ratio('section 3.5: 64 x 64 x 32, saving of memory', 513, memory_ratio(large)),
        _ratio('section 3.5: 64 x 64 x 32, saving of computation', 1025, macc_ratio(large)),
        _check('Table 7: PSMNet, efficient attention, memory (B)', '796 M', stereo[0].memory),
        _check('Table 7: PSMNet, non-local, memory (B)', '9.68 T', stereo[1].memory),
    ]


def _check(what: str, printed: str, value: float) -> Check:
    return Check(what, printed, quantity(value), value, quantity(value) == printed)


def _ratio(what: str, printed: int, value: float) -> Check:
    return Check(what, f'{printed} x', f'{value:.1f} x', value, round(value) == printed)


def _over(what: str, printed: str, value: float, bound: float) -> Check:
    ours = quantity(value) if bound >= 1000 else f'{value:.1f} x'
    unit = '' if bound >= 1000 else ' x'
    return Check(what, f'over {printed}{unit}', ours, value, value > bound)
