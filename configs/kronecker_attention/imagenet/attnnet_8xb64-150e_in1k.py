# AttnNet (arXiv 2007.08442, table 4): KANet with the regular attention operator, in which every
# position attends to every position. The coefficients pass a batch norm as in KANet, for a
# comparison "in fair settings"; the paper says it of its own operators only.
_base_ = './kanet-kv_8xb64-150e_in1k.py'

model = dict(
    backbone=dict(
        attention=dict(
            _delete_=True,
            type='kronattn_mm.UnfoldedAttention2d',
            transforms='v',
            pooling=False,
            residual=False,
            coefficient_norm='batch_norm',
        )
    )
)
