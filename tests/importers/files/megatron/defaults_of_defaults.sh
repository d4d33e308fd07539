#!/bin/bash
: "${TP:=2}"
: ${PP:=2}
NNODES=${NNODES:-${SLURM_NNODES:-1}}
GPUS=${GPUS_PER_NODE:-8}
DP=$(( NNODES * GPUS / (TP * PP) ))
MBS=${MBS-2}
GBS=$((MBS * DP * 4))
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes=$NNODES --nproc-per-node=$GPUS --master-addr ${MASTER_ADDR:-localhost} pretrain_gpt.py \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP ${SP:+--sequence-parallel} \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
    --vocab-size 50304 --micro-batch-size $MBS --global-batch-size $GBS --train-iters 146_484 --lr .0003 --bf16 --mock-data
