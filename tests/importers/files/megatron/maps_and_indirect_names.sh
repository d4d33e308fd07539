#!/bin/bash
declare -A LAYERS=([small]=8 [large]=48)
declare -A HIDDEN
HIDDEN[small]=1024
HIDDEN[large]=6144
SIZE=${SIZE:-small}
LR_small=1e-4
LR_large=5e-5
LR_NAME="LR_${SIZE}"
[[ $SIZE =~ ^(small|large)$ ]] || { echo "no such size: $SIZE"; exit 1; }
mpirun -np 8 -x PATH python3 pretrain_gpt.py --num-layers ${LAYERS[$SIZE]} --hidden-size "${HIDDEN[$SIZE]}" \
    --num-attention-heads $((${HIDDEN[$SIZE]} / 128)) --seq-length 1024 --max-position-embeddings 1024 \
    --vocab-size 32000 --micro-batch-size 4 --global-batch-size 32 --train-iters 100 --lr ${!LR_NAME} --bf16 --mock-data
