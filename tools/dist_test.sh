#!/usr/bin/env bash
# Evaluate on several GPUs (or, without a GPU, in several processes) of one or more machines.
#   tools/dist_test.sh CONFIG CHECKPOINT GPUS [arguments of test.py ...]
# More machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT, the same but NODE_RANK on each.
# PYTHON names another interpreter than the `python` that is active.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 CONFIG CHECKPOINT GPUS [arguments of test.py ...]" >&2
    exit 2
fi
TOOLS="$(cd "$(dirname "$0")" && pwd)"

PYTHONPATH="$TOOLS/..:${PYTHONPATH:-}" exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node-rank="${NODE_RANK:-0}" \
    --master-addr="${MASTER_ADDR:-127.0.0.1}" \
    --master-port="${PORT:-29500}" \
    --nproc-per-node="$3" \
    "$TOOLS/test.py" "$1" "$2" --launcher pytorch "${@:4}"
