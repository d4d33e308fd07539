#!/bin/bash
# One script for several sizes: MODEL_SIZE is given by whoever starts it.
MODEL_SIZE=${MODEL_SIZE:-small}
case $MODEL_SIZE in
    small)
        NUM_LAYERS=12 HIDDEN=768 HEADS=12
        ;;
    7b | 7B)
        NUM_LAYERS=32; HIDDEN=4096; HEADS=32
        EXTRA="--swiglu --disable-bias-linear"
        ;;
    *)
        echo "unknown size $MODEL_SIZE" >&2
        exit 1
        ;;
esac
torchrun --nproc_per_node 8 pretrain_gpt.py \
    --num-layers $NUM_LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS \
    --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50304 \
    --micro-batch-size 2 --global-batch-size 64 --train-iters 1000 --lr 3e-4 --bf16 ${EXTRA:-} --mock-data
