"""The hook inside mmengine's runner: pictures in every backend, and training as without it."""

import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip('mmdet')
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel, ImgDataPreprocessor
from mmengine.registry import VISBACKENDS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer
from mmengine.visualization.vis_backend import BaseVisBackend
from torch.utils.data import Dataset

from kronattn_mm.engine import AttentionMapHook
from kronattn_mm.plugging import Plugged, inserted_layers
from kronattn_mm.visualization import MapRecorder

HOOK = dict(type='kronattn_mm.AttentionMapHook', layer='backbone.res1', num_images=3, maps=2)


@pytest.fixture(autouse=True, scope='module')
def one_thread():
    """Tensors here are so small that handing them to more threads costs more than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Stripes(Dataset):
    """Images of two kinds and two sizes."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        shape = (3, 40, 56) if index % 3 else (3, 48, 32)
        image = torch.randint(0, 120, shape, generator=generator, dtype=torch.uint8)
        image[:, ::2] += 100 * (index % 2)
        sample = BaseDataElement(
            metainfo=dict(
                img_path=f'folder/stripes_{index}.png', ori_shape=shape[1:], img_shape=shape[1:]
            )
        )
        sample.label = torch.tensor(index % 2)
        return dict(inputs=image, data_samples=sample)


class Classifier(BaseModel):
    """A plugged backbone with something random in it, so that a used-up random number shows."""

    def __init__(self):
        super().__init__(ImgDataPreprocessor([120.0] * 3, [60.0] * 3, pad_size_divisor=32))
        layer = dict(
            type='kronattn_mm.EfficientAttention2d',
            key_channels=8,
            value_channels=8,
            zero_init=False,
        )
        self.backbone = Plugged(
            'mmdet.ResNet',
            [dict(at='res1+res2', layer=layer)],
            depth=18,
            base_channels=8,
            num_stages=2,
            norm_eval=False,
            strides=(1, 2),
            dilations=(1, 1),
            out_indices=(1,),
        )
        self.fc = torch.nn.Linear(16, 2)
        self.dropout = torch.nn.Dropout(0.2)
        self.iterations = 0

    def extract_feat(self, inputs):
        return self.backbone(inputs)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        logits = self.fc(self.dropout(self.backbone(inputs)[0].mean((2, 3))))
        if mode == 'loss':
            assert all(module.training for module in self.modules())
            self.iterations += 1
            labels = torch.stack([sample.label for sample in data_samples])
            return dict(loss=torch.nn.functional.cross_entropy(logits, labels))
        return data_samples


class Nothing(BaseMetric):
    def process(self, data_batch, data_samples):
        assert not torch.is_grad_enabled()
        self.results += [0 for _ in data_samples]

    def compute_metrics(self, results):
        return dict(count=len(results))


@VISBACKENDS.register_module(force=True)
class KeepingBackend(BaseVisBackend):
    """A second backend beside the local one."""

    kept: list = []

    def _init_env(self):
        pass

    @property
    def experiment(self):
        return self

    def add_image(self, name, image, step=0, **kwargs):
        self.kept.append((name, image, step))


@pytest.fixture(autouse=True)
def empty_backend():
    KeepingBackend.kept.clear()


def runner(folder: Path, hooks=(), by_epoch=True, **settings) -> Runner:
    torch.manual_seed(0)
    loader = dict(dataset=Stripes(), batch_size=2, num_workers=0, collate_fn=pseudo_collate)
    loop = (
        dict(by_epoch=True, max_epochs=2)
        if by_epoch
        else dict(by_epoch=False, max_iters=6, val_interval=2)
    )
    Visualizer._instance_dict.clear()
    config = dict(
        model=Classifier(),
        work_dir=str(folder),
        train_dataloader=dict(sampler=dict(type='DefaultSampler', shuffle=True), **loader),
        train_cfg=loop,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.05)),
        val_dataloader=dict(sampler=dict(type='DefaultSampler', shuffle=False), **loader),
        val_cfg=dict(),
        val_evaluator=[Nothing()],
        custom_hooks=list(hooks),
        visualizer=dict(
            type='Visualizer',
            vis_backends=[dict(type='LocalVisBackend'), dict(type='KeepingBackend')],
        ),
        default_scope='mmengine',
        experiment_name=folder.name,
        log_level='ERROR',
        randomness=dict(seed=0),
    )
    config.update(settings)
    return Runner(**config)


def test_pictures_reach_every_backend(tmp_path):
    run = runner(tmp_path, [HOOK])
    run.train()
    expected = [
        (f'attention_backbone.res1_{image}', epoch) for epoch in (1, 2) for image in range(3)
    ]
    assert [(name, step) for name, _, step in KeepingBackend.kept] == expected
    for _, picture, _ in KeepingBackend.kept:
        assert picture.dtype == np.uint8 and picture.shape[2] == 3 and picture.std() > 20
    files = sorted(path.name for path in tmp_path.rglob('attention_*.png'))
    assert files == sorted(f'{name}_{step}.png' for name, step in expected)
    # The layer has learnt between the two validations.
    assert not np.array_equal(KeepingBackend.kept[0][1], KeepingBackend.kept[3][1])


@pytest.mark.parametrize('layer', ['backbone.res1', None])
def test_training_is_the_same_with_and_without(tmp_path, layer):
    states, random_states = [], []
    for name, hooks in (('without', []), ('with', [dict(HOOK, layer=layer)])):
        run = runner(tmp_path / name, hooks)
        run.train()
        states.append(run.model.state_dict())
        random_states.append((torch.get_rng_state(), np.random.get_state()[1]))
    assert KeepingBackend.kept
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), key
    assert torch.equal(random_states[0][0], random_states[1][0])
    assert np.array_equal(random_states[0][1], random_states[1][1])


