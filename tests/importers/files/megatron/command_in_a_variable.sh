#!/bin/bash
DISTRIBUTED_ARGS="--nproc_per_node 8 --nnodes 1 --master_addr localhost --master_port 6000"
GPT_ARGS="
    --num-layers 12 \
    --hidden-size 768 \
    --num-attention-heads 12
    --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304
    --micro-batch-size 8 --global-batch-size 64
"
run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS \
    --train-iters 1000 --lr 0.00015 --fp16 --mock-data \
    --distributed-backend nccl"
echo ${run_cmd}
eval ${run_cmd}
set +x
