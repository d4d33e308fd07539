#!/bin/bash
COMMON="--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --max-position-embeddings 4096 --vocab-size 32000
    --micro-batch-size 1 --global-batch-size 32 --bf16 --mock-data"
torchrun --nproc_per_node 8 pretrain_gpt.py $COMMON --seq-length 1024 --train-iters 1000 --lr 1e-4
torchrun --nproc_per_node 8 pretrain_gpt.py $COMMON --seq-length 4096 --train-iters 100 --lr 1e-5
