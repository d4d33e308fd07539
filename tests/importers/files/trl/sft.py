from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

dataset = load_dataset("stanfordnlp/imdb", split="train")
training_args = SFTConfig(
    max_length=512,
    output_dir="/tmp",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4 // 2,
    packing=True,
    packing_strategy="wrapped",
    max_steps=1000,
)
trainer = SFTTrainer("facebook/opt-350m", train_dataset=dataset, args=training_args)
trainer.train()
