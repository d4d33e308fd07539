def _base() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("70B"),
        hf_assets_path="./assets/hf/Llama-3.1-70B",
        optimizer=default_adamw(lr=1.5e-4),
        training=TrainingConfig(local_batch_size=8, seq_len=8192, steps=1000),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        activation_checkpoint=FullAC.Config(),
    )


def llama3_70b_tp8() -> Trainer.Config:
    config = _base()
    config.parallelism.tensor_parallel_degree = 8
    config.training.steps = 500
    config.compile = CompileConfig(enable=True)
    return config
