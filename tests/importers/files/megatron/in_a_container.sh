#!/bin/bash
docker run --rm --gpus all --ipc=host -e TP=2 -v $PWD:/work -w /work image:latest \
    bash -lc 'torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 \
        --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \
        --vocab-size 32000 --micro-batch-size 4 --global-batch-size 32 --train-iters 100 --lr 1e-4 --bf16 --mock-data'
