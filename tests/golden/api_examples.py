# fmt: off
# ruff: noqa

import launcher

words = ["model=llama3_8b", "parallel=fsdp", "hardware=a100_40g", "cluster.gpus_per_node=8"]
check = launcher.check(words)
assert check.verdict == "does_not_fit"  # fits | tight | does_not_fit | invalid | unknown, as in --json
print(check)  # what `launch check` prints; in a notebook `check` alone draws it
for fix in check.fixes:
    print(fix.overrides, fix.price)  # "24% slower", and what it costs beside time
better = launcher.check([*words, *check.fixes[0].overrides])
assert better.fits
assert check.peak and better.peak and better.peak.needed_bytes < check.peak.needed_bytes
if better.speed:  # None on the CPU, and of a card whose figures are not stated
    print(better.speed.tokens_per_second_per_gpu, better.speed.mfu)

wrong = launcher.check(["model=tiny", "precison=bf16"])
assert wrong.verdict == "invalid"
for error in wrong.errors:
    print(error.path, error.found, error.rule, error.way_out)

from pathlib import Path

Path("ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}')
imported = launcher.import_("deepspeed", "ds_config.json")
assert "train.micro_batch_size=2" in imported.overrides
print(imported.overrides)  # to paste before words of your own; imported.recipe is the same as a recipe
for said in imported.said:
    print(said.key, said.overrides)
for left in imported.left_out:
    print(left.key, left.value, left.effect)

fitting = {}
for model in ("llama3_8b", "llama3_70b"):
    for strategy in ("fsdp", "zero3"):
        found = launcher.check([
            f"model={model}",
            f"parallel={strategy}",
            "hardware=h100_80g",
            "cluster.gpus_per_node=8",
        ])
        if found.peak and found.fits:
            fitting[model, strategy] = found.peak.needed_bytes
assert ("llama3_8b", "zero3") in fitting and ("llama3_70b", "fsdp") not in fitting

plan = launcher.plan(["model=1b", "hardware=h100_80g", "cluster.nodes=1", "cluster.gpus_per_node=2", "parallel=fsdp"])
print(plan)  # what `launch plan` prints; in a notebook `plan` alone draws it as a table
best = plan.layouts[0]  # none where nothing fits
print(best.overrides, best.speed and best.speed.tokens_per_second_per_gpu, best.verdict.used_bytes)
same = launcher.check([*plan.single, *best.overrides])  # or the words of the question with "plan=best"
assert same.spec and same.spec.hash == best.spec.hash

small = ["model=tiny", "data=synthetic", "cluster.gpus_per_node=1", "train.steps=3", "train.sequence_length=64"]
print(launcher.show(small).argv)  # also .environment, .files, .sbatch: what run starts
run = launcher.run([*small, "run.name=first"])  # checks, records, starts, and waits for the end
assert run.status.state == "finished"
frame = run.metrics()  # a data frame of pandas: frame.plot(x="step", y="loss")
print(frame[["step", "loss", "tokens_per_second"]])

run = launcher.Run("first")
print(run.status.state, run.status.job_id, run.directory)
print(run.logs(lines=5))
assert run.wait(timeout=60).state == "finished"
assert not run.cancel()  # it has ended: nothing to stop

why = run.why()  # what `launch why` says: of this run that nothing went wrong
assert why.cause == "none"
print(why, why.pile, [way.command for way in why.ways])

try:
    launcher.run(["model=175b", "hardware.memory_bytes=1e9"])
except launcher.base.errors.ConfigErrors as error:
    print(error.errors)  # exit status 2
except launcher.base.errors.DoesNotFit as error:
    print(error)  # 3; SubmitError is 4, JobFailed is 5

sweep = launcher.sweep(["model=1b,7b,70b", "hardware=h100_80g", "cluster.gpus_per_node=8"], start=False)
for point in sweep.points:
    print(point.overrides, point.verdict, point.reason)
