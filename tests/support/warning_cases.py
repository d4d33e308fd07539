"""Command lines with warnings; ``tests/golden/rules_warnings.txt`` pins the messages of each."""

from tests.support.rule_cases import cases

WARNINGS = cases(
    """
    train.global_batch_size=8
    hardware=h100_80g cluster.gpus_per_node=8 parallel=pp parallel.pipeline=4
    hardware=h100_80g cluster.gpus_per_node=8 cluster.nodes=2 parallel=tp parallel.tensor=16 model=7b
    hardware=h100_80g cluster.gpus_per_node=1
    hardware=h100_80g cluster.gpus_per_node=1 model=llama3_1b parallel=ddp precision=fp32
    hardware=h100_80g cluster.gpus_per_node=8 model=mixtral_8x7b model.num_hidden_layers=1 parallel=ddp precision=bf16
    data=tokens data.path=words.bin model.vocab_size=128256
    hardware=h100_80g cluster.gpus_per_node=8 parallel=tp precision=fp16
    hardware=h100_80g cluster.gpus_per_node=8 parallel=tp precision.optimizer_states=fp16
    hardware=h100_80g cluster.gpus_per_node=8 parallel=tp hardware.compute_capability=null
    adapter=lora
    optimizer.warmup_steps=100
    train.eval_every=1000
    save.every=1000 save.last=false
    save.last=false
    precision.qat_group_size=64
    adapter.rank=8
    adapter.alpha=8
    adapter.block_size=16
    adapter.dropout=0.1
    adapter.targets=[q_proj]
    adapter=lora adapter.double_quant=false model.weights=llama
    train.loss_chunk=64
    train.rollbacks=5
    train.patience=3
    train.on_hang=restart
    train.eval_steps=2
    data.eval_fraction=0.1
    data=text data.path=a data.eval_sets=[{name:code,path:c}]
    optimizer.schedule=constant optimizer.min_lr=1e-5
    optimizer.schedule=constant optimizer.decay_steps=50
    optimizer.decay_steps=50 optimizer.warmup_steps=60
    optimizer.warmup=log
    optimizer.warmup_lr=1e-5
    optimizer.wsd_decay=cosine
    optimizer.wsd_decay_steps=5
    optimizer.warmup_ratio=1.0
    train.tokens=100000 optimizer.warmup_steps=1000
    train.gradient_accumulation=4
    train.micro_batch_size=null train.gradient_accumulation=2 train.global_batch_size=16
    data.split=test
    data=synthetic data.column=body
    data.template=chatml
    data.template_values={enable_thinking:false}
    data.train_on=last
    data.preview=3
    data=synthetic data.on_bad_row=skip
    data.token_dtype=uint32
    data.special_tokens={eos_token:x}
    data=synthetic data.tokenizer=llama
    model=gpt2 model.rope_parameters={rope_type:linear,factor:2.0}
    model=gpt2 model.rope_theta=500000.0
    data=synthetic model.vocab_size=1
    cluster=slurm hardware=h100_80g cluster.time_limit_min=3
    hardware=h100_80g cluster.gpus_per_node=8 parallel=tp precision=fp8 hardware.compute_capability=null
    """
)
