#!/bin/bash
# Options of the script itself change defaults that stand above them.
TP=4
PP=1
while [[ $# -gt 0 ]]; do
    case "$1" in
        --tp) TP="$2"; shift 2 ;;
        --pp=*) PP="${1#*=}"; shift ;;
        -h|--help) usage; exit 0 ;;
        *) echo "unknown option $1"; exit 1 ;;
    esac
done
while getopts "d:x" opt; do
    case $opt in d) DEBUG=$OPTARG ;; x) set -x ;; esac
done
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "$PP" \
    --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \
    --vocab-size 32000 --micro-batch-size 4 --global-batch-size 32 --train-iters 100 --lr 1e-4 --bf16 --mock-data
