"""What people switch on in real training: EMA, bf16, gradient checkpointing."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip('mmdet')

from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

from kronattn_mm import inserted_layers

ROOT = Path(__file__).resolve().parents[2]


def build(path: Path, options: dict | None = None) -> nn.Module:
    """Build the model of a config, changed as by ``--cfg-options``."""
    from mmdet.registry import MODELS

    config = Config.fromfile(path)
    config.merge_from_dict(options or {})
    init_default_scope('mmdet')
    torch.manual_seed(0)
    return MODELS.build(config.model)


def inputs(model: nn.Module, pictures: int = 2) -> dict:
    from mmdet.testing import demo_mm_inputs

    data = demo_mm_inputs(
        pictures, [(3, 96, 96)] * pictures, num_items=[3] * pictures, num_classes=2, with_mask=True
    )
    return model.data_preprocessor(data, True)


def disturb(model: nn.Module) -> None:
    """Take the layers away from their zero initialisation, as training does."""
    torch.manual_seed(1)
    for insertion in inserted_layers(model).values():
        nn.init.normal_(insertion.layer.reprojection.weight, std=0.5)


def loss_of(model: nn.Module, data: dict) -> Tensor:
    torch.manual_seed(2)  # proposals are sampled
    return model.parse_losses(model(**copy.deepcopy(data), mode='loss'))[0]


def test_ema_averages_the_inserted_layers(
    small_config: Callable[..., Path], tmp_path: Path
) -> None:
    config = Config.fromfile(
        small_config("""
train_cfg = dict(max_epochs=1)
custom_hooks = [dict(type='kronattn_mm.EpochSeed'), dict(type='EMAHook', momentum=0.1)]
""")
    )
    config.work_dir = str(tmp_path / 'run')
    config.experiment_name = 'ema'
    init_default_scope('mmdet')
    runner = Runner.from_cfg(config)
    try:
        runner.train()
    finally:
        torch.use_deterministic_algorithms(False)
    saved = torch.load(tmp_path / 'run' / 'epoch_1.pth', map_location='cpu', weights_only=False)
    # The hook saves the average as the model, and the trained weights beside it.
    average, trained = saved['state_dict'], saved['ema_state_dict']
    names = [name for name in average if '.attention.' in name]
    assert len(names) == 7 * 8
    for name in names:
        if 'reprojection' in name:
            assert 0 < average[name].abs().sum() < trained[f'module.{name}'].abs().sum()

    hook = next(hook for hook in runner.hooks if type(hook).__name__ == 'EMAHook')
    own, others = inserted_layers(hook.ema_model.module), inserted_layers(runner.model)
    assert own.keys() == others.keys() and len(own) == 7
    # The average runs its own layers, and not those of the model that it was copied from.
    images = torch.rand(1, 3, 96, 96)
    hook.ema_model.eval()
    with torch.no_grad():
        before = hook.ema_model.module.extract_feat(images)
        for insertion in others.values():
            insertion.layer.reprojection.weight.fill_(1e3)
        after = hook.ema_model.module.extract_feat(images)
        for insertion in own.values():
            insertion.layer.reprojection.weight.fill_(1e3)
        changed = hook.ema_model.module.extract_feat(images)
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert not any(torch.equal(*pair) for pair in zip(before, changed, strict=True))


def test_gradient_checkpointing_changes_no_gradient(small_config: Callable[..., Path]) -> None:
    path = small_config()
    plain = build(path)
    insert = "[dict(at='{}', layer=attention, with_cp=True)]"
    saving = build(
        small_config(
            f"""
