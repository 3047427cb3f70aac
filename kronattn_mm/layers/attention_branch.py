"""The attention branch A(x) of scaled attention and of Shift-and-Balance.

Paper: "Shift-and-Balance Attention" (arXiv 2103.13080), equation 2: A(x) = gate(F(x)), where F is
global average pooling and two fully connected layers. Its figure shows batch norm after both
layers and ReLU between them; the layers then need no bias.

Readings and deviations:

- Pooling is over the *input* of the convolution (equations 10 to 13 count c_in values).
- The norms see one vector for an image. With a single image in training there is nothing to
  take statistics from (torch raises "Expected more than 1 value per channel"), so the running
  statistics normalise it, and move towards it: the mean by the momentum, the variance by the
  squared distance from the mean. Training and inference then still compute the same function.
- ``norm_eval=True`` of a backbone puts every batch norm in it into eval mode, where those of a new
  branch would keep the statistics of nothing, mean 0 and variance 1, and never normalise. The
  norms here therefore follow the branch itself, which trains when the network trains; the
  argument ``norm_eval`` holds them. A norm whose parameters are frozen is held too.

Cost for one image (equations 10 to 13): c_in h w additions for the average, c_in c_hid + c_hid
c_out multiply-accumulates; norm and gate are not counted.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from .arguments import boolean, choice, positive_int, probability

GATES = ('tanh', 'sigmoid', 'softmax', 'relu', None)
NORMS = ('batch_norm', 'layer_norm', None)


class AttentionBranch(nn.Module):
    """Global average, two fully connected layers and a gate.

    Args:
        in_channels (int): Channels c_in of the input.
        hidden_channels (int): Hidden units c_hid.
        out_channels (int): Channels c_out of the result.
        gate (str, optional): ``'tanh'``, ``'sigmoid'``, ``'softmax'`` (over the channels),
            ``'relu'`` or None for no gate. Defaults to ``'tanh'``.
        norm (str, optional): What follows each fully connected layer: ``'batch_norm'`` (the
            paper), ``'layer_norm'`` (for batches of one image) or None. Defaults to
            ``'batch_norm'``.
        bias (bool): Give the fully connected layers a bias. Defaults to False.
        dropout (float): Share of hidden units dropped in training (section 5.3 uses 0.2).
            Defaults to 0.
        norm_eval (bool): Never move the statistics of the batch norms. Defaults to False.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range or not one of its choices.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        gate: str | None = 'tanh',
        norm: str | None = 'batch_norm',
        bias: bool = False,
        dropout: float = 0.0,
        norm_eval: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels = positive_int('in_channels', in_channels)
        self.hidden_channels = positive_int('hidden_channels', hidden_channels)
        self.out_channels = positive_int('out_channels', out_channels)
        self.gate = choice('gate', gate, GATES)
        self.norm_eval = boolean('norm_eval', norm_eval)
        make_norm = {'batch_norm': nn.BatchNorm1d, 'layer_norm': nn.LayerNorm, None: nn.Identity}[
            choice('norm', norm, NORMS)
        ]
        boolean('bias', bias)
        self.fc1 = nn.Linear(self.in_channels, self.hidden_channels, bias=bias)
        self.norm1 = make_norm(self.hidden_channels)
        self.dropout = nn.Dropout(probability('dropout', dropout))
        self.fc2 = nn.Linear(self.hidden_channels, self.out_channels, bias=bias)
        self.norm2 = make_norm(self.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return A(x) of shape ``(N, out_channels)`` for ``x`` of shape ``(N, in_channels, *)``."""
        return apply_gate(self.gate_input(x), self.gate)

    def gate_input(self, x: Tensor) -> Tensor:
        """Return F(x), what the gate is applied to, of shape ``(N, out_channels)``."""
        # Not adaptive pooling, which is slower and has no kernel for some dtypes and devices.
        hidden = self._normalize(self.norm1, self.fc1(x.mean((2, 3))))
        return self._normalize(self.norm2, self.fc2(self.dropout(functional.relu(hidden))))

    def fold_norms(self) -> None:
        """Make each batch norm part of the layer before it; the result is for inference only.

        In eval mode a batch norm is a factor and an offset for each channel, so nothing changes
        but rounding. The norms become identities.
        """
        for linear, name in ((self.fc1, 'norm1'), (self.fc2, 'norm2')):
            norm = getattr(self, name)
            if isinstance(norm, _BatchNorm):
                factor, offset = norm_factor_and_offset(norm)
                with torch.no_grad():
                    bias = offset if linear.bias is None else offset + linear.bias * factor
                    linear.weight.mul_(factor[:, None])
                    linear.bias = nn.Parameter(bias)
                setattr(self, name, nn.Identity())

    def extra_repr(self) -> str:
        return f'gate={self.gate!r}'

    def _normalize(self, norm: nn.Module, x: Tensor) -> Tensor:
        if not isinstance(norm, _BatchNorm):
            return norm(x)
        training = (
            self.training
            and not self.norm_eval
            and (norm.weight is None or norm.weight.requires_grad)
        )
        if isinstance(norm, nn.SyncBatchNorm):
            norm.training = training  # it looks at more than this process's vectors
            return norm(x)
        if not training:
            return functional.batch_norm(
                x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            )
        norm.num_batches_tracked.add_(1)
        if x.shape[0] > 1:
            return functional.batch_norm(
                x,
                norm.running_mean,
                norm.running_var,
                norm.weight,
                norm.bias,
                training=True,
                momentum=norm.momentum,
                eps=norm.eps,
            )
        if x.shape[0] == 1:
            with torch.no_grad():
                distance = x[0].to(norm.running_mean.dtype) - norm.running_mean
                norm.running_mean.add_(distance, alpha=norm.momentum)
                norm.running_var.lerp_(distance.square(), norm.momentum)
        # Copies, because the next step moves the statistics before this step's backward may run.
        return functional.batch_norm(
            x,
            norm.running_mean.clone(),
            norm.running_var.clone(),
            norm.weight,
            norm.bias,
            eps=norm.eps,
        )


def apply_gate(x: Tensor, gate: str | None) -> Tensor:
    """Apply a gate to ``(N, C)``; the softmax is over the channels."""
    if gate == 'softmax':
        return x.softmax(1)
    return x if gate is None else getattr(torch, gate)(x)


def norm_factor_and_offset(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return factor and offset of each channel that a batch norm applies in eval mode.

    Raises:
        ValueError: If the norm keeps no running statistics.
    """
    if norm.running_mean is None:
        raise ValueError(
            f'{norm} keeps no running statistics, so it is no fixed factor and '
            'offset and cannot be folded'
        )
    factor = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        factor = factor * norm.weight
    offset = -norm.running_mean * factor
    return factor.detach(), (offset if norm.bias is None else offset + norm.bias).detach()
