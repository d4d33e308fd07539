"""Command lines with settings that need another setting to have an effect, one per line."""

from __future__ import annotations

DEPENDENCIES = """
cluster.partition=gpu
cluster.account=team eval.limit=3 eval.num_fewshot=2
cluster.qos=high
cluster.constraint=h100
cluster.reservation=week
cluster.nodelist=n1
cluster.dependency=afterok:123
cluster.licenses=matlab:2
cluster.mail=me@lab.org
cluster.cpus_per_node=8
cluster.exclusive=true
cluster.gpu_request=gres
cluster.setup=[source_env]
cluster.shared_folder=/shared
cluster.extra.mem=0
cluster.gpu_type=h100
cluster.memory=500G
cluster=slurm cluster.memory_request=mem_per_gpu
cluster.save_margin_s=300
cluster.requeues=0
cluster.modules=[cuda]
cluster.python=/opt/python
cluster.container=pyxis cluster.container_image=a.sqsh
cluster=slurm cluster.container_image=a.sif
cluster=slurm cluster.container_mounts=[/data:/data]
model.num_experts_per_tok=2
model.moe_intermediate_size=64
model.num_shared_experts=1
model.first_dense_layers=1
model.norm_topk_prob=false
model.routed_scaling_factor=2.5
model.n_group=8
model.topk_group=4
model.router_aux_loss_coef=0.01
hardware=h100_80g parallel=tp parallel.expert_tensor=1
model.q_lora_rank=64
model.qk_nope_head_dim=64
model.qk_rope_head_dim=64
model.v_head_dim=64
parallel=zero2 parallel.shard=true
parallel=zero3 backend.reshard_after_forward=true
parallel=zero0 backend.bucket_view=false
parallel=zero0 backend.bucket_cap_mb=50
parallel=zero2 backend.micro_step_sync=false
zero.reduce_bucket_size=1000000
zero.allgather_bucket_size=1000000
zero.overlap_comm=true
zero.prefetch_bucket_size=1000
zero.max_live_parameters=1000
zero.max_reuse_distance=1000
zero.param_persistence_threshold=1000
zero.sub_group_size=1000
zero.gather_16bit_weights_on_save=true
zero.hpz=2
zero.quantized_weights=true
zero.quantized_gradients=true
parallel.async_tensor=true
optimizer.adamw_lr=0.001
optimizer.stochastic_rounding=true
backend.path=/megatron
model.mtp_layers=1
train.cuda_graphs=attention
save.reshardable=true
parallel=zero3 parallel.layout=[Ett,ttL]
zero.nvme_path=/nvme
precision.recipe=delayed
parallel=zero3 precision.qat=int4
precision.qat_after=100
adapter.quant_type=int8
precision.loss_scale=1024
precision.initial_loss_scale=1024
precision.loss_scale_window=100
checkpointing.modules=[mlp]
checkpointing.offload_modules=[core_attn]
checkpointing.layers=2
checkpointing.method=block
adapter.dora=true
adapter.rslora=true
adapter.lora_plus=8
adapter.modules_to_save=[lm_head]
adapter.parameters=[experts.down_proj]
adapter.pissa=4
optimizer=lion optimizer.fused=true
optimizer=lion optimizer.foreach=true
tracking.project=words
tracking=tensorboard tracking.uri=http://localhost
data=synthetic data.path=words.txt
data.revision=v2
data.config=small
data=synthetic data.mix=[{path:x}]
data=text data.path=x data.stages=[{weights:[1]}]
data=synthetic data.eval_path=x
data=synthetic data.eval_split=test
data=synthetic data.eval_config=small
data=synthetic data.eval_sets=[{name:code,path:x}]
data.columns={prompt:question}
data=synthetic data.max_samples=10
data=synthetic data.packing=documents
data.samples=100
model.trust_remote_code=true
"""
