#!/bin/bash
GPUS=$(nvidia-smi --list-gpus | wc -l)
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
STAMP=`date +%Y%m%d`
HEADS=$(expr 4 \* 4)
HIDDEN=$(echo "$HEADS * 64" | bc)
source $ROOT/settings.sh
if command -v numactl > /dev/null; then BIND="numactl --interleave=all"; fi
if [ -f $ROOT/ckpt/latest_checkpointed_iteration.txt ]; then LOAD="--load $ROOT/ckpt"; fi
$BIND torchrun --nproc_per_node $GPUS $ROOT/pretrain_gpt.py --num-attention-heads $HEADS --hidden-size $HIDDEN \
    --num-layers 8 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 32000 \
    --micro-batch-size $MBS --global-batch-size 32 --train-iters 100 --lr 1e-4 --bf16 --mock-data \
    --save $ROOT/out/$STAMP $LOAD
