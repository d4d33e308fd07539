"""The text that Slurm gets, and what is refused before it gets it. Nothing is submitted here."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.job.sbatch import mail
from launcher.preflight import findings
from launcher.rules import sbatch
from launcher.slurm import script, survey
from launcher.submission.slurm_jobs import array_text, sbatch_text
from slurm.dev_cluster import Cluster
from tests.support.helpers import assert_golden, make_spec
from tests.support.slurm_runs import SCRIPT, SLURM, launch

PROFILES = {
    "plain": (),
    "site": (
        "cluster.partition=gpu",
        "cluster.account=team",
        "cluster.qos=high",
        "cluster.constraint=h100",
        "cluster.reservation=week",
        "cluster.gpu_request=gres",
        "cluster.gpu_type=h100",
        "cluster.memory=0",
        "cluster.cpus_per_node=96",
        "cluster.exclusive=true",
        "cluster.time_limit_min=240",
        "cluster.save_margin_s=300",
        "cluster.requeues=0",
        "cluster.modules=[cuda/12.8,nccl]",
        "cluster.setup=['source /opt/site.sh']",
        "cluster.nodelist='n[1-2]'",
        "cluster.dependency=afterok:123",
        "cluster.licenses=matlab:2",
        "cluster.mail=me@lab.org",
        "cluster.extra.nice=100",
    ),
    "pyxis": (
        "cluster.container=pyxis",
        "cluster.container_image=/images/train.sqsh",
        "cluster.container_mounts=['/data:/data']",
        "cluster.gpu_request=none",
        "cluster.memory=20G",
        "cluster.memory_request=mem_per_cpu",
    ),
    "apptainer": (
        "cluster.container=apptainer",
        "cluster.container_image=/images/train.sif",
        "cluster.container_mounts=['/data:/data','/scratch:/scratch']",
        "cluster.python=/opt/venv/bin/python",
    ),
}


@pytest.mark.parametrize("profile", PROFILES)
def test_the_script_of_each_site_profile(profile: str) -> None:
    spec = make_spec("cluster=slurm", "cluster.nodes=2", "cluster.python=python", *PROFILES[profile])
    text = sbatch_text("name", "/shared/runs/name", spec.cluster)
    assert text is not None
    assert_golden(f"sbatch_{profile}.txt", text)


@pytest.mark.parametrize("profile", PROFILES)
def test_no_option_that_the_script_says_itself_is_taken_from_the_further_ones(profile: str) -> None:
    spec = make_spec("cluster=slurm", "cluster.nodes=2", *PROFILES[profile])
    texts = (sbatch_text("name", "/runs/name", spec.cluster), array_text(Path("/runs/sweep"), spec.cluster, 4))
    options = {option for text in texts for option in re.findall("#SBATCH --([a-z-]+)", str(text))} - {"nice"}
    assert {"array", "comment", "error", "job-name", "nodes", "open-mode", "output", "signal"} <= options
    for spelt in (*options, *(option.replace("-", "_") for option in options), *(option[:-1] for option in options)):
        errors = [error.path for error in sbatch.check(make_spec("cluster=slurm", f"cluster.extra.{spelt}='gpu:1'"))]
        assert errors == [f"cluster.extra.{spelt}"], spelt


def test_what_the_script_does_not_say_is_handed_on_and_null_says_nothing() -> None:
    words = ("nice=100", "exclude=n7", "gres='nvme:1'", "exclusive=user", "time-min=30", "hold=true", "time=null")
    spec = make_spec("cluster=slurm", *(f"cluster.extra.{word}" for word in words))
    assert [str(error) for error in findings.errors(spec)] == []
    text = str(sbatch_text("name", "/runs/name", spec.cluster))
    handed_on = ("nice=100", "exclude=n7", "gres=nvme:1", "exclusive=user", "time-min=30", "hold")
    assert all(f"#SBATCH --{line}\n" in text for line in handed_on)
    assert "--time=" not in text


def test_a_line_of_options_among_the_commands_is_refused_with_the_setting_that_says_it() -> None:
    spec = make_spec("cluster=slurm")
    cluster = replace(spec.cluster, setup=("#SBATCH --time=1-0",))
    [error] = sbatch.check(replace(spec, cluster=cluster))
    assert (error.path, error.way_out) == ("cluster.setup", ("cluster.setup=[] cluster.time_limit_min=1440",))
    cluster = replace(spec.cluster, setup=("# comment", "source a.sh"))
    assert not list(sbatch.check(replace(spec, cluster=cluster)))


def test_an_array_waits_for_the_users_own_jobs_and_for_those_of_its_sweep() -> None:
    spec = make_spec("cluster=slurm", "cluster.dependency='afterok:1'")
    asked = script.parameters("name", "/runs/a", "/runs/a", spec.cluster, wait_for=["7", "8"])
    assert asked["additional_parameters"]["dependency"] == "afterok:1,afterany:7:8"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("me@lab.org", {"mail-type": "END,FAIL", "mail-user": "me@lab.org"}),
        ("me:BEGIN,TIME_LIMIT_80", {"mail-type": "BEGIN,TIME_LIMIT_80", "mail-user": "me"}),
        ("ALL", {"mail-type": "ALL"}),
        ("me@lab.org:NEVER", None),
        ("a b", None),
        ("me@lab.org:", None),
    ],
)
def test_mail_is_an_address_and_when_slurm_writes_to_it(text: str, options: dict[str, str] | None) -> None:
    assert mail(text) == options


def test_no_secret_reaches_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "tell-nobody")
    spec = make_spec("cluster=slurm", "cluster.pass_environment=[WANDB_API_KEY]")
    assert "tell-nobody" not in str(sbatch_text("name", "/runs/name", spec.cluster))


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("UNLIMITED", None), ("2:00", 2), ("01:30:00", 90), ("1-00:00:00", 1440), ("7-12:30:00", 10830), ("60", 60)],
)
def test_time_limits_are_read_as_slurm_prints_them(text: str, minutes: int | None) -> None:
    assert survey.minutes(text) == minutes


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", ()),
        ("gpu:8", (("", 8),)),
        ("gpu:h100:8(S:0-1)", (("h100", 8),)),
        ("nvme:1,gpu:a100_3g.20gb:4(S:0),gpu:a100:2(S:1)", (("a100_3g.20gb", 4), ("a100", 2))),
    ],
)
def test_gpus_are_read_as_sinfo_prints_them(gres: str, gpus: tuple[tuple[str, int], ...]) -> None:
    assert survey.gpus(gres) == gpus


REFUSED = [
    ("cluster.partition=nope", 2, "Slurm has no partition nope", "cluster.partition=main"),
    ("cluster.partition=down", 2, "the partition is down, so the job would wait forever", "cluster.partition=main"),
    (
        "cluster.account=nobody",
        2,
        "Slurm knows no such account for this user and partition",
        "cluster.account=research",
    ),
    ("cluster.constraint=a100", 2, "no node has this feature", "cluster.constraint=null"),
    ("cluster.reservation=nope", 2, "Slurm has no such reservation for this user", "cluster.reservation=null"),
    ("cluster.nodelist=nope", 2, "Slurm knows no such node", "cluster.nodelist=null"),
    ("cluster.licenses=nope:1", 2, "Slurm has no such licence, or not so many", "cluster.licenses=null"),
    ("cluster.save_margin_s=600", 2, "partition main ends a job without a time limit after 600 s", "time_limit_min=20"),
    ("cluster.partition=short", 2, "partition short ends a job without a time limit", "cluster.save_margin_s=60"),
    ("cluster.gpus_per_node=9", 2, "a node of partition main has at most 8 GPUs", "cluster.gpus_per_node=8"),
    ("cluster.gpu_type=a100", 2, "the nodes of partition main have h100 GPUs", "cluster.gpu_type=h100"),
    ("cluster.nodes=5", 2, "partition main allows a job at most 4 nodes", "cluster.nodes=4"),
    ("cluster.memory=600G", 2, "a node of partition main has at most 500000 MiB", "cluster.memory=500000M"),
    ("cluster.cpus_per_node=65", 2, "a node of partition main has at most 64 CPUs", "cluster.cpus_per_node=64"),
    ("cluster.extra.frobnicate=1", 4, "Slurm would refuse the job: unrecognized option '--frobnicate=1'", ""),
    ("run.directory=/dev/shm/launch-test", 4, "is in this machine's memory (tmpfs), which compute nodes cannot", ""),
]


@pytest.mark.parametrize(("word", "status", "rule", "way_out"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_slurm_would_refuse_or_never_start_is_said_before(
    cluster: Cluster, word: str, status: int, rule: str, way_out: str
) -> None:
    name = () if word.startswith("run.") else ("run.name=refused",)
    answer = launch(*SLURM, "script=train.py", *name, word)
    shutil.rmtree("/dev/shm/launch-test", ignore_errors=True)
    said = " ".join(answer.err.split())
    assert (answer.status, rule in said, way_out in said) == (status, True, True), said
    assert not cluster.ask("squeue", "-h", "-n", "refused")


def test_a_time_limit_over_the_partitions_is_said_before_slurm_lets_it_wait_for_ever(cluster: Cluster) -> None:
    limit = ("cluster.partition=short", "cluster.time_limit_min=60")
    answer = launch(*SLURM, "script=train.py", "run.name=refused", *limit)
    assert answer.status == 2
    said = " ".join(answer.err.split())
    assert "partition short ends jobs after 2 minutes, so Slurm would accept the job and never start it" in said
    assert "cluster.time_limit_min=2" in said


def test_a_machine_without_slurm_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    answer = launch("--json", *SLURM, "script=train.py", "run.name=a")
    assert answer.status == 4
    assert "scontrol is not found: this machine has no Slurm; submit from a login node" in answer.err
    assert answer.json["error"].startswith("scontrol is not found: ")
    sweep = launch("-m", *SLURM, "script=train.py", "run.name=b")
    assert sweep.status == 4
    assert sweep.err.startswith("launch: nothing is swept, so this is a sweep of one point: list several values, as in")


def test_a_controller_that_is_down_is_told_from_a_refusal(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = cluster.layout.conf.read_text().replace(f"SlurmctldPort={cluster.layout.port}", "SlurmctldPort=1")
    (tmp_path / "slurm.conf").write_text(text.replace("MessageTimeout=5", "MessageTimeout=1"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setattr("launcher.submission.slurm_jobs._PATIENCE_S", 0)
    answer = launch(*SLURM, "script=train.py", "run.name=a")
    assert answer.status == 4
    assert "Slurm does not answer: " in answer.err
    assert "Unable to contact slurm controller" in answer.err
    found = launch("doctor")
    assert (found.status, found.out.partition(" 3.")[0]) == (4, "this machine: Python")
    assert "\n- Slurm does not answer: " in found.out
    assert "no profile to write: Slurm does not answer: " in launch("doctor", "--write", "ours").err


def test_the_doctor_asks_a_node_and_keeps_a_profile_that_works(cluster: Cluster) -> None:
    answer = launch("doctor", "--json", "--write", "ours", "cluster.partition=short")
    assert answer.status == 0, answer.err
    found = answer.json["doctor"]
    assert found["slurm"]["node"]["host"].startswith("node"), found["lacks"]
    assert found["slurm"]["node"]["packages"]["submitit"], "of the job's environment"
    assert [part["name"] for part in found["slurm"]["partitions"]] == ["main", "low", "high", "short", "down"]
    assert found["slurm"]["partitions"][0]["kinds"] == [
        {"nodes": 4, "cpus": 64, "memory_mib": 500000, "gpus": {"h100": 8}}
    ]
    expected = {"kind": "slurm", "partition": "short", "gpus_per_node": 8, "time_limit_min": 2, "save_margin_s": 60}
    assert found["profile"] == expected | {"cpus_per_node": 64}
    assert any("no GPU driver answers on node" in text for text in found["lacks"])
    shown = launch("show", "--json", "cluster=ours", "hardware.device=cpu", "model=tiny", "precision=fp32")
    assert "#SBATCH --partition=short\n" in shown.json["sbatch"]
    assert launch("doctor", "--wait", "0", "--write", "ours").status == 2, "it overwrites nothing"
    assert not list(Path.cwd().glob(".launch-doctor-*"))


def test_the_doctor_says_why_no_node_answered(cluster: Cluster) -> None:
    shutil.rmtree("/dev/shm/launch-doctor", ignore_errors=True)
    Path("/dev/shm/launch-doctor").mkdir()
    answer = launch("doctor", "cluster.shared_folder=/dev/shm/launch-doctor")
    shutil.rmtree("/dev/shm/launch-doctor")
    assert "- a node cannot write to /dev/shm/launch-doctor: it is not shared, or not writable there" in answer.out
    answer = launch("doctor", "--wait", "1", "cluster.partition=down")
    assert "- no node answered within 1 s (job pending: PartitionDown)" in answer.out


def test_the_doctor_works_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    answer = launch("doctor")
    assert answer.status == 0
    assert answer.out.startswith("this machine: Python 3.")
    assert "this machine has no Slurm: runs start here (cluster=local)" in answer.out
    assert launch("doctor", "--write", "ours").status == 4


def test_a_percent_sign_in_a_run_s_place_is_escaped_where_slurm_would_replace_it() -> None:
    cluster = make_spec("cluster=slurm", "hardware=h100_80g").cluster
    text = str(sbatch_text("50%", "/my%u/runs/50%", cluster))
    assert "#SBATCH --output=/my%%u/runs/50%%/logs/submitit/%j_0_log.out" in text
    assert "--error /my%%u/runs/50%%/logs/submitit/%j_%t_log.err" in text
    assert "#SBATCH --job-name=50%\n" in text
    assert "job=/my%u/runs/50%/logs/submitit/$" in text


def test_what_is_shown_of_an_unnamed_run_is_what_is_submitted_once_the_directory_is_put_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("show", "--json", "model=tiny", "cluster=slurm", "cluster.container=pyxis", "cluster.container_image=x")
    named, unnamed = launch(*words, "run.name=mine").json, launch(*words).json
    put_in = json.dumps(unnamed).replace("{run}", f"{tmp_path}/runs/mine").replace("{name}", "mine")
    assert put_in.replace("'", "") == json.dumps(named).replace("'", ""), "apart from quotes, which a brace needs"
