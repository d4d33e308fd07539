"""Command lines that break rules, by subject; ``tests/golden/rules_<subject>.txt`` pins the messages of each."""

from __future__ import annotations

from tests.support.dependency_cases import DEPENDENCIES

NODE = ("hardware=h100_80g", "cluster.gpus_per_node=8")


def cases(text: str, *common: str) -> tuple[tuple[str, ...], ...]:
    """A command line for each line of a text, after the words that all of them share."""
    return tuple((*common, *line.split()) for line in text.strip().splitlines())


ERRORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "world": cases(
        """
        parallel=tp parallel.tensor=3 model=7b
        parallel=tp_pp parallel.tensor=8 parallel.pipeline=4 model=7b train.global_batch_size=8
        parallel=tp_pp train.global_batch_size=8 hardware=cpu cluster.gpus_per_node=2
        train.global_batch_size=12 train.micro_batch_size=2
        train.micro_batch_size=null
        train.micro_batch_size=null train.global_batch_size=16
        train.micro_batch_size=null train.gradient_accumulation=4
        train.micro_batch_size=null train.gradient_accumulation=3 train.global_batch_size=32
        train.micro_batch_size=2 train.gradient_accumulation=4 train.global_batch_size=32
        train.micro_batch_size=2 train.gradient_accumulation=4 train.global_batch_size=24
        train.steps=200 train.tokens=1000000
        train.tokens=1000000 train.epochs=2 data.samples=1000
        train.steps=200 train.epochs=2 data.samples=1000
        train.eval_every=10 train.evals_per_epoch=2 data.samples=1000
        save.every=10 save.per_epoch=2 data.samples=1000
        data=synthetic train.epochs=2
        data=huggingface data.path=acme/words save.per_epoch=2
        parallel=hsdp parallel.replicate=3
        parallel=ddp parallel.replicate=2
        """,
        *NODE,
    ),
    "tensor": cases(
        """
        parallel=tp parallel.sequence=true parallel.tensor=1
        parallel=tp model=7b train.sequence_length=511
        parallel=tp model=7b model.num_attention_heads=36 model.hidden_size=4608 parallel.tensor=8
        parallel=tp model.num_key_value_heads=6 model.num_attention_heads=24 model.head_dim=32 parallel.tensor=4
        parallel=tp model=7b model.intermediate_size=11001 parallel.tensor=2
        parallel=ep model=mixtral_8x7b parallel.tensor=2 parallel.sequence=true parallel.expert_tensor=3
        parallel=cp model=7b train.sequence_length=510
        parallel=zero3 parallel.ulysses=16 cluster.nodes=2
        parallel=zero3 parallel.ulysses=4 model=7b train.sequence_length=510
        parallel=ep parallel.expert=8 model=7b
        parallel=ep parallel.expert=3 model=mixtral_8x7b cluster.gpus_per_node=6
        parallel=ep parallel.expert=8 model=mixtral_8x7b cluster.gpus_per_node=4
        """,
        *NODE,
    ),
    "pipeline": cases(
        """
        parallel.pipeline=4 model.num_hidden_layers=6
        parallel.pipeline=4 model.num_hidden_layers=8 parallel.first_stage_layers=3
        parallel.pipeline=4 model.num_hidden_layers=8 parallel.last_stage_layers=3
        model.num_hidden_layers=8 parallel.first_stage_layers=3 parallel.last_stage_layers=3
        model.num_hidden_layers=8 parallel.virtual_pipeline=3 train.global_batch_size=24
        parallel.schedule=interleaved
        parallel.schedule=gpipe parallel.virtual_pipeline=2
        parallel=fsdp_pp parallel.schedule=zbv
        parallel=fsdp_pp parallel.schedule=dualpipe_v parallel.virtual_pipeline=2 train.global_batch_size=12
        parallel=fsdp_pp parallel.schedule=zero_bubble train.global_batch_size=44
        parallel.virtual_pipeline=2 train.global_batch_size=12
        parallel.pipeline=1 parallel.virtual_pipeline=2
        parallel.pipeline=1 parallel.first_stage_layers=2
        parallel.pipeline=1 parallel.last_stage_layers=2
        parallel.pipeline=1 parallel.schedule=interleaved
        parallel.pipeline=1 parallel.layout=[EttL]
        model.num_hidden_layers=4 parallel.layout=[Ett,ttX]
        model.num_hidden_layers=4 parallel.layout=[Et,t,t,tL]
        model.num_hidden_layers=4 parallel.layout=[Ett,tL] parallel.first_stage_layers=2
        model.num_hidden_layers=4 parallel.layout=[tt,ttL]
        model.num_hidden_layers=4 parallel.layout=[Ett,ttmL]
        model.num_hidden_layers=4 parallel.layout=[Ettt,mtL] model.mtp_layers=1
        model.num_hidden_layers=4 parallel.layout=[Ettttm,mL] model.mtp_layers=2
        model.num_hidden_layers=4 parallel.layout=[Ettttm,L] model.mtp_layers=1
        zero=2
        """,
        *NODE,
        "parallel=pp",
        "train.global_batch_size=16",
    ),
    "model": cases(
        """
        model.num_attention_heads=7 model.num_key_value_heads=7
        model.num_key_value_heads=3
        train.sequence_length=8192
        model.num_experts=4 model.num_experts_per_tok=8 model.moe_intermediate_size=256
        model.num_experts=4 model.num_experts_per_tok=2
        model.num_experts=4 model.num_experts_per_tok=2 model.moe_intermediate_size=256 model.first_dense_layers=4
        model.kv_lora_rank=64 model.qk_nope_head_dim=32 model.qk_rope_head_dim=16
        model.attention=flash
        hardware=h100_80g model.attention=flash precision=fp32
        model.vocab_size=100
        model.head_dim=33
        model=deepseek_v3 model.qk_rope_head_dim=63
        model.hidden_size=260 model.num_attention_heads=8 model.num_key_value_heads=8 model.head_dim=32
        hardware=v100_32g precision=fp16 parallel=zero2 model.attention=flash
        hardware=h100_80g model.attention=flash model.head_dim=320
        """
    ),
    "training": cases(
        """
        precision=fp16 precision.loss_scale=8 precision.initial_loss_scale=8
        hardware=v100_32g
        adapter=lora adapter.targets=[] eval.tasks=[mmlu]
        data=text data.mix=[{path:a,weight:2},{path:b,weight:1}] data.stages=[{weights:[1,0]}]
        data=text data.mix=[{path:a},{path:b}] data.stages=[{weights:[1,0]},{after_tokens:64,weights:[1]}]
        data=text data.mix=[{path:a},{path:b}] data.stages=[{weights:[0,0]}] data.shuffle=false
        data=text data.mix=[{path:a},{path:b}] data.stages=[{after_tokens:64,weights:[1,0]}]
        data=text data.mix=[{path:a},{path:b}] data.stages=[{weights:[1,0]},{after_tokens:9000000000,weights:[1,1]}]
        data=text data.mix=[{path:a},{path:b}] data.stages=[{weights:[1,0]}] train.epochs=1 data.samples=90
        data=text data.path=a train.eval_every=9 data.eval_path=b data.eval_sets=[{name:code,path:c}]
        data=text data.path=a train.eval_every=9 data.eval_sets=[{name:x,path:c},{name:x,path:d},{name:a/b,path:e}]
        data=text data.path=a train.eval_every=9 data.eval_sets=[{name:code,path:c,source:chat}]
        parallel=fsdp precision.qat=int8_int4 precision.qat_group_size=48
        parallel=ddp model=gpt2 precision.qat=int4
        parallel=fsdp adapter=qlora precision.qat=int4
        parallel=fsdp_tp precision.qat=int4 checkpointing=selective checkpointing.modules=[mlp]
        parallel=ddp model=7b hardware=h100_80g precision=mxfp8
        parallel=ddp hardware=b200 precision=nvfp4 train.sequence_length=192 checkpointing=selective
        parallel=fsdp model=gpt2 hardware=b200 precision=nvfp4 precision.recipe=tensorwise adapter=lora
        parallel=fsdp model.intermediate_size=688 precision=mxfp8 train.sequence_length=40 train.micro_batch_size=1
        parallel=fsdp precision.qat=mxfp4 precision.qat_after=10
        parallel=fsdp model.intermediate_size=704 precision.qat=mxfp4 precision.qat_group_size=16 model.mlp_bias=true
        parallel=fsdp hardware=h100_80g model.intermediate_size=704 precision.qat=nvfp4 precision.qat_group_size=16
        parallel=fsdp model=7b hardware=b200 precision.qat=nvfp4 precision.qat_group_size=16 checkpointing=selective
        parallel=ddp hardware=h100_80g model.intermediate_size=704 precision.qat=mxfp4 precision=bf16
        parallel=ddp hardware=h100_80g model.intermediate_size=704 precision.qat=mxfp4 precision=fp16
        parallel=zero2 precision.qat=int4
        task=sft parallel=zero2 precision=fp32 precision.qat=int4 precision.qat_group_size=16
        task=reward parallel=ddp precision.qat=int4 precision.qat_group_size=16 eval.tasks=[mmlu]
        parallel=fsdp adapter=oft adapter.block_size=16
        task=sft parallel=fsdp adapter=qoft adapter.block_size=16
        parallel=ddp adapter=lora adapter.pissa=4
        task=sft parallel=fsdp adapter=oft adapter.block_size=16
        task=sft parallel=zero2 adapter=lora adapter.pissa=4
        task=sft parallel=ddp adapter=oft
        task=sft parallel=ddp adapter=qlora adapter.pissa=0
        task=sft parallel=ddp adapter=oft adapter.block_size=16 model.num_experts=8
        hardware=h100_80g cluster.gpus_per_node=8 parallel=fsdp_pp adapter=lora
        hardware=h100_80g parallel=fsdp precision=fp8 precision.recipe=rowwise zero.quantized_weights=true
        hardware=h100_80g parallel=fsdp precision=fp8 zero.quantized_weights=true optimizer=muon
        optimizer.min_lr=0.1
        optimizer.warmup_lr=0.1 optimizer.warmup_steps=10
        optimizer.warmup_ratio=0.1 optimizer.warmup_steps=10
        optimizer.schedule=wsd optimizer.wsd_decay_steps=200
        optimizer.fused=true optimizer.foreach=true
        train.allocator=expandable
        train.on_spike=rollback data=tokens data.path=a.bin save.export=safetensors eval.tasks=[mmlu]
        train.on_spike=rollback save.every=15 train.log_every=10
        script=train.py train.on_spike=stop eval.tasks=[mmlu]
        script=train.py train.patience=3
        script=train.py train.enforce_memory=true
        hardware=cpu hardware.host_memory_bytes=null train.enforce_memory=true
        hardware=cpu parallel=zero3 zero.offload_optimizer=cpu train.enforce_memory=true
        data=tokens
        cluster.environment.HF_HOME=/x cluster.pass_environment=[HF_HOME,TOKEN]
        cluster=slurm hardware=h100_80g cluster.container=pyxis
        cluster=slurm hardware=h100_80g cluster.time_limit_min=2
        cluster=slurm hardware=h100_80g cluster.setup=['export_HF_TOKEN=hf_123']
        cluster=slurm hardware=h100_80g script=train.py cluster.probe=true
        script_args=[--fast]
        run.name=
        run.name=a/../../b
        run.name=/tmp/b
        cluster=slurm hardware=h100_80g cluster.python=
        data.tokenizer=''
        data=chat data.path=a.jsonl data.template_values={tools:x,budget:[1]}
        data.column=
        run.directory=/
        run.directory=./..
        run.directory=~/runs/a
        run.directory=/proc
        run.directory=/dev/null
        run.directory=/tmp/../sys/a
        run.directory=
        cluster=slurm hardware=h100_80g run.name=a%j
        cluster=slurm hardware=h100_80g cluster.shared_folder=/shared/%A
        cluster.pass_environment=[MASTER_ADDR,HOME,LAUNCH_RUN]
        cluster.pass_environment=["A=1",HOME]
        cluster=slurm hardware=h100_80g cluster.memory=500GB
        cluster=slurm hardware=h100_80g cluster.memory=lots
        cluster=slurm hardware=h100_80g cluster.partition='gpu;rm'
        cluster=slurm hardware=h100_80g cluster.account=
        cluster=slurm hardware=h100_80g cluster.cpus_per_node=16 data.workers=4
        tracking=mlflow tracking.uri=localhost:5000
        tracking=mlflow tracking.uri=http://
        tracking=mlflow tracking.uri=gopher://host
        tracking=wandb tracking.uri=./mlruns
        tracking=wandb tracking.uri=https://host:99999
        """
    ),
    "hardware": cases(
        """
        hardware=h100_80g hardware.card=banana
        hardware=h100_80g hardware.card=h100_80gb
        hardware=h100_80g hardware.memory_bandwidth=3352
        hardware=h100_80g hardware.link_bandwidth=450
        hardware=h100_80g hardware.network_bandwidth=50
        hardware=h100_80g hardware.pcie_bandwidth=1e-9
        cluster=slurm hardware=h100_80g cluster.network_bandwidth=12.5
        """
    ),
    "sbatch": cases(
        """
        cluster.extra.array=1-4
        cluster.extra.array=1-100%4
        cluster.extra.gres='gpu:2'
        cluster.extra.gres='gpu:h100:2'
        cluster.gpu_request=gres cluster.extra.gres='nvme:1'
        cluster.extra.gpus=16
        cluster.extra.gpus_per_node=4
        cluster.extra.nodes=9
        cluster.extra.job-name=x
        cluster.extra.job=x
        cluster.extra.time='2-00:00:00'
        cluster.extra.ntasks-per-node=8
        cluster.extra.cpus_per_task=12
        cluster.extra.mem=500G
        cluster.extra.mem-per-gpu=60G
        cluster.extra.partition=gpu
        cluster.extra.mail-user=me@lab.org
        cluster.extra.dependency='afterok:1'
        cluster.extra.signal='TERM@60'
        cluster.extra.no-requeue=true
        cluster.extra.exclusive=true
        cluster.exclusive=true cluster.extra.exclusive=user
        cluster.extra.output=/tmp/out
        cluster.extra.chdir=/tmp
        cluster.extra.comment=mine
        cluster.extra.parsable=true
        cluster.setup=['#SBATCH']
        cluster.dependency=123
        cluster.dependency=afterok
        cluster.dependency='afterok:1?afterok:2' sweep.parallelism=2
        cluster.nodelist=/etc/hosts
        cluster.licenses=a:b
        cluster.mail=me@
        cluster.mail='me@lab.org:SOMETIMES'
        """,
        "cluster=slurm",
        "hardware=h100_80g",
    ),
    "dependencies": cases(DEPENDENCIES),
    "megatron": cases(
        """
        optimizer.warmup=log optimizer.warmup_steps=10
        optimizer.warmup_steps=100
        optimizer.warmup_steps=50 optimizer.decay_steps=40
        parallel.ulysses=2
        parallel=pp parallel.schedule=zero_bubble train.global_batch_size=16
        model=mixtral_8x7b parallel.sequence=false
        parallel.replicate=2 zero=3
        model.trust_remote_code=true model.weights=llama
        parallel.tensor=1 parallel.sequence=false adapter=lora
        zero=3 zero.offload_parameters=cpu
        zero.offload_optimizer=nvme zero.nvme_path=/nvme
        zero=0 zero.offload_optimizer=cpu
        zero=2 optimizer=lion
        optimizer=lion
        optimizer=muon precision=fp16
        optimizer=muon precision=fp32
        precision.parameters=fp32
        precision=fp16 precision.accumulate=fp32
        precision.master=bf16
        precision.reduce=bf16
        zero=0 precision.optimizer_states=bf16
        precision.master=fp16 optimizer=sgd
        checkpointing=selective checkpointing.modules=[core_attn,q_proj]
        checkpointing=selective checkpointing.layers=2
        hardware=cpu checkpointing.offload=true
        checkpointing.offload=true checkpointing.offload_modules=[core_attn,q_proj]
        checkpointing.offload=true checkpointing.offload_modules=[attn_proj]
        checkpointing=full checkpointing.offload=true checkpointing.offload_modules=[core_attn]
        checkpointing.offload=true checkpointing.offload_modules=[moe_act]
        checkpointing=selective checkpointing.offload=true
        checkpointing.offload=true parallel.pipeline=2
        checkpointing.offload=true checkpointing.layers=1000
        checkpointing=selective checkpointing.modules=[core_attn,mla_up_proj]
        optimizer=adamw_8bit
        optimizer.fused=true
        optimizer.foreach=false
        train.compile=true
        train.loss=chunked
        zero.offload_optimizer=cpu optimizer=sgd
        checkpointing=selective checkpointing.modules=[moe_act]
        precision=fp8 precision.recipe=delayed checkpointing=selective checkpointing.modules=[layernorm]
        hardware=cpu parallel=cp precision=bf16 precision.optimizer_states=bf16
        hardware=cpu zero=2
        hardware=cpu zero.offload_optimizer=cpu
        model.family=gpt
        model.num_experts=4 model.num_experts_per_tok=2 model.moe_intermediate_size=256
        model.kv_lora_rank=64 model.qk_nope_head_dim=32 model.qk_rope_head_dim=16 model.v_head_dim=32 hardware=cpu
        model.family=deepseek
        model.mlp_bias=true
        model=gpt2 model.attention_bias=false parallel.tensor=4
        model=gpt2 model.mlp_bias=false model.attention_bias=false parallel.tensor=4
        model=deepseek_v3 parallel=ep model.attention_bias=true
        model.hidden_act=relu
        model.rope_theta=1234.5
        train.timeout_s=90
        train.seed=0
        train.seed=5000000000
        precision=fp8 precision.recipe=mxfp8
        hardware=l40s precision=fp8 precision.recipe=blockwise
        train.on_spike=rollback save.every=10
        train.patience=3 train.eval_every=10
        save.reshardable=true optimizer=sgd
        save.reshardable=false precision=fp32
        backend.path=/opt/Megatron-LM
        backend.path=/opt/Megatron-LM train.on_hang=restart train.spike_deviations=3
        backend.path=/opt/Megatron-LM train.enforce_memory=true
        backend.path=/opt/Megatron-LM data=tokens data.mix=[{path:a},{path:b}] data.stages=[{weights:[1,0]}]
        data=tokens data.path=a.bin train.eval_every=10 data.eval_sets=[{name:code,path:c.bin},{name:math,path:m.bin}]
        """,
        *NODE,
        "parallel=tp",
    ),
}
