"""How every command of the pages is tested. **A new command in a page gets its line here.**

``COMMANDS`` maps a command, as ``documentation.shell_lines`` reads it, to one of

- ``Run``: tests/test_docs/test_page_commands.py runs it in a folder that has what the pages assume
  (its fixture ``desk``). ``instead`` exchanges what stands for the reader's own files or would
  take hours; ``more`` is added at the end; ``needs`` names a fixture or ``mim``. A dictionary
  ``STANDING_FOR`` holds what is exchanged in all commands;
- ``Elsewhere``: the named test runs the command or exactly what it runs;
- ``NotHere``: it cannot be run on a machine without GPU, cluster and downloads, for this reason.

A page in ``PAGES`` has a test of its own that reads all its commands and runs them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Run:
    instead: Mapping[str, str] = field(default_factory=dict)
    more: str = ''
    needs: str = ''


@dataclass(frozen=True)
class Elsewhere:
    test: str


@dataclass(frozen=True)
class NotHere:
    reason: str


# Words of the pages for the reader's own, by files of the desk; whole words only.
STANDING_FOR = {
    'CONFIG': 'attended.py',
    'CONFIG.py': 'attended.py',
    'my_config.py': 'attended.py',
    'CHECKPOINT': 'work_dirs/attended/epoch_1.pth',
    'WORK_DIR': 'work_dirs/attended',
    'IMAGE': 'photos/001.jpg',
    'IMAGE...': 'photos/001.jpg',
    'H W': '96 96',
    'FILE.png': 'drawn.png',
}

MAKEFILE = 'tests/test_setup/test_makefile.py'
PACKAGING = 'tests/test_packaging.py'
DATASETS = Elsewhere(
    'tests/test_datasets/test_documented_commands.py::test_every_command_of_the_page_works'
)
CONVERTING = Elsewhere(
    'tests/test_converters/test_documented_commands.py::test_every_command_of_the_page_works'
)
PAGES = {
    'docs/converting.md': CONVERTING,
    'docs/datasets.md': DATASETS,
    'docs/tutorial.md': Elsewhere(
        'tests/test_docs/test_tutorial.py::test_every_command_as_it_stands'
    ),
}
QUICKSTART = 'tests/test_tools/test_quickstart.py'
SSD = 'tests/test_configs/test_shift_and_balance_ssd_configs.py'
STUDY = Elsewhere('tests/test_studies/test_attended_convs.py::test_study_resumes_after_a_kill')
KANET = 'tests/test_configs/test_kanet_configs.py'
SEGMENTATION = 'tests/test_training/test_segmentation.py'
EA = 'configs/efficient_attention/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco'
CONTESTS = Elsewhere(
    'tests/test_benchmark/test_command.py::test_contests_by_the_beginning_of_their_names'
)
STEREO = 'configs/efficient_attention/stereo/psmnet'
STEREO_SMALL = 'configs/efficient_attention/stereo/small/psmnet_ea-out2_composed-pairs.py'
PAIRS = Elsewhere('tests/test_stereo/test_composed_pairs.py::test_a_set_is_made_reused_and_read')
STEREO_RUN = Elsewhere(
    'tests/test_stereo/test_stereo_training.py::test_stock_scripts_train_resume_and_test'
)
SHORT = 'train_cfg.max_epochs=1'
ONCE = '--repetitions 1'

COMMANDS: dict[str, Run | Elsewhere | NotHere] = {
    # README.md and CONTRIBUTING.md
    'make test': Elsewhere(f'{MAKEFILE}::test_tests_are_split_by_the_marker'),
    'make test-slow': Elsewhere(f'{MAKEFILE}::test_tests_are_split_by_the_marker'),
    'make test-originals': Elsewhere(
        f'{MAKEFILE}::test_the_originals_have_an_environment_of_their_own'
    ),
    'make lint': Elsewhere(f'{MAKEFILE}::test_lint_checks_rules_and_format'),
    'make docs': Elsewhere('tests/test_docs/test_build.py::test_pages_build_without_warnings'),
    'make quickstart': Elsewhere(f'{QUICKSTART}::test_digits_are_learned'),
    'make quickstart DATA=path/to/a/coco/folder': Elsewhere(f'{QUICKSTART}::test_made_photographs'),
    'make quickstart DATA=path/to/a/coco/folder '
    'ARGS="--classes person --weights mobilenet_v2.pth"': Elsewhere(
        f'{QUICKSTART}::test_real_photographs'
    ),
    'make quickstart DATA=<a COCO folder>': Elsewhere(f'{QUICKSTART}::test_made_photographs'),
    'pip install .': Elsewhere(f'{PACKAGING}::test_the_installed_wheel_works_alone'),
    'pip install -e .': Elsewhere(f'{PACKAGING}::test_editable_install_links_tools_and_configs'),
    "pip install '.[forks]'": Elsewhere(f'{PACKAGING}::test_extras_are_the_requirement_files'),
    "pip install '.[tools]'": Elsewhere(f'{PACKAGING}::test_extras_are_the_requirement_files'),
    "pip install 'setuptools<82'": NotHere(
        'it changes the environment that runs the tests; the originals are set up with it'
    ),
    'python tools/docs/config_table.py': Elsewhere(
        'tests/test_docs/test_config_table.py::test_nothing_is_stale'
    ),
    'python -m pytest tests/test_docs/test_doctests.py': Elsewhere(
        'tests/test_docs/test_doctests.py::test_examples'
    ),
    '.venv/bin/python -m pytest tests/test_layers/test_efficient_attention.py': Elsewhere(
        'tests/test_layers/test_efficient_attention.py::test_attention_maps'
    ),
    'kronattn doctor': Run(),
    'kronattn doctor --json': Run(),
    'kronattn points my_config.py': Run(),
    'kronattn points CONFIG': Run(),
    'kronattn summary my_config.py': Run(),
    'kronattn summary CONFIG': Run(),
    'kronattn cost CONFIG --shape H W': Run(),
    'kronattn cost --paper-table 2': Run(),
    'kronattn show CONFIG CHECKPOINT IMAGE': Run(),
    'kronattn report WORK_DIR': Run(),
    'kronattn ablate CONFIG CHECKPOINT': Run(),
    'kronattn bench --layer NAME': Run(
        {'NAME': 'EfficientAttention2d'}, more=f'--maps 14x20 {ONCE}'
    ),
    'kronattn convert KIND IN OUT': CONVERTING,
    'kronattn COMMAND --help': Elsewhere(
        'tests/test_docs/test_commands.py::test_help_names_the_options'
    ),
    'python tools/train.py CONFIG': Run(more=f'--cfg-options {SHORT}'),
    'python tools/train.py CONFIG --dry-run': Run(),
    'python tools/train.py my_config.py --dry-run': Run(),
    'tools/test.py CONFIG CHECKPOINT': Run({'tools/test.py': 'python tools/test.py'}),
    'tools/dist_train.sh CONFIG GPUS': Elsewhere(
        'tests/test_training/test_distributed.py::test_two_processes_stay_equal'
    ),
    'python tools/dataset_tools/check_coco_folder.py FOLDER': Run({'FOLDER': 'coco'}),
    'python tools/analysis_tools/benchmark.py --model CONFIG --batch 8 --shape 224 224': Run(
        more=ONCE
    ),
    'python tools/model_converters/mobilenetv2_to_kanet.py IN OUT': Run(
        {'IN': 'mobilenet_v2.pth', 'OUT': 'kanet_a.pth'}
    ),
    'python tools/studies/attended_convs.py --data FOLDER --out DIR': STUDY,
    'mim train kronattn_mm CONFIG': Run(more=f'--cfg-options {SHORT}', needs='mim'),
    'mim search kronattn_mm --dataset coco': Elsewhere(
        'tests/test_docs/test_config_table.py::test_mim_search_finds_them'
    ),
    'mim train onedl-mmdetection CONFIG': Run(more=f'--cfg-options {SHORT}', needs='mim'),
    # the READMEs of configs
    f'python tools/analysis_tools/cost.py {EA}.py': Run(),
    f'tools/dist_train.sh {EA}.py 8 --auto-scale-lr': NotHere('eight GPUs and COCO'),
    'python tools/train.py configs/efficient_attention/temporal_localization/'
    'r-c3d_r50_ea-res3-4_thumos14.py '
    '--cfg-options model.backbone.inflate_from=torchvision://resnet50': NotHere(
        "THUMOS'14 and torchvision's weights have to be downloaded"
    ),
    'tools/dist_train.sh configs/kronecker_attention/imagenet/kanet-kv_8xb64-150e_in1k.py 8': (
        NotHere('eight GPUs and ImageNet')
    ),
    'python tools/train.py configs/kronecker_attention/detection/ssdlite_kanet-kv_voc0712.py': (
        NotHere('Pascal VOC has to be downloaded; its small sibling is trained by the tests')
    ),
    'python tools/train.py configs/kronecker_attention/segmentation/'
    'deeplabv2_r101-d8_kao-kv_25k_voc12aug-321x321.py': Elsewhere(
        f'{SEGMENTATION}::test_training_on_a_made_set'
    ),
    'kronattn convert backbone work_dirs/.../epoch_300.pth mobilenetv2.pth --to mmdet --bare': Run(
        {'work_dirs/.../epoch_300.pth': 'classifier.pth'}
    ),
    'python tools/train.py configs/shift_and_balance/ssd/'
    'ssd_mobilenetv2-x0.5-sb_1xb32-200e_voc0712.py --cfg-options '
    'model.backbone.init_cfg.type=Pretrained '
    'model.backbone.init_cfg.checkpoint=mobilenetv2.pth': Elsewhere(
        f'{SSD}::test_shift_and_balance_trains_on_a_made_set'
    ),
    # docs/cost.md
    'python tools/analysis_tools/cost.py CONFIG.py': Run(),
    'python tools/analysis_tools/cost.py CONFIG.py --shape H W --json --chart FILE.png': Run(),
    'python tools/analysis_tools/plugin_summary.py CONFIG.py --shape H W --json': Run(),
    'python tools/analysis_tools/cost.py --paper-table 2': Run(),
    'python tools/analysis_tools/cost.py --paper-examples': Run(),
    'python tools/analysis_tools/cost.py --figure figure.png': Run(),
    'kronattn cost CONFIG': Run(),
    'kronattn cost my_config.py': Run(),
    # docs/efficient_attention.md
    'tools/dist_train.sh CONFIG 8 --auto-scale-lr': Elsewhere(
        'tests/test_training/test_distributed.py::test_two_processes_stay_equal'
    ),
    'GPUS=32 tools/slurm_train.sh PARTITION JOB CONFIG WORK_DIR': Elsewhere(
        'tests/test_docs/test_page_commands.py::test_slurm_is_asked_for_what_the_page_says'
    ),
    'python tools/train.py CONFIG --resume': Run(more='--cfg-options train_cfg.max_epochs=2'),
    'python tools/test.py CONFIG CHECKPOINT --show-dir pictures': Run(),
    # docs/insertion_life.md
    f'python tools/docs/frozen_memory.py {EA}.py': Run(),
    'kronattn ablate CONFIG CHECKPOINT --plain PLAIN.pth --strength 0,0.5,1': Run(),
    'kronattn strip CONFIG CHECKPOINT PLAIN.pth --images photos/*.jpg': Run(
        {'PLAIN.pth': 'stripped.pth'}
    ),
    'kronattn extract CONFIG CHECKPOINT attention.safetensors --plain PLAIN.pth '
    '--images photos/*.jpg': Run({'attention.safetensors': 'extracted.safetensors'}),
    'kronattn attach CONFIG PLAIN.pth attention.safetensors OUT.pth --images photos/*.jpg': Run(
        {'OUT.pth': 'attached.pth'}
    ),
    'kronattn inspect FILE': Run({'FILE': 'attention.safetensors'}),
    'kronattn report WORK_DIR --config CONFIG': Run(),
    # docs/insertion_points.md
    'kronattn points mmdet::retinanet/retinanet_r50_fpn_1x_coco.py': Run(),
    'kronattn points my_config.py backbone --shape 800 1333 --all': Run(),
    'python tools/docs/insertion_diagrams.py': Run(more='diagrams'),
    # docs/kanet.md
    'python tools/model_converters/mobilenetv2_to_kanet.py mobilenet_v2.pth kanet.pth': Run(
        {'kanet.pth': 'kanet_b.pth'}
    ),
    'python tools/model_converters/mobilenetv2_to_kanet.py '
    'mobilenet_v2_1.0_imagenet_mmdet.pth kanet.pth': Run({'kanet.pth': 'kanet_c.pth'}),
    'python tools/train.py configs/kronecker_attention/small/ssdlite_kanet-kv_bccd.py '
    '--cfg-options model.backbone.init_cfg.type=Pretrained '
    'model.backbone.init_cfg.checkpoint=kanet.pth': Elsewhere(
        f'{KANET}::test_detector_trains_on_voc_and_evaluates'
    ),
    'python tools/dataset_tools/unpack_image_archive.py cifar10_subset.npz data/cifar10': (
        Elsewhere('tests/test_tools/test_model_and_data_converters.py::test_real_archive')
    ),
    'python tools/train.py configs/kronecker_attention/small/kanet-kv_cifar10.py': Elsewhere(
        f'{KANET}::test_classifier_trains_on_folders_of_pictures'
    ),
    # docs/kronecker_attention.md
    'python tools/analysis_tools/benchmark.py --paper-table kao --threads 1 --memory kept '
    '--json FILE --png FILE.png': Run({'FILE': 'kao.json'}, more=ONCE),
    'KRONATTN_CAMVID_DATA=FOLDER python tools/train.py configs/kronecker_attention/segmentation/'
    'deeplabv2_mobilenet-v2-d16_kao-kv_120_camvid-161x161.py --work-dir work_dirs/kv '
    '--cfg-options model.backbone.init_cfg.type=Pretrained '
    'model.backbone.init_cfg.checkpoint=FILE': Elsewhere(
        f'{SEGMENTATION}::test_training_on_photographs'
    ),
    'KRONATTN_CAMVID_DATA=FOLDER python tools/test.py configs/kronecker_attention/segmentation/'
    'deeplabv2_mobilenet-v2-d16_kao-kv_120_camvid-161x161.py work_dirs/kv/iter_120.pth '
    '--show-dir pictures': Elsewhere(f'{SEGMENTATION}::test_training_on_photographs'),
    'python tools/docs/axis_variance.py WEIGHTS FOLDER --every 8': Run(
        {'WEIGHTS': '{shared}/weights/deeplab_mobilenet_v2_voc_backbone.pth', 'FOLDER': 'photos'},
        more='--every 4 --side 97',
        needs='shared',
    ),
    # docs/seeing_attention.md
    'python tools/analysis_tools/show_attention.py CONFIG CHECKPOINT IMAGE... --layer neck.fpn1 '
    '--maps 6 --out-dir out/attention_maps --device cpu --cfg-options KEY=VALUE': Run(
        {'KEY=VALUE': 'model.test_cfg.rcnn.max_per_img=50'}
    ),
    f'python tools/analysis_tools/show_attention.py {EA}.py '
    'work_dirs/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco/epoch_24.pth photos/*.jpg '
    '--layer neck.fpn1': Run(
        {
            f'{EA}.py': 'attended.py',
            'work_dirs/mask-rcnn_r50_fpn_ea-res3-4-fpn1-5_32xb2-24e_coco/epoch_24.pth': (
                'work_dirs/attended/epoch_1.pth'
            ),
        },
        more='--out-dir out/others',
    ),
    # docs/shift_and_balance.md
    'cd configs/shift_and_balance/classification/imagenet && kronattn bench --threads 2 '
    '--batch 8 --shape 224 224 --repetitions 25 --model mobilenetv2-x1.0_static_4xb64-300e_in1k.py '
    'mobilenetv2-x1.0_sb-3_4xb64-300e_in1k.py mobilenetv2-x1.0_se-3_4xb64-300e_in1k.py '
    'mobilenetv2-x1.0_dyconv_4xb64-300e_in1k.py': Run(
        {'--batch 8': '--batch 1', '--repetitions 25': ONCE, '--shape 224 224': '--shape 64 64'}
    ),
    'OMP_NUM_THREADS=1 python tools/studies/attended_convs.py --data cls_mini --out study '
    '--widths 0.35 --variants static se-3 sb-1 sb-3 --epochs 8 --seeds 0 1 --cfg-options '
    'model.backbone.strides=[2,1,1,2,2,1,2,1]': STUDY,
    'OMP_NUM_THREADS=1 python tools/studies/attended_convs.py --data cls_mini --out place '
    '--widths 0.35 --variants sb-3 --place after_norm --epochs 8 --seeds 0 1 --cfg-options '
    'model.backbone.strides=[2,1,1,2,2,1,2,1]': STUDY,
    'python tools/studies/gate_saturation.py study/runs/x0.35_se-3_seed0 '
    'study/runs/x0.35_se-3_seed1 study/runs/x0.35_sb-3_seed0 study/runs/x0.35_sb-3_seed1 '
    '--png shift_and_balance_gates.png': STUDY,
    # docs/shift_and_balance_ssd.md
    'python mmdet/.mim/tools/train.py configs/shift_and_balance/ssd/small/'
    'ssd_mobilenetv2-x0.5-sb_bccd.py --cfg-options train_dataloader.dataset.data_root=BCCD/ '
    'val_dataloader.dataset.data_root=BCCD/ test_dataloader.dataset.data_root=BCCD/': Elsewhere(
        f'{SSD}::test_shift_and_balance_trains_on_blood_cells'
    ),
    'python mmdet/.mim/tools/train.py configs/shift_and_balance/ssd/small/'
    'ssd_mobilenetv2-x1.0-sb_voc-mini.py --cfg-options '
    'train_dataloader.dataset.dataset.data_root=VOC/ val_dataloader.dataset.data_root=VOC/ '
    'test_dataloader.dataset.data_root=VOC/ '
    'model.backbone.init_cfg.checkpoint=mobilenet_v2_1.0_imagenet_mmdet.pth': Elsewhere(
        f'{SSD}::test_shift_and_balance_trains_on_a_made_set'
    ),
    'python tools/docs/attention_start.py mobilenet_v2_1.0_imagenet_mmdet.pth '
    'VOC/VOC2007/JPEGImages': Run({'VOC/VOC2007/JPEGImages': 'photos'}),
    # docs/performance.md
    'kronattn bench --contests --threads 2 --page docs/performance.md': CONTESTS,
    'kronattn bench --contests ea-': CONTESTS,
    'kronattn bench --layer EfficientAttention2d --maps 14x20 56x80 --training --png ea.png '
    '--json ea.json': Run(more=ONCE),
    'kronattn bench --layer ShiftBalanceConv2d --set kernel_size=1 --channels 96 --batch 8 '
    '--device cuda --dtype bfloat16': Run({'--device cuda': '--device cpu'}, more=ONCE),
    'kronattn bench --model CONFIG --batch 2 --shape 320 320 --training': Run(more=ONCE),
    # docs/gpu.md
    'python -m pytest tests/test_ops/test_triton.py': Elsewhere(
        'tests/test_ops/test_triton.py::test_under_the_interpreter'
    ),
    'python -m pytest tests/test_ops/test_triton.py -m slow': Elsewhere(
        'tests/test_ops/test_triton.py::test_compiled_for_cards_that_are_not_there'
    ),
    'python -m pytest tests/test_ops/test_cuda.py': Elsewhere(
        'tests/test_ops/test_cuda.py::test_layers_under_autocast'
    ),
    'CUDA_VISIBLE_DEVICES=0 PYTHONPATH=. python -m pytest tests/test_ops/test_cuda.py': NotHere(
        'it needs a GPU; without one the line above runs the part that does not'
    ),
    'PYTHONPATH=. python tools/analysis_tools/gpu_kernels.py --dtypes bfloat16 float32 '
    '--json gpu.json': NotHere('it needs a GPU'),
    # docs/deployment.md and docs/support.md
    'kronattn export CONFIG CHECKPOINT --out FILE.onnx --images IMAGE ... --normalize '
    '--part features': Run({'FILE.onnx': 'features.onnx', 'IMAGE ...': 'photos/001.jpg'}),
    'kronattn export CONFIG CHECKPOINT --normalize --images photos/*.jpg': Run(
        more='--part features --out normalized.onnx'
    ),
    'kronattn export CONFIG CHECKPOINT --fix batch height width --batch 1 --shape 512 512': Run(
        {'--shape 512 512': '--shape 96 96'}, more='--part features --out fixed.onnx'
    ),
    'kronattn support --page docs/support.md': Elsewhere(
        'tests/test_deployment/test_support.py::test_rows_are_exchanged_in_a_page'
    ),
    'pip install onedl-mmdeploy': NotHere('it does not install where the tests run, see the page'),
    'pip download --no-deps --platform win_amd64 --python-version 3.10 --only-binary :all: '
    'onedl-mmdeploy': NotHere('it downloads'),
    'pip install --target mmdeploy_python --no-deps aenum multiprocess dill prettytable '
    'terminaltables six wcwidth grpcio': NotHere('it downloads'),
    'PYTHONPATH=mmdeploy_python python my_conversion.py': NotHere('it needs the download above'),
    # docs/stereo.md and its README
    f'kronattn cost {STEREO}_ea-out2_8xb3-100e_sceneflow.py --shape 540 960': Run(),
    f'kronattn cost {STEREO}_nl-out2_8xb3-100e_sceneflow.py --shape 540 960': Run(),
    f'tools/dist_train.sh {STEREO}_ea-out2_8xb3-100e_sceneflow.py 8': NotHere(
        'eight GPUs and Scene Flow'
    ),
    'python tools/dataset_tools/make_stereo_pairs.py PHOTOGRAPHS data/stereo_pairs --train 600 '
    '--val 60': PAIRS,
    'python tools/dataset_tools/make_stereo_pairs.py COCO_FOLDER data/stereo_pairs --train 600 '
    '--val 60': PAIRS,
    'python tools/dataset_tools/make_stereo_pairs.py data/digits data/digit_pairs --train 1 '
    '--val 12': PAIRS,
    'python tools/dataset_tools/make_digit_scenes.py data/digits --train 8 --val 12': Run(
        {'data/digits': 'digits'}
    ),
    'python tools/analysis_tools/stereo_baselines.py data/stereo_pairs': Elsewhere(
        'tests/test_stereo/test_stereo_baselines.py::test_the_command'
    ),
    'python tools/train.py configs/efficient_attention/stereo/small/psmnet_composed-pairs.py': (
        STEREO_RUN
    ),
    f'python tools/test.py {STEREO_SMALL} '
    'work_dirs/psmnet_ea-out2_composed-pairs/epoch_10.pth '
    '--cfg-options model.neck.insert.0.enabled=False': STEREO_RUN,
    f'python tools/test.py {STEREO_SMALL} '
    'work_dirs/psmnet_ea-out2_composed-pairs/epoch_10.pth --show-dir pictures '
    '--cfg-options test_dataloader.dataset.data_root=data/digit_pairs/': STEREO_RUN,
    f'python tools/train.py {STEREO_SMALL}': STEREO_RUN,
    # docs/datasets.md in README.md
    'kronattn check-data CONFIG': Run(),
    'python tools/dataset_tools/prepare_coco.py': DATASETS,
    'kronattn export CONFIG CHECKPOINT': Run(more='--part features --out model.onnx'),
    # docs/temporal_localization.md
    'python tools/dataset_tools/make_action_clips.py COCO_FOLDER data/action_clips --train 120 '
    '--val 40': Elsewhere('tests/test_temporal/test_action_clips.py::test_layout_and_split'),
    'python tools/train.py configs/efficient_attention/temporal_localization/'
    'r-c3d_small_ea-res3-4_action-clips.py': Elsewhere(
        'tests/test_temporal/test_training.py::test_two_steps_a_validation_its_pictures_and_a_test'
    ),
    'python tools/dataset_tools/make_digit_scenes.py data/digits --train 24 --val 12': Run(
        {'data/digits': 'digits', '--train 24 --val 12': '--train 8 --val 12'}
    ),
    'python tools/dataset_tools/make_action_clips.py data/digits data/digit_clips --train 1 '
    '--val 12': Elsewhere('tests/test_temporal/test_action_clips.py::test_layout_and_split'),
    'python tools/test.py configs/efficient_attention/temporal_localization/'
    'r-c3d_small_ea-res3-4_action-clips.py '
    'work_dirs/r-c3d_small_ea-res3-4_action-clips/epoch_12.pth '
    '--cfg-options test_dataloader.dataset.data_root=data/digit_clips/': Elsewhere(
        'tests/test_temporal/test_training.py::test_two_steps_a_validation_its_pictures_and_a_test'
    ),
    'python tools/analysis_tools/temporal_chance.py data/action_clips/annotations.json': (
        Elsewhere(
            'tests/test_temporal/test_training.py::test_chance_is_low_and_labels_alone_matter'
        )
    ),
    'python tools/docs/deployment_speed.py configs/shift_and_balance/classification/imagenet/'
    'mobilenetv2-x1.0_sb-1_4xb64-300e_in1k.py --shape 224 224 --threads 2 --repetitions 21': Run(
        {'--shape 224 224': '--shape 64 64', '--repetitions 21': '--repetitions 3'}
    ),
    'python tools/docs/deployment_speed.py configs/kronecker_attention/segmentation/'
    'deeplabv2_mobilenet-v2-d16_kao-qkv_120_voc-161x161.py --shape 321 321 --threads 2': Run(
        {'--shape 321 321': '--shape 65 65'}, more='--repetitions 3'
    ),
    # docs/troubleshooting.md
    'pip download --no-deps --no-build-isolation --no-binary mmcv mmcv==2.1.0': NotHere(
        'it downloads; set-up fetches the source in the same way where there is no wheel'
    ),
    'pip wheel --no-deps --no-build-isolation ./mmcv-2.1.0': NotHere(
        'compiling takes eight minutes on two cores and needs another torch than that of the tests'
    ),
}
