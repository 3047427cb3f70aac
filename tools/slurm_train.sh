#!/usr/bin/env bash
# Train under Slurm, one task for each GPU.
#   [GPUS=32] [GPUS_PER_NODE=8] [CPUS_PER_TASK=5] [SRUN_ARGS="--time=24:00:00"] \
#       tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py ...]
# PYTHON names another interpreter than the `python` that is active.
set -euo pipefail
if [ $# -lt 4 ]; then
    echo "usage: $0 PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py ...]" >&2
    exit 2
fi
TOOLS="$(cd "$(dirname "$0")" && pwd)"
GPUS_PER_NODE="${GPUS_PER_NODE:-8}"

# SRUN_ARGS holds several arguments, so it stays unquoted.
# shellcheck disable=SC2086
PYTHONPATH="$TOOLS/..:${PYTHONPATH:-}" exec srun \
    --partition="$1" \
    --job-name="$2" \
    --gres="gpu:$GPUS_PER_NODE" \
    --ntasks="${GPUS:-8}" \
    --ntasks-per-node="$GPUS_PER_NODE" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$TOOLS/train.py" "$3" --work-dir "$4" --launcher slurm "${@:5}"
