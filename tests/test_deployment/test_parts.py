"""What of a model is exported, and what its outputs are called."""

import pytest
import torch
from torch import nn

from kronattn_mm.deployment import Deployed, Normalization, choose_part, deployed


def stub(library: str, name: str, *bases: type) -> type:
    """A class that passes for one of a library, which then need not be there."""
    return type(name, bases or (nn.Module,), dict(__module__=f'{library}.stub'))


AnchorHead = stub('mmdet', 'AnchorHead')


class SingleStage(stub('mmdet', 'SingleStageDetector')):
    def __init__(self, groups: int, head: nn.Module) -> None:
        super().__init__()
        self.groups, self.bbox_head = groups, head

    def extract_feat(self, x):
        return (x, x[..., ::2, ::2])

    def forward(self, x, samples, mode):
        assert samples is None and mode == 'tensor'
        return tuple(
            [level + number for level in self.extract_feat(x)] for number in range(self.groups)
        )


X = torch.zeros(1, 3, 4, 6)


@pytest.mark.parametrize(
    ('groups', 'head', 'names'),
    [
        (2, AnchorHead(), ('cls_score_0', 'cls_score_1', 'bbox_pred_0', 'bbox_pred_1')),
        (
            3,
            AnchorHead(),
            ('cls_score_0', 'cls_score_1', 'bbox_pred_0', 'bbox_pred_1')
            + ('output2_0', 'output2_1'),
        ),
        (1, AnchorHead(), ('output0_0', 'output0_1')),
        (2, nn.Identity(), ('output0_0', 'output0_1', 'output1_0', 'output1_1')),
    ],
)
def test_outputs_of_detectors(groups, head, names):
    module = deployed(SingleStage(groups, head), X)
    assert module.names == names
    outputs = module(X)
    assert [int(output.max()) for output in outputs] == [i // 2 for i in range(2 * groups)]
    assert outputs[-1].shape == (1, 3, 2, 3)
    assert deployed(SingleStage(groups, head), X, 'features').names == ('level0', 'level1')


def test_what_is_less_than_the_model_is_said():
    two_stage = stub('mmdet', 'TwoStageDetector')
    two_stage.extract_feat = lambda self, x: (x,)
    part, sentence = choose_part(two_stage())
    assert part == 'features' and 'its second stage works on regions' in sentence
    assert choose_part(two_stage(), 'features') == ('features', '')
    with pytest.raises(ValueError, match='TwoStageDetector, backbone and neck are what is exp'):
        choose_part(two_stage(), 'outputs')
    part, sentence = choose_part(stub('mmdet', 'DETR', two_stage)())
    assert part == 'features'
    with pytest.raises(TypeError, match='Linear has no extract_feat'):
        choose_part(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="'outputs', 'features', got 'all'"):
        Deployed(nn.Identity(), 'all')


def test_a_size_that_a_model_cannot_take():
    model = SingleStage(2, AnchorHead())
    model.extract_feat = lambda x: nn.Conv2d(3, 1, 9)(x)
    with pytest.raises(ValueError, match=r'cannot take images of the shape \(1, 3, 4, 6\)'):
        deployed(model, X)


@pytest.mark.parametrize('exchange', ['_channel_conversion', 'channel_conversion', 'to_rgb', ''])
def test_normalization_is_that_of_the_preprocessor(exchange):
    preprocessor = nn.Module()
    preprocessor._enable_normalize = True
    preprocessor.mean, preprocessor.std = (
        torch.tensor([[[1.0]], [[2.0]], [[3.0]]]),
        torch.full((3, 1, 1), 2.0),
    )
    if exchange:
        setattr(preprocessor, exchange, True)
    image = torch.tensor([10.0, 20.0, 30.0]).view(1, 3, 1, 1)
    wanted = [14.5, 9.0, 3.5] if exchange else [4.5, 9.0, 13.5]
    normalization = Normalization.of(preprocessor)
    assert normalization(image).flatten().tolist() == wanted
    assert normalization.as_dict()['order'] == ('RGB' if exchange else 'BGR')
    plain = Normalization.of(nn.Module())
    assert torch.equal(plain(image), image)
