#!/bin/bash
model_args() {
    local layers=$1 hidden=$2
    MODEL_ARGS=(--num-layers "$layers" --hidden-size "$hidden" --num-attention-heads $((hidden / 64)))
}
launch() {
    local gpus=$1; shift
    echo "starting: $*"
    torchrun --nproc_per_node "$gpus" "$@"
}
model_args 16 1024
readonly TRAIN_ARGS=(--micro-batch-size 2 --global-batch-size 16 --train-iters 10 --lr 1e-4 --bf16)
declare -a DATA_ARGS=(--mock-data --seq-length 512 --max-position-embeddings 512 --vocab-size 32000)
launch 4 pretrain_gpt.py "${MODEL_ARGS[@]}" "${TRAIN_ARGS[@]}" "${DATA_ARGS[@]}" || exit 1
