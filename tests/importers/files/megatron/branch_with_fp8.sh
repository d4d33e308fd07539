#!/bin/bash
ARGS=(
    --num-layers 16 --hidden-size 2048 --num-attention-heads 16
    --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000
    --micro-batch-size 1 --global-batch-size 16 --train-iters 100 --lr 2e-4 --bf16 --mock-data
)
if [[ "$PRECISION" == "fp8" ]]; then
    ARGS+=("--fp8-format hybrid" --fp8-recipe tensorwise)
fi
if [[ "$WITH_LOGS" == "1" ]]; then
    LOG_ARGS="--tensorboard-dir ./tb"
    echo "logging"
fi
torchrun --nproc_per_node=4 pretrain_gpt.py ${ARGS[@]}
