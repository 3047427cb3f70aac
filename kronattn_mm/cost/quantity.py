"""Numbers as the papers print them: three digits and K, M, G or T, powers of a thousand."""

_UNITS = ('', ' K', ' M', ' G', ' T', ' P')


def quantity(value: float) -> str:
    """Format a count or a number of bytes as the efficient-attention paper does.

    Args:
        value (float): Not negative.

    Returns:
        str: Such as ``'41.3 M'``, ``'1.21 G'``, ``'877 K'``; ``'0'`` for nothing.
    """
    if value < 999.5:
        return str(round(value))
    unit = 0
    # 999.5 and more would be rounded to 1000: that is 1.00 of the next unit.
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value /= 1000
        unit += 1
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f'{value:.{decimals}f}{_UNITS[unit]}'
