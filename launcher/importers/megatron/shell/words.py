"""Commands that a shell script runs only to look, to tell or to prepare, and those that run other text."""

from __future__ import annotations

_SUCCEED = """
cd mkdir echo printf cat rm cp mv ln touch export module ml conda mamba pip pip3 pushd popd ulimit chmod tee umask sleep
wait date hash alias unalias trap set shopt env hostname ls source . git wget curl tar sync sudo apt-get apt kill pkill
killall nvidia-smi ray pwd dirs enable bind log info warn scontrol logger numactl declare hf huggingface-cli unzip
"""
SUCCEED = frozenset(_SUCCEED.split())
"""Commands that are taken to succeed, so that what follows behind ``||`` is not done."""

_TELL = """
echo printf cat log info warn logger grep sed awk cp mv ls ln rm mkdir touch tee git pip pip3 conda mamba pkill pgrep
kill killall trap alias cd test which wandb tar rsync scp chmod ps find wget curl rg head tail wc sort tr cut
"""
TELL = frozenset(_TELL.split())
"""Commands whose words, whatever they look like, start nothing."""

SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
TAKE_SCRIPTS = SHELLS | {"sbatch", "srun", "ssh", "salloc", "qsub", "docker", "kubectl"}
"""Programs that run what they read."""

SETUP = ("activate", "conda", "profile", "bashrc", "setvars", "modules", "venv", "lmod")
"""In names of files that are sourced: these prepare a machine and hold no argument."""
