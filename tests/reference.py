"""The papers' equations in float64, as plain loops over positions: slow and independent."""

import numpy as np


def softmax(row: np.ndarray) -> np.ndarray:
    """Softmax of one vector."""
    exponentials = np.exp(row - row.max())
    return exponentials / exponentials.sum()


def dot_product_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, normalization: str
) -> np.ndarray:
    """EA paper, equations 1 and 2, with tokens in rows: Q (m, d_k), K (n, d_k), V (n, d_v)."""
    n = key.shape[0]
    result = np.zeros((query.shape[0], value.shape[1]))
    for i in range(query.shape[0]):
        similarity = np.array([query[i] @ key[j] for j in range(n)])
        weights = softmax(similarity) if normalization == 'softmax' else similarity / n
        for j in range(n):
            result[i] += weights[j] * value[j]
    return result


def efficient_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, normalization: str
) -> np.ndarray:
    """EA paper, equations 3 and 4, with tokens in rows: Q (m, d_k), K (n, d_k), V (n, d_v)."""
    n, d_k = key.shape
    if normalization == 'softmax':
        queries = np.stack([softmax(row) for row in query])
        keys = np.stack([softmax(key[:, channel]) for channel in range(d_k)], axis=1)
    else:
        queries, keys = query / np.sqrt(n), key / np.sqrt(n)
    result = np.zeros((query.shape[0], value.shape[1]))
    for channel in range(d_k):
        context = sum(keys[j, channel] * value[j] for j in range(n))
        for i in range(query.shape[0]):
            result[i] += queries[i, channel] * context
    return result


def attention_block(
    x: np.ndarray,
    weights: dict[str, np.ndarray],
    num_heads: int,
    normalization: str,
    attention=efficient_attention,
    pool=None,
) -> np.ndarray:
    """EA paper, section 3.2: the block around the operator, one image ``(C, *spatial)``."""
    tokens = x.reshape(x.shape[0], -1).T  # one row for each position

    def project(name: str, rows: np.ndarray) -> np.ndarray:
        weight = weights[f'{name}.weight'].reshape(weights[f'{name}.weight'].shape[0], -1)
        return np.stack([weight @ row + weights[f'{name}.bias'] for row in rows])

    query, key, value = (project(name, tokens) for name in ('queries', 'keys', 'values'))
    if pool is not None:
        key, value = pool(key, x.shape[1:]), pool(value, x.shape[1:])
    heads = [
        attention(*parts, normalization)
        for parts in zip(
            np.split(query, num_heads, axis=1),
            np.split(key, num_heads, axis=1),
            np.split(value, num_heads, axis=1),
            strict=True,
        )
    ]
    attended = project('reprojection', np.concatenate(heads, axis=1))
    return x + attended.T.reshape(x.shape)


