"""Recipes that no machine here can run: jobs of other batch systems, values for charts. They are made and checked."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import dask
import pytest
import yaml

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
EXTRA = "needs the extra 'test-deploy': pip install -e '.[test-deploy]'"
# What each system is asked for: a worker's threads and memory, time, the environment, where the output goes.
ASKED = {
    "pbs": ["#PBS -N rgcss-worker", "select=1:ncpus=8:mem=16GB", "-l walltime=04:00:00", "#PBS -V", "rgcss-logs"],
    "lsf": ["#BSUB -J rgcss-worker", "#BSUB -n 8", "#BSUB -M ", "#BSUB -W 04:00", "#BSUB -env all", "rgcss-logs"],
    "sge": ["#$ -N rgcss-worker", "-pe smp 8", "-l h_vmem=2G", "-l h_rt=04:00:00", "#$ -V", "rgcss-logs"],
}
# The values that the charts read: of `dask` (dask/helm-chart) as its values.yaml of June 2026 has them, of
# `dask-gateway` as its values.schema.yaml of April 2026 allows them. Only the parts that our values use.
IMAGE = {"repository", "tag", "pullPolicy", "pullSecrets", "dask_worker"}
PLACED = {"image", "replicas", "resources", "env", "extraArgs", "tolerations", "affinity", "nodeSelector"}
PLACED |= {"securityContext"}
WORKER = PLACED | {"name", "strategy", "mounts", "annotations", "threads_per_worker", "port", "portDashboard"}
CHART = {
    "scheduler": PLACED | {"name", "enabled", "serviceType", "servicePort", "livenessProbe", "readinessProbe"},
    "worker": WORKER | {"custom_scheduler_url", "livenessProbe", "readinessProbe"},
    "webUI": {"name", "servicePort", "ingress"},
    "jupyter": {"enabled"},
}
SHARE = {"cores", "memory", "extraPodConfig", "extraContainerConfig"}
BACKEND = {"image": {"name", "tag", "pullPolicy"}, "scheduler": SHARE, "worker": SHARE | {"threads"}}


def on_slurm():
    pytest.importorskip("dask_jobqueue", reason=EXTRA)
    spec = importlib.util.spec_from_file_location("on_slurm", DEPLOY / "slurm/on_slurm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def job(system):
    """Return the script of a job, made by dask-jobqueue from our file."""
    config = yaml.safe_load((DEPLOY / f"batch-systems/{system}.yaml").read_text())
    cluster = on_slurm().SYSTEMS[system][1]
    with dask.config.set({f"jobqueue.{system}.{name}": value for name, value in config["jobqueue"][system].items()}):
        return cluster.job_cls(scheduler="tls://h:8786", name="w", config_name=system).job_script()


@pytest.mark.parametrize("system", ASKED)
def test_a_job_asks_its_system_for_what_the_file_says(system, tmp_path):
    script = job(system)
    for line in ASKED[system]:
        assert line in script
    command = script.splitlines()[-1] if script.splitlines()[-1] else script.splitlines()[-2]
    assert "dask_worker tls://h:8786" in command
    assert "--nthreads 8 --memory-limit 16.00GiB" in command
    assert "--death-timeout 120" in command
    (tmp_path / "job").write_text(script)
    subprocess.run(["bash", "-n", tmp_path / "job"], check=True)


def test_the_files_name_only_what_dask_jobqueue_reads():
    pytest.importorskip("dask_jobqueue", reason=EXTRA)
    for system in ASKED:
        given = yaml.safe_load((DEPLOY / f"batch-systems/{system}.yaml").read_text())["jobqueue"][system]
        assert set(given) <= set(dask.config.get(f"jobqueue.{system}")), system


def test_the_script_takes_each_system():
    pytest.importorskip("dask_jobqueue", reason=EXTRA)
    script = [sys.executable, str(DEPLOY / "slurm/on_slurm.py")]
    told = subprocess.run([*script, "--help"], capture_output=True, text=True, check=True).stdout
    assert "{slurm,pbs,lsf,sge}" in told
    none = subprocess.run(
        [*script, "--system", "pbs", "scan", "x"], capture_output=True, text=True, env={"PATH": "/bin"}
    )
    assert none.returncode == 1
    assert "error: no certificates." in none.stderr


@pytest.fixture
def check():
    schemas = pytest.importorskip("kubernetes_validate", reason=EXTRA)

    def pod(spec):
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        schemas.validate(manifest, schemas.latest_version(), strict=True)

    return pod


def test_the_values_of_the_chart_are_those_it_reads(check):
    (values,) = yaml.safe_load_all((DEPLOY / "helm/values.yaml").read_text())
    assert set(values) <= set(CHART)
    for part, given in values.items():
        assert set(given) <= CHART[part], part
        assert set(given.get("image", {})) <= IMAGE
    worker = values["worker"]
    container = {"name": "x", "image": "x", "env": worker["env"], "resources": worker["resources"]}
    container["volumeMounts"] = worker["mounts"]["volumeMounts"]
    check({"containers": [container], "volumes": worker["mounts"]["volumes"]})
    scheduler = values["scheduler"]
    check({"containers": [{"name": "x", "image": "x", "env": scheduler["env"], "resources": scheduler["resources"]}]})
    assert scheduler["image"] == worker["image"]


def test_the_values_of_the_gateway_are_those_it_allows(check):
    (values,) = yaml.safe_load_all((DEPLOY / "gateway/values.yaml").read_text())
    assert set(values) == {"gateway"}
    assert set(values["gateway"]) == {"backend"}
    backend = values["gateway"]["backend"]
    assert set(backend) <= set(BACKEND)
    for part, given in backend.items():
        assert set(given) <= BACKEND[part], part
    worker = backend["worker"]
    check({"containers": [{"name": "x", "image": "x", **worker["extraContainerConfig"]}], **worker["extraPodConfig"]})


def test_the_images_have_the_version_of_the_package():
    version = importlib.import_module("rgcss_dask").__version__
    helm = yaml.safe_load((DEPLOY / "helm/values.yaml").read_text())
    gateway = yaml.safe_load((DEPLOY / "gateway/values.yaml").read_text())
    tags = [helm["scheduler"]["image"]["tag"], helm["worker"]["image"]["tag"]]
    assert [*tags, gateway["gateway"]["backend"]["image"]["tag"]] == [version] * 3
