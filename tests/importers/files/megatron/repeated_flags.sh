#!/bin/bash
BASE="--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024
    --vocab-size 32000 --micro-batch-size 4 --global-batch-size 32 --train-iters 100 --lr 1e-4 --bf16 --mock-data"
python -u pretrain_gpt.py $BASE --lr 3e-4 --bf16 --train-iters=200 --init-method-std 0.02 -1
