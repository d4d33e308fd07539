#!/bin/bash
#SBATCH --job-name=pretrain
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --time=04:00:00
set -euo pipefail
module load cuda || true
source ~/venv/bin/activate
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${nodes[0]}
SCRIPT="pretrain_gpt.py"
srun --container-image=/images/train.sqsh --container-mounts=/data:/data --mpi=pmix bash -c "
    cd /workspace && \
    torchrun --nnodes \$SLURM_NNODES --nproc_per_node 8 --rdzv-endpoint $head_node:29500 --rdzv-backend c10d \
        $SCRIPT --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
        --max-position-embeddings 4096 --vocab-size 32000 --swiglu --disable-bias-linear --normalization RMSNorm \
        --tensor-model-parallel-size 8 --sequence-parallel --micro-batch-size 1 --global-batch-size 128 \
        --train-iters 1000 --lr 3e-4 --bf16 --mock-data --wandb-exp-name 'first run'
" 2>&1 | tee train.log
