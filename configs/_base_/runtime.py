# mmdet's default runtime, and hooks that every training here runs with. A config that sets
# `custom_hooks` of its own replaces the list.
_base_ = 'mmdet::_base_/default_runtime.py'

custom_imports = dict(imports=['kronattn_mm'], allow_failed_imports=False)
custom_hooks = [
    # Says at the start what is inserted where, what it costs, and what of it is trained.
    dict(type='kronattn_mm.AttentionStatusHook'),
    # Stops with a message when the loss is not finite, rather than after a night of it.
    dict(type='CheckInvalidLossHook', interval=50),
    # Random numbers of an epoch depend on seed and epoch only, so a resumed run goes on exactly.
    dict(type='kronattn_mm.EpochSeed'),
    # Four pictures with ground truth and predictions at each validation, in
    # <work dir>/<time stamp>/vis_data/vis_image and in any other backend of the visualizer.
    dict(type='kronattn_mm.ValidationPictures', number=4),
]
