#!/bin/bash
MODEL_ARGS=(
    --num-layers 8       # as small as it gets
    --hidden-size 1024
    # --num-layers 80
    --num-attention-heads 8

    --seq-length 1024   
    --max-position-embeddings 1024 --vocab-size 32000 # 'unpaired quote
)
torchrun --nproc_per_node 8 pretrain_gpt.py \  
    "${MODEL_ARGS[@]}" \
    --micro-batch-size 4 --global-batch-size 32 \
    --train-iters 100 --lr 1e-4 --bf16 --mock-data \
    # --fp16
echo done # it's over
