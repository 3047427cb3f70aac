"""SmallFileHook in real runs of a small model: which files, with which weights and metrics."""

from pathlib import Path

import pytest
import torch

pytest.importorskip('safetensors')
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import METRICS, MODELS
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import Dataset

import kronattn_mm.registry  # noqa: F401
from kronattn_mm import load_attention
from kronattn_mm.plugging.small_file import read_small_file

BACKBONE = dict(
    type='kronattn_mm.Plugged',
    base='mmdet.MobileNetV2',
    widen_factor=0.1,
    out_indices=(1,),
    insert=[
        dict(
            at='layer2',
            layer=dict(type='kronattn_mm.EfficientAttention2d', key_channels=4, value_channels=4),
        )
    ],
)


@MODELS.register_module()
class SmallClassifier(BaseModel):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = MODELS.build(backbone)
        self.head = nn.Linear(8, 2)

    def forward(self, inputs, labels, mode='tensor'):
        scores = self.head(self.backbone(inputs)[0].mean((2, 3)))
        if mode == 'loss':
            return dict(loss=nn.functional.cross_entropy(scores, labels))
        return scores


@METRICS.register_module()
class Score(BaseMetric):
    """Not a good measure, but one that every change of a weight changes."""

    def process(self, data_batch, data_samples):
        self.results += [float(scores.sum()) for scores in data_samples]

    def compute_metrics(self, results):
        return dict(score=sum(results))


class Noise(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator), index % 2


LOADER = dict(
    dataset=Noise(),
    batch_size=2,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'),
)


def run(
    work_dir,
    *hooks,
    epochs=2,
    load_from=None,
    resume=False,
    checkpoint=None,
    frozen=True,
    norms=False,
):
    hooks = list(hooks)
    if frozen:
        hooks.insert(0, dict(type='kronattn_mm.FreezeHook'))
    runner = Runner(
        SmallClassifier(dict(BACKBONE, norm_eval=not norms)),
        str(work_dir),
        LOADER,
        LOADER,
        train_cfg=dict(by_epoch=True, max_epochs=epochs),
        val_cfg=dict(),
        val_evaluator=dict(type='Score'),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=1.0)),
        custom_hooks=hooks,
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=1, **(checkpoint or {}))
        ),
        load_from=load_from,
        resume=resume,
        default_scope='mmengine',
        log_level='ERROR',
        randomness=dict(seed=0),
        experiment_name=f'{work_dir.name}_{epochs}',
    )
    runner.train()
    return runner


def state(path):
    return torch.load(path, map_location='cpu', weights_only=False)['state_dict']


def plain_file(folder):
    torch.manual_seed(3)
    path = folder / 'plain.pth'
    weights = SmallClassifier(BACKBONE).state_dict()
    torch.save(
        dict(state_dict={key: value for key, value in weights.items() if '.attention.' not in key}),
        path,
    )
    return str(path)


def names(folder):
    return sorted(path.name for path in folder.glob('*') if path.suffix in ('.pth', '.safetensors'))


def assert_gives_back(small, checkpoint, plain):
    """The plain weights and the small file are the checkpoint, bit for bit."""
    model = SmallClassifier(BACKBONE)
    model.load_state_dict(torch.load(plain)['state_dict'], strict=False)
    assert load_attention(model, small).same_base
    trained = state(checkpoint)
    assert all(torch.equal(value, trained[key]) for key, value in model.state_dict().items())
    return model


def test_a_file_beside_each_checkpoint(tmp_path):
    plain = plain_file(tmp_path)
    work_dir = tmp_path / 'run'
    runner = run(
        work_dir,
        dict(type='kronattn_mm.SmallFileHook', licence='CC0'),
        epochs=3,
        load_from=plain,
        checkpoint=dict(max_keep_ckpts=2, save_best='score', rule='greater'),
    )
    (best,) = work_dir.glob('best_score_epoch_*.pth')
    assert names(work_dir) == sorted(
        [
            'epoch_2.pth',
            'epoch_2_attention.safetensors',
            'epoch_3.pth',
            'epoch_3_attention.safetensors',
            best.name,
            f'{best.stem}_attention.safetensors',
        ]
    )
    for path in work_dir.glob('*.pth'):
        small = path.with_name(f'{path.stem}_attention.safetensors')
        model = assert_gives_back(small, path, plain)
        content = read_small_file(small)
        # The metrics are those of these weights, measured again here.
        model.eval()
        with torch.no_grad():
            images = torch.stack([Noise()[index][0] for index in range(len(Noise()))])
            score = float(model(images, None).sum())
        assert content.metrics == {'score': pytest.approx(score, rel=1e-4)}
        assert content.licence == 'CC0'
        assert content.base['moved'] == dict(statistics=0, weights=0, not_in_file=0)
    assert runner.epoch == 3


