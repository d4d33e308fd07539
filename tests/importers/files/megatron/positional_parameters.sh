#!/bin/bash
if [ "$#" -lt 2 ]; then
    echo "usage: $0 CHECKPOINTS DATA [TP]"
    exit 1
fi
CHECKPOINTS=$1
DATA=$2
TP=${3:-1}
shift 3
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP \
    --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 4 --global-batch-size 32 --train-iters 100 --lr 1e-4 --bf16 \
    --data-path $DATA --split 949,50,1 --tokenizer-type GPT2BPETokenizer --save "$CHECKPOINTS" --load "$CHECKPOINTS" "$@"
