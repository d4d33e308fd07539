#!/bin/bash
# A small GPT on one node.
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \
  --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
  --seq-length 1024 --max-position-embeddings 1024 \
  --tensor-model-parallel-size 2 --sequence-parallel \
  --micro-batch-size 4 --global-batch-size 32 --train-iters 500 \
  --lr 6.0e-4 --min-lr 6.0e-5 --lr-decay-style cosine --lr-decay-iters 400 --lr-warmup-fraction .01 \
  --weight-decay 0.1 --clip-grad 1.0 --bf16 \
  --data-path my-gpt2_text_document --split 949,50,1 \
  --tokenizer-type NullTokenizer --vocab-size 50256 \
  --log-interval 10 --save-interval 100 --eval-interval 100 --eval-iters 10 \
  --exit-duration-in-mins 230 --distributed-backend nccl
