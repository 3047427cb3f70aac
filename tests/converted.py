"""Reading what converters wrote, and models that are not as they start."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn


def load(path: Path) -> dict[str, Tensor]:
    """Read what a converter wrote, without any allow-list."""
    return torch.load(path, weights_only=True)['state_dict']


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert list(one) == list(other) or one.keys() == other.keys()
    for key, value in one.items():
        assert value.dtype == other[key].dtype and torch.equal(value, other[key]), key


def trained(model: nn.Module) -> nn.Module:
    """Give a model weights and statistics unlike those that it starts with."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5),
                (module.bias, -0.3, 0.3),
                (module.running_mean, -0.3, 0.3),
                (module.running_var, 0.5, 1.5),
            ):
                tensor.data.uniform_(low, high, generator=generator)
        elif isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)):
            fan = module.weight[0].numel()
            module.weight.data.normal_(0, fan**-0.5, generator=generator)
            if module.bias is not None:
                module.bias.data.normal_(0, 0.1, generator=generator)
    return inferring(model)


def inferring(model: nn.Module) -> nn.Module:
    model.eval()  # in mmdet's and mmpretrain's MobileNetV2, it returns None
    return model
