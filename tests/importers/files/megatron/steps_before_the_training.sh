#!/bin/bash
python tools/preprocess_data.py --input raw.jsonl --output-prefix corpus --tokenizer-type GPT2BPETokenizer --workers 8
python tools/checkpoint/convert.py --model-type GPT --loader llama --saver mcore --tensor-model-parallel-size 4
cat <<EOF > ds_config.json
{
  "train_batch_size": 32,
  "steps_per_print": 10  # it's "quoted"
}
EOF
if [ ! -d corpus ]; then echo "no data"; exit 1; fi
deepspeed --num_nodes 1 --num_gpus 4 pretrain_gpt.py \
    --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 4 --global-batch-size 32 --train-iters 100 --lr 1e-4 --fp16 --data-path corpus_text_document \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --deepspeed --deepspeed_config ds_config.json
