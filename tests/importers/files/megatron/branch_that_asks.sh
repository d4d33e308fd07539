#!/usr/bin/env bash
# The first argument decides the size, and nothing else says it.
size=$1
if [ "$size" = "2b" ]; then
    layers=24; hidden=2048; heads=16
elif [ "$size" = "13b" ]; then
    layers=40; hidden=5120; heads=40
else
    echo "usage: $0 {2b|13b}"; exit 2
fi
[ -z "$OUT" ] && OUT=./runs
python -m torch.distributed.run --nnodes 2 --nproc-per-node 8 ./pretrain_gpt.py \
    --num-layers ${layers} --hidden-size ${hidden} --num-attention-heads ${heads} --seq-length 4096 \
    --max-position-embeddings 4096 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 256 \
    --train-iters 500 --lr 1e-4 --fp16 --save $OUT/$size --mock-data