attention = dict(type='kronattn_mm.EfficientAttention2d', key_channels=64, value_channels=64)
model['backbone'].update(with_cp=True, insert={insert.format('res3-4')})
model['neck'].update(insert={insert.format('fpn1-5')})
""",
            name='checkpointed.py',
        )
    )
    assert all(insertion.with_cp for insertion in inserted_layers(saving).values())
    saving.load_state_dict(plain.state_dict())
    gradients = []
    for model in (plain, saving):
        disturb(model)
        model.train()
        loss_of(model, inputs(model)).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    expected, found = gradients
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        assert gradient is not None, name
        # Sums come about in another order.
        torch.testing.assert_close(
            found[name],
            gradient,
            rtol=1e-4,
            atol=1e-6 + 1e-4 * gradient.abs().max().item(),
            msg=lambda text, at=name: f'{at}: {text}',
        )


RETINANET = f"""
_base_ = '{ROOT}/configs/efficient_attention/retinanet_r50_fpn_ea-res3-4-fpn1-5_1x_coco.py'
model = dict(
    backbone=dict(depth=18, init_cfg=None),
    neck=dict(in_channels=[64, 128, 256, 512], out_channels=32),
    bbox_head=dict(num_classes=2, in_channels=32, feat_channels=32, stacked_convs=1))
optim_wrapper = dict(type='AmpOptimWrapper', dtype='bfloat16')
"""


def test_bf16_autocast_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With mmengine's own wrapper; only its demand for a GPU is lifted here."""
    from mmengine.optim.optimizer import amp_optimizer_wrapper

    path = tmp_path / 'bf16.py'
    path.write_text(RETINANET, encoding='utf-8')
    model = build(path)
    disturb(model)
    model.train()
    data = inputs(model)
    full = loss_of(model, data).item()
    with pytest.raises(AssertionError, match='only available training on gpu'):
        build_optim_wrapper(model, Config.fromfile(path).optim_wrapper)
    monkeypatch.setattr(amp_optimizer_wrapper, 'is_cuda_available', lambda: True)
    wrapper = build_optim_wrapper(model, Config.fromfile(path).optim_wrapper)
    dtypes = set()
    for insertion in inserted_layers(model).values():
        insertion.layer.reprojection.register_forward_hook(
            lambda module, args, output: dtypes.add(output.dtype)
        )
    with wrapper.optim_context(model):
        loss = loss_of(model, data)
    assert dtypes == {torch.bfloat16}
    assert loss.item() == pytest.approx(full, rel=0.05)
    before = {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if '.attention.' in name and 'weight' in name
    }
    wrapper.update_params(loss)
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter).all(), name
    assert not any(torch.equal(model.get_parameter(name), value) for name, value in before.items())


def test_bf16_mask_rcnn_needs_torchvisions_roi_align(small_config: Callable[..., Path]) -> None:
    """mmcv's has no kernel for bf16; if it gets one, docs and this test can forget about it."""
    pytest.importorskip('torchvision')
    align = 'model.roi_head.{}_roi_extractor.roi_layer.use_torchvision'
    options = {align.format(part): True for part in ('bbox', 'mask')}
    for changes, fails in (({}, True), (options, False)):
        model = build(small_config(), changes)
        disturb(model)
        model.train()
        data = inputs(model)
        with torch.autocast('cpu', dtype=torch.bfloat16):
            features = model.extract_feat(data['inputs'])
        # On a CPU autocast leaves boxes in bf16, which mmcv's suppression of overlaps refuses.
        samples = copy.deepcopy(data['data_samples'])
        for sample in samples:
            sample.gt_instances.labels = torch.zeros_like(sample.gt_instances.labels)
        proposal_cfg = model.train_cfg.rpn_proposal
        _, proposals = model.rpn_head.loss_and_predict(
            tuple(feature.float() for feature in features), samples, proposal_cfg=proposal_cfg
        )
        with torch.autocast('cpu', dtype=torch.bfloat16):
            if fails:
                with pytest.raises(RuntimeError, match="not implemented for 'BFloat16'"):
                    model.roi_head.loss(features, proposals, data['data_samples'])
                continue
            losses = model.roi_head.loss(features, proposals, data['data_samples'])
        loss, _ = model.parse_losses(losses)
        loss.backward()
        assert torch.isfinite(loss)
        for name, parameter in model.neck.attention.named_parameters():
            if not name.startswith('fpn5'):  # no part in the second stage
                assert torch.isfinite(parameter.grad).all(), name
