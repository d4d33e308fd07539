#!/bin/bash
DATA=""
for name in books code "web text"; do
    DATA="$DATA 1.0 /data/${name// /_}_document"
done
i=0
until [ $i -ge 2 ]; do
    FLAGS[i]="--no-load-$([ $i ] && echo optim)"
    i=$((i + 1))
done
unset FLAGS
torchrun --nproc_per_node 8 pretrain_gpt.py --data-path $DATA \
    --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \
    --tokenizer-type NullTokenizer --vocab-size 32000 --micro-batch-size 4 --global-batch-size 32 --train-iters 100 \
    --lr 1e-4 --bf16