def test_nothing_is_kept(tmp_path):
    run = runner(tmp_path, [HOOK])
    run.train()
    hook = next(hook for hook in run.hooks if isinstance(hook, AttentionMapHook))
    assert hook._recorder is None
    for insertion in inserted_layers(run.model).values():
        assert not insertion.layer._forward_pre_hooks
    # Plugged itself has none on the backbone, as no layer has a norm
    assert not run.model.backbone._forward_pre_hooks


def test_averaged_weights_are_shown_where_they_are_validated(tmp_path, monkeypatch):
    shown = []

    def draw(self, runner, recorder, data_batch, outputs):
        shown.append(recorder.maps.clone())
        self._drawn += len(recorder.maps)

    monkeypatch.setattr(AttentionMapHook, '_draw', draw)
    run = runner(
        tmp_path,
        [
            dict(HOOK, num_images=2),
            dict(type='EMAHook', ema_type='ExponentialMovingAverage', momentum=0.1),
        ],
    )
    run.train()
    averaged = next(hook for hook in run.hooks if hasattr(hook, 'ema_model')).ema_model.module
    batch = run.model.data_preprocessor(pseudo_collate([Stripes()[0], Stripes()[1]]))

    def maps_of(model):
        with torch.no_grad(), MapRecorder(model.eval(), 'backbone.res1') as recorder:
            model(**batch)
        return recorder.maps

    assert torch.equal(shown[-1], maps_of(averaged))
    assert not torch.equal(shown[-1], maps_of(run.model))


def test_an_unknown_layer_ends_the_run_before_the_first_iteration(tmp_path):
    run = runner(tmp_path, [dict(HOOK, layer='backbone.res9')])
    with pytest.raises(
        ValueError,
        match="'backbone.res9'; did you mean 'backbone.res[12]'.*backbone.res1, backbone.res2",
    ):
        run.train()
    assert run.model.iterations == 0


def test_interval_counts_validations(tmp_path):
    runner(tmp_path / 'epochs', [dict(HOOK, interval=2, num_images=1)]).train()
    assert [step for _, _, step in KeepingBackend.kept] == [2]
    KeepingBackend.kept.clear()
    runner(tmp_path / 'iterations', [dict(HOOK, interval=2, num_images=1)], by_epoch=False).train()
    assert [step for _, _, step in KeepingBackend.kept] == [4]


def test_a_validation_by_itself_is_drawn(tmp_path):
    run = runner(
        tmp_path,
        [dict(HOOK, interval=5, num_images=50)],
        train_dataloader=None,
        train_cfg=None,
        optim_wrapper=None,
    )
    run.val()
    assert len(KeepingBackend.kept) == 8  # the whole set, where more are asked for


def test_only_the_main_process_draws(tmp_path, monkeypatch):
    monkeypatch.setattr('kronattn_mm.engine.attention_map_hook.is_main_process', lambda: False)
    runner(tmp_path, [HOOK]).train()
    assert not KeepingBackend.kept


def test_what_cannot_be_drawn_does_not_end_the_training(tmp_path, monkeypatch, caplog):
    warned = []
    monkeypatch.setattr(
        'kronattn_mm.engine.attention_map_hook.print_log',
        lambda text, logger, level: warned.append((text, level)),
    )
    hook = AttentionMapHook(layer='backbone.res1')
    hook._name = 'backbone.res1'
    hook._recorder = MapRecorder(Classifier(), 'backbone.res1')  # and the model is not run
    hook.after_val_iter(SimpleNamespace(), 0, {}, [])
    assert len(warned) == 1 and 'was not called' in warned[0][0]
    assert warned[0][1] == logging.WARNING
    assert hook._drawn == hook.num_images  # not once more for each batch


def test_distributed_models_are_unwrapped(tmp_path):
    from mmengine.model import MMDistributedDataParallel

    store = torch.distributed.FileStore(str(tmp_path / 'store'), 1)
    torch.distributed.init_process_group('gloo', store=store, rank=0, world_size=1)
    try:
        model = MMDistributedDataParallel(Classifier())
        drawn = []
        run = SimpleNamespace(
            model=model,
            train_loop=None,
            epoch=0,
            iter=0,
            visualizer=SimpleNamespace(add_image=lambda *args, **kw: drawn.append(args[0])),
        )
        hook = AttentionMapHook()
        hook.before_run(run)
        hook.before_val_epoch(run)
        batch = pseudo_collate([Stripes()[0], Stripes()[1]])
        hook.before_val_iter(run, 0, batch)
        with torch.no_grad():
            outputs = model.eval().val_step(batch)
        hook.after_val_iter(run, 0, batch, outputs)
    finally:
        torch.distributed.destroy_process_group()
    assert drawn == ['attention_backbone.res1_0', 'attention_backbone.res1_1']


@pytest.mark.parametrize(
    'arguments, error, words',
    [
        (dict(interval=0), ValueError, 'interval must be at least 1, got 0'),
        (dict(num_images=1.5), TypeError, 'num_images must be an integer, got 1.5'),
        (dict(maps=True), TypeError, 'maps must be an integer, got True'),
        (dict(layer=3), TypeError, 'name of an inserted layer, got 3'),
        (dict(layers='neck.fpn1'), TypeError, 'layers'),
    ],
)
def test_wrong_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        AttentionMapHook(**arguments)


def test_a_config_can_name_the_hook():
    from mmengine.registry import HOOKS

    config = Config(dict(hook=HOOK))
    assert isinstance(HOOKS.build(config.hook), AttentionMapHook)