def test_averaged_weights_and_a_resumed_run(tmp_path):
    plain = plain_file(tmp_path)
    work_dir = tmp_path / 'run'
    hooks = [dict(type='EMAHook', momentum=0.3), dict(type='kronattn_mm.SmallFileHook')]
    run(work_dir, *hooks, epochs=1, load_from=plain)
    assert_gives_back(work_dir / 'epoch_1_attention.safetensors', work_dir / 'epoch_1.pth', plain)
    run(work_dir, *hooks, epochs=2, resume=True)
    small = work_dir / 'epoch_2_attention.safetensors'
    assert_gives_back(small, work_dir / 'epoch_2.pth', plain)
    # Known although the run was resumed: the checkpoint remembers what the run started from.
    assert read_small_file(small).base['moved'] == dict(statistics=0, weights=0, not_in_file=0)
    checkpoint = torch.load(work_dir / 'epoch_2.pth', weights_only=False)
    key = 'backbone.attention.layer2.reprojection.weight'
    assert not torch.equal(
        checkpoint['ema_state_dict'][f'module.{key}'], checkpoint['state_dict'][key]
    )


def test_a_trained_base_ends_the_run_before_it_begins(tmp_path):
    with pytest.raises(
        ValueError,
        match='parameters of the base are trained too, such as '
        'backbone.conv1.conv.weight.*FreezeHook',
    ):
        run(tmp_path, dict(type='kronattn_mm.SmallFileHook'), frozen=False)
    assert not list(tmp_path.glob('*.pth'))
    run(tmp_path, dict(type='kronattn_mm.SmallFileHook', allow_moved=True), frozen=False, epochs=1)
    moved = read_small_file(tmp_path / 'epoch_1_attention.safetensors').base['moved']
    assert moved['weights'] > 0 and moved['not_in_file'] == sum(
        value for name, value in moved.items() if name != 'not_in_file'
    )


def test_moved_statistics_are_noticed(tmp_path, caplog):
    from mmengine.hooks import Hook

    class FreezeWeightsOnly(Hook):
        def before_run(self, runner):
            for name, parameter in runner.model.named_parameters():
                parameter.requires_grad_('.attention.' in name)

    def train(folder, **options):
        return run(
            folder,
            FreezeWeightsOnly(),
            dict(type='kronattn_mm.SmallFileHook', **options),
            frozen=False,
            norms=True,
            epochs=1,
        )

    train(tmp_path / 'refused')
    assert names(tmp_path / 'refused') == ['epoch_1.pth'], 'the run goes on without the file'
    train(tmp_path / 'included', include_norms=True)
    content = read_small_file(tmp_path / 'included' / 'epoch_1_attention.safetensors')
    assert content.base['moved']['statistics'] > 0 and content.base['moved']['not_in_file'] == 0
    trained = state(tmp_path / 'included' / 'epoch_1.pth')
    key = 'backbone.conv1.bn.running_mean'
    assert torch.equal(content.tensors[key], trained[key])


@pytest.mark.parametrize(
    ('arguments', 'error', 'message'),
    [
        (dict(also=['hed']), ValueError, "has no module 'hed' with weights; did you mean 'head'"),
        (dict(also='head'), TypeError, "`also` must be a list of module paths, got 'head'"),
        (dict(include_norms='yes'), TypeError, "include_norms must be True or False, got 'yes'"),
        (dict(licence=None), TypeError, 'licence must be a text, got None'),
    ],
)
def test_misuse_is_told_before_the_first_step(arguments, error, message):
    from kronattn_mm.engine import SmallFileHook

    runner = type('Runner', (), dict(model=SmallClassifier(BACKBONE)))
    with pytest.raises(error, match=message):
        SmallFileHook(**arguments).before_run(runner)


def test_nothing_inserted(tmp_path: Path):
    class Plain(SmallClassifier):
        def __init__(self, backbone):
            super().__init__(dict(type='mmdet.MobileNetV2', widen_factor=0.1, out_indices=(1,)))

    runner = type('Runner', (), dict(model=Plain(None)))
    from kronattn_mm.engine import SmallFileHook

    with pytest.raises(ValueError, match='nothing is inserted into this Plain'):
        SmallFileHook().before_run(runner)
