from datasets import load_dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

MODEL = "Qwen/Qwen2-0.5B-Instruct"
train_dataset = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
training_args = DPOConfig(
    output_dir="Qwen2-0.5B-DPO", beta=0.1, learning_rate=5e-7, per_device_train_batch_size=2, bf16=True
)
peft_config = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM")
trainer = DPOTrainer(model=MODEL, args=training_args, train_dataset=train_dataset, peft_config=peft_config)
trainer.train()