def max_pool_2x2(rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """2 x 2 maximum over a map given as rows of positions; what sticks out counts by itself."""
    height, width = shape
    grid = rows.reshape(height, width, -1)
    return np.stack(
        [
            grid[i : i + 2, j : j + 2].max(axis=(0, 1))
            for i in range(0, height, 2)
            for j in range(0, width, 2)
        ]
    )


def axis_averages(image: np.ndarray) -> list[np.ndarray]:
    """KAN paper, equations 14 and 15, one image ``(C, *spatial)``: one list of vectors in all.

    Written for any number of axes: for each axis, the last first, one vector for each index along
    it, the average over everything that has this index.
    """
    vectors = []
    for axis in reversed(range(1, image.ndim)):
        for index in range(image.shape[axis]):
            part = np.take(image, index, axis=axis).reshape(image.shape[0], -1)
            vectors.append(np.array([sum(row) / len(row) for row in part]))
    return vectors


def kronecker_attention(
    image: np.ndarray,
    mode: str,
    weights: dict[str, np.ndarray] | None = None,
    normalize=lambda coefficients: coefficients,
) -> np.ndarray:
    """KAN paper, equations 16 to 18, one image ``(C, *spatial)``, without residual."""
    weights = weights or {}

    def transform(name: str, vectors: list[np.ndarray]) -> list[np.ndarray]:
        if f'{name}.weight' not in weights:
            return vectors
        weight = weights[f'{name}.weight']
        weight = weight.reshape(weight.shape[0], -1)
        return [weight @ vector + weights[f'{name}.bias'] for vector in vectors]

    averages = axis_averages(image)
    positions = list(np.ndindex(image.shape[1:]))
    pixels = [image[(slice(None), *position)] for position in positions]
    queries = transform('queries', pixels if mode == 'kv' else averages)
    keys, values = transform('keys', averages), transform('values', averages)
    coefficients = np.array([[key @ query for query in queries] for key in keys])
    coefficients = normalize(coefficients)
    outputs = []
    for column in range(len(queries)):  # column-wise softmax, equation 1
        share = softmax(coefficients[:, column])
        outputs.append(sum(share[row] * values[row] for row in range(len(values))))
    result = np.zeros((len(values[0]), *image.shape[1:]))
    if mode == 'kv':
        for position, output in zip(positions, outputs, strict=True):
            result[(slice(None), *position)] = output
        return result
    starts, start = {}, 0
    for axis in reversed(range(image.ndim - 1)):
        starts[axis] = start
        start += image.shape[1 + axis]
    for position in positions:  # outer sum, equation 18
        for axis, index in enumerate(position):
            result[(slice(None), *position)] += outputs[starts[axis] + index]
    return result


def convolution(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None,
    stride=(1, 1),
    padding=(0, 0),
    dilation=(1, 1),
    groups: int = 1,
    mode: str = 'zeros',
) -> np.ndarray:
    """One image ``(C, H, W)`` convolved with ``(C_out, C / groups, kH, kW)``, loop by loop."""
    pads = [(0, 0), (padding[0],) * 2, (padding[1],) * 2]
    x = np.pad(
        x,
        pads,
        mode={'zeros': 'constant', 'circular': 'wrap', 'reflect': 'reflect', 'replicate': 'edge'}[
            mode
        ],
    )
    c_out, c_in, kernel_h, kernel_w = weight.shape
    height = (x.shape[1] - dilation[0] * (kernel_h - 1) - 1) // stride[0] + 1
    width = (x.shape[2] - dilation[1] * (kernel_w - 1) - 1) // stride[1] + 1
    out = np.zeros((c_out, height, width))
    for o in range(c_out):
        first = o // (c_out // groups) * c_in
        for i in range(height):
            for j in range(width):
                for c in range(c_in):
                    for a in range(kernel_h):
                        for b in range(kernel_w):
                            out[o, i, j] += (
                                weight[o, c, a, b]
                                * x[
                                    first + c,
                                    i * stride[0] + a * dilation[0],
                                    j * stride[1] + b * dilation[1],
                                ]
                            )
        if bias is not None:
            out[o] += bias[o]
    return out


GATES = {
    'tanh': np.tanh,
    'sigmoid': lambda z: 1 / (1 + np.exp(-z)),
    'softmax': softmax,
    'relu': lambda z: np.maximum(z, 0),
    None: lambda z: z,
}


def attention_branch(
    x: np.ndarray,
    weights: dict[str, np.ndarray],
    gate: str | None,
    norm: str | None,
    eps: float = 1e-5,
) -> np.ndarray:
    """SB paper, equation 2 and its figure, in inference: image ``(C, H, W)`` to ``(C_out,)``."""

    def normalize(z: np.ndarray, name: str) -> np.ndarray:
        if norm is None:
            return z
        if norm == 'layer_norm':
            z = (z - z.mean()) / np.sqrt(((z - z.mean()) ** 2).mean() + eps)
        else:
            z = (z - weights[f'{name}.running_mean']) / np.sqrt(
                weights[f'{name}.running_var'] + eps
            )
        return z * weights[f'{name}.weight'] + weights[f'{name}.bias']

    z = np.array([channel.sum() / channel.size for channel in x])
    z = weights['fc1.weight'] @ z + weights.get('fc1.bias', 0.0)
    z = np.maximum(normalize(z, 'norm1'), 0)
    z = weights['fc2.weight'] @ z + weights.get('fc2.bias', 0.0)
    return GATES[gate](normalize(z, 'norm2'))
