#!/bin/bash
TP=2
sbatch <<EOT
#!/bin/bash
#SBATCH --nodes=2
export TP2=\$((TP * 2))
srun torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP \
    --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \
    --vocab-size 32000 --micro-batch-size 4 --global-batch-size 32 --train-iters 100 --lr 1e-4 --bf16 --mock-data
EOT
