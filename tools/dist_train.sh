#!/usr/bin/env bash
# Train on several GPUs (or, without a GPU, in several processes) of one or more machines.
#   tools/dist_train.sh CONFIG GPUS [arguments of train.py ...]
# More machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT, the same but NODE_RANK on each.
# PYTHON names another interpreter than the `python` that is active.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG GPUS [arguments of train.py ...]" >&2
    exit 2
fi
TOOLS="$(cd "$(dirname "$0")" && pwd)"

PYTHONPATH="$TOOLS/..:${PYTHONPATH:-}" exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node-rank="${NODE_RANK:-0}" \
    --master-addr="${MASTER_ADDR:-127.0.0.1}" \
    --master-port="${PORT:-29500}" \
    --nproc-per-node="$2" \
    "$TOOLS/train.py" "$1" --launcher pytorch "${@:3}"
