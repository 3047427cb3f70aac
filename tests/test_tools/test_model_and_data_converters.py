"""The converter of MobileNetV2 weights and the unpacker of picture archives, as users call them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def load_tool(folder: str, name: str) -> ModuleType:
    path = ROOT / 'tools' / folder / f'{name}.py'
    spec = importlib.util.spec_from_file_location(f'{folder}_{name}', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- weights -------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def converter() -> ModuleType:
    pytest.importorskip('mmcv')
    return load_tool('model_converters', 'mobilenetv2_to_kanet')


def save_mobilenet(path: Path, prefix: str = '', **arguments) -> dict[str, torch.Tensor]:
    from kronattn_mm.models.backbones.kanet import KANet

    model = KANet('mobilenetv2', **arguments)
    model.init_weights()
    for module in model.modules():  # trained statistics are not 0 and 1
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    torch.save(
        dict(state_dict={f'{prefix}{key}': value for key, value in model.state_dict().items()}),
        path,
    )
    return model.state_dict()


@pytest.mark.parametrize('arch', ['kanet', 'mobilenetv2_kao', 'kanet_without_kao'])
def test_converted_network_is_mobilenetv2_less_the_dropped_channels(
    converter: ModuleType, tmp_path: Path, arch: str, capsys
) -> None:
    from kronattn_mm.models.backbones.kanet import KANet

    source = save_mobilenet(tmp_path / 'mobilenet.pth', prefix='backbone.', widen_factor=0.25)
    code = converter.main(
        [
            str(tmp_path / 'mobilenet.pth'),
            str(tmp_path / 'new' / 'kanet.pth'),
            '--arch',
            arch,
            '--widen-factor',
            '0.25',
        ]
    )
    assert code == 0, capsys.readouterr().err
    file = torch.load(tmp_path / 'new' / 'kanet.pth', weights_only=True)
    assert list((tmp_path / 'new').iterdir()) == [tmp_path / 'new' / 'kanet.pth']
    kanet = KANet(arch, widen_factor=0.25).eval()
    kanet.load_state_dict(file['state_dict'], strict=True)

    # MobileNetV2 without the hidden channels that gave way: their columns set to zero.
    mobilenet = KANet('mobilenetv2', widen_factor=0.25).eval()
    pruned = dict(source)
    for name, module in kanet.named_modules():
        if not hasattr(module, 'linear_conv') or not (module.joins_input or module.uses_attention):
            continue
        made = module.expand_conv.conv.out_channels
        column = module.linear_conv.conv.weight
        assert not column[:, made:].any(), 'the new channels start without weight'
        theirs = source[f'{name}.linear_conv.conv.weight']
        importance = source[f'{name}.depthwise_conv.bn.weight'].abs() * theirs.flatten(1).norm(
            dim=0
        )
        dropped = importance.argsort()[: theirs.shape[1] - made]
        pruned[f'{name}.linear_conv.conv.weight'] = theirs.index_fill(1, dropped, 0.0)
    mobilenet.load_state_dict(pruned)
    x = torch.randn(1, 3, 64, 48)
    torch.testing.assert_close(kanet(x)[0], mobilenet(x)[0], rtol=1e-3, atol=1e-4)


def test_new_channels_learn(converter: ModuleType, tmp_path: Path) -> None:
    from kronattn_mm.models.backbones.kanet import KANet

    save_mobilenet(tmp_path / 'mobilenet.pth', widen_factor=0.25)
    assert (
        converter.main(
            [str(tmp_path / 'mobilenet.pth'), str(tmp_path / 'kanet.pth'), '--widen-factor', '0.25']
        )
        == 0
    )
    model = KANet(
        widen_factor=0.25, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'kanet.pth'))
    )
    model.init_weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (out,) = model(torch.randn(2, 3, 64, 64))
        (out * torch.randn_like(out)).mean().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        if 'attention.values' in name:
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (None, 'there is no file'),
        (b'not a checkpoint', 'cannot be read as a checkpoint'),
        (dict(state_dict=dict(a=torch.zeros(1))), 'is it a MobileNetV2 of mmdet?'),
        ([1], 'holds no state_dict'),
    ],
)
def test_bad_checkpoints(
    converter: ModuleType, tmp_path: Path, capsys, content, message: str
) -> None:
    file = tmp_path / 'in.pth'
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    assert converter.main([str(file), str(tmp_path / 'out.pth')]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / 'out.pth').exists()


def test_other_width_is_named(converter: ModuleType, tmp_path: Path, capsys) -> None:
    save_mobilenet(tmp_path / 'in.pth', widen_factor=0.25)
    assert converter.main([str(tmp_path / 'in.pth'), str(tmp_path / 'out.pth')]) == 1
    assert 'is --widen-factor right?' in capsys.readouterr().err


def test_real_weights(converter: ModuleType, shared: Path, tmp_path: Path) -> None:
    file = shared / 'weights' / 'mobilenet_v2_1.0_imagenet_mmdet.pth'
    assert converter.main([str(file), str(tmp_path / 'kanet.pth')]) == 0


# -- pictures ------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def unpacker() -> ModuleType:
    return load_tool('dataset_tools', 'unpack_image_archive')


def arrays(number: int = 4) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    content = dict(classes=np.array(['cat', 'dog']))
    for split in ('train', 'test'):
        files = [
            cv2.imencode('.jpg', generator.integers(0, 256, (8, 8, 3), np.uint8))[1].ravel()
            for _ in range(number)
        ]
        content[f'{split}_jpeg'] = np.concatenate(files)
        content[f'{split}_offset'] = np.cumsum([0, *map(len, files)])
        content[f'{split}_label'] = (np.arange(number) % 2).astype(np.uint8)
    return content


def test_unpacked_pictures_are_the_packed_ones(
    unpacker: ModuleType, tmp_path: Path, capsys
) -> None:
    content = arrays()
    np.savez(tmp_path / 'set.npz', **content)
    assert unpacker.main([str(tmp_path / 'set.npz'), str(tmp_path / 'set')]) == 0
    assert '4 train, 4 test' in capsys.readouterr().out
    assert sorted(
        p.relative_to(tmp_path / 'set').as_posix() for p in (tmp_path / 'set').rglob('*.jpg')
    )[:2] == ['test/cat/00000.jpg', 'test/cat/00002.jpg']
    first, second = content['train_offset'][1:3]
    assert (tmp_path / 'set/train/dog/00001.jpg').read_bytes() == content['train_jpeg'][
        first:second
    ].tobytes()
    assert not list(tmp_path.glob('*.part'))
    assert unpacker.main([str(tmp_path / 'set.npz'), str(tmp_path / 'set')]) == 1
    assert 'exists; remove it or name another folder' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(classes=None), 'lacks classes; it has'),
        (
            dict(train_label=np.array([0, 1, 2, 0], np.uint8)),
            'goes up to 2, but there are 2 classes',
        ),
        (dict(test_offset=np.arange(3)), 'test_offset does not fit test_label and test_jpeg'),
        (None, 'is no .npz file that can be read'),
    ],
)
def test_bad_archives(
    unpacker: ModuleType, tmp_path: Path, capsys, change: dict | None, message: str
) -> None:
    if change is None:
        (tmp_path / 'set.npz').write_text('nothing')
    else:
        np.savez(
            tmp_path / 'set.npz',
            **{key: value for key, value in {**arrays(), **change}.items() if value is not None},
        )
    assert unpacker.main([str(tmp_path / 'set.npz'), str(tmp_path / 'set')]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / 'set').exists()


def test_missing_archive(unpacker: ModuleType, tmp_path: Path, capsys) -> None:
    assert unpacker.main([str(tmp_path / 'no.npz'), str(tmp_path / 'set')]) == 1
    assert 'there is no file' in capsys.readouterr().err


def test_real_archive(unpacker: ModuleType, shared: Path, tmp_path: Path) -> None:
    archive = shared / 'data' / 'cls_mini' / 'cifar10_subset.npz'
    assert unpacker.unpack(archive, tmp_path / 'cifar10') == dict(train=10000, test=2000)
    assert len(list((tmp_path / 'cifar10' / 'test' / 'frog').iterdir())) == 200
