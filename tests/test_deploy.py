"""The recipes in deploy/: certificates that hold in a handshake, files that pass their linters, commands that run."""

import asyncio
import os
import random
import re
import select
import ssl
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import psutil
import pytest
import yaml
from distributed import Client, Scheduler, Worker
from distributed.cli import dask_scheduler, dask_worker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from processes import ROLES, security

from rgcss_dask.cli import cli

REPOSITORY = Path(__file__).parent.parent
DEPLOY = REPOSITORY / "deploy"
BIN = Path(sys.executable).parent
EXTRA = "needs the extra 'test-deploy': pip install -e '.[test-deploy]'"


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)


def make_certificates(folder, *options):
    done = run(sys.executable, DEPLOY / "make_certificates.py", folder, *options)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("cluster") / "certificates", "--host", "node1")[0]


# Certificates


def test_certificates_say_what_they_wrote_and_keep_it_to_the_owner(tmp_path):
    folder, printed = make_certificates(tmp_path / "new")
    assert printed.split() == [str(file) for file in sorted(folder.iterdir(), key=lambda f: printed.index(f"{f}\n"))]
    assert len(printed.split()) == 2 + 2 * len(ROLES)
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not [file for file in folder.iterdir() if file.name.startswith("ca") and b"PRIVATE" in file.read_bytes()]


def test_certificates_are_never_overwritten(tmp_path):
    (tmp_path / "worker-key.pem").write_text("mine")
    done = run(sys.executable, DEPLOY / "make_certificates.py", tmp_path)
    assert done.returncode == 1
    assert re.search(r"never overwritten, and \S*worker-key.pem exist. Give another folder", done.stderr)
    assert [file.name for file in tmp_path.iterdir()] == ["worker-key.pem"]


def test_certificates_refuse_to_be_expired(tmp_path):
    done = run(sys.executable, DEPLOY / "make_certificates.py", tmp_path / "new", "--days", 0)
    assert done.returncode == 1
    assert "at least one day; got --days 0" in done.stderr
    assert not (tmp_path / "new").exists()


def shake_hands(server, client, name):
    """Do a handshake in memory and return the names in the server's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    called = server.wrap_bio(to_server, to_client, server_side=True)
    calling = client.wrap_bio(to_client, to_server, server_hostname=name)
    waiting = [calling, called]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    assert called.getpeercert()["subject"], "the server asked for no certificate"
    return {value for _, value in calling.getpeercert()["subjectAltName"]}


def context(folder, role, purpose):
    made = ssl.create_default_context(purpose, cafile=folder / "ca.pem")
    made.load_cert_chain(folder / f"{role}.pem", folder / f"{role}-key.pem")
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    return made


CALLS = [
    ("scheduler", "client"),
    ("worker", "client"),
    ("scheduler", "worker"),
    ("worker", "scheduler"),
    ("worker",) * 2,
]


@pytest.mark.parametrize(("called", "calling"), CALLS)
@pytest.mark.parametrize("name", ["node1", "localhost", "127.0.0.1"])
def test_each_side_accepts_the_other_under_its_names(certificates, called, calling, name):
    server = context(certificates, called, ssl.Purpose.CLIENT_AUTH)
    client = context(certificates, calling, ssl.Purpose.SERVER_AUTH)
    assert {"node1", "localhost", "127.0.0.1"} <= shake_hands(server, client, name)


def test_a_name_that_was_not_given_is_refused(certificates):
    server = context(certificates, "scheduler", ssl.Purpose.CLIENT_AUTH)
    client = context(certificates, "client", ssl.Purpose.SERVER_AUTH)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server, client, "node2")


def test_a_client_cannot_pass_for_a_scheduler(certificates):
    server = context(certificates, "client", ssl.Purpose.CLIENT_AUTH)
    client = context(certificates, "worker", ssl.Purpose.SERVER_AUTH)
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        shake_hands(server, client, "localhost")


def test_certificates_of_another_cluster_are_refused(certificates, tmp_path):
    other, _ = make_certificates(tmp_path / "other")
    server = context(certificates, "scheduler", ssl.Purpose.CLIENT_AUTH)
    client = context(other, "client", ssl.Purpose.SERVER_AUTH)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake_hands(server, client, "localhost")


def test_dask_works_with_them_and_with_no_others(certificates, tmp_path):
    other, _ = make_certificates(tmp_path / "other")
    quiet = {"dashboard_address": "127.0.0.1:0", "host": "tls://127.0.0.1", "security": security(certificates)}

    async def compute():
        async with Scheduler(port=0, **quiet) as scheduler, Worker(scheduler.address, nthreads=1, **quiet):
            async with Client(scheduler.address, security=quiet["security"], asynchronous=True) as client:
                assert await client.submit(sum, [20, 22]) == 42
            with pytest.raises(OSError, match="TLS certificate does not match"):
                await Client(scheduler.address, security=security(other), asynchronous=True, timeout=60)
        return scheduler.address

    assert asyncio.run(compute()).startswith("tls://127.0.0.1:")


def test_the_configuration_names_the_files(certificates):
    comm = yaml.safe_load((certificates / "dask.yaml").read_text())["distributed"]["comm"]
    assert comm["require-encryption"] is True
    assert comm["default-scheme"] == "tls"
    named = {comm["tls"]["ca-file"], *(comm["tls"][role][what] for role in ROLES for what in ("cert", "key"))}
    assert named == {str(file) for file in certificates.glob("*.pem")}


# The supervisor


def supervised(script, *options, **more):
    environment = os.environ | {"SUPERVISE_DELAY": "0.05", "SUPERVISE_GRACE": "1"}
    return subprocess.Popen(
        [DEPLOY / "supervise.sh", *options, sys.executable, "-uc", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **more,
    )


def test_a_command_that_ends_is_started_again():
    with supervised("import os; print(os.getpid())") as process:
        pids = {process.stdout.readline() for _ in range(3)}
        process.terminate()
        assert len(pids) == 3
        assert "exit code 0" in process.stderr.read()
    assert process.returncode == 0


@pytest.mark.parametrize("how", ["told", "stdin"])
def test_a_supervisor_that_ends_takes_its_command_along(how):
    deaf = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid()); time.sleep(60)"
    options = ["--while-stdin"] if how == "stdin" else []
    with supervised(deaf, *options, stdin=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        began = time.monotonic()
        process.stdin.close() if how == "stdin" else process.terminate()
        process.wait(20)
        assert time.monotonic() - began >= 1  # it had its time to stop by itself
    assert not psutil.pid_exists(child)


@pytest.mark.parametrize("how", ["told", "stdin"])
def test_a_supervisor_that_is_stopped_while_it_starts_leaves_nothing_behind(how):
    """The stop comes at any moment of its start. Neither the command is left nor what watches standard input."""
    rng = random.Random(0)
    stdin = subprocess.DEVNULL if how == "stdin" else subprocess.PIPE  # one has ended already, one never does
    command = [DEPLOY / "supervise.sh", "--while-stdin", "sleep", "600"]
    environment = os.environ | {"SUPERVISE_GRACE": "1"}
    for _ in range(60):  # of 300, 23 left the command when the supervisor looked for a number it had not kept yet
        ours, theirs = os.pipe()  # whoever is left holds the other end
        with (
            open(ours, "rb") as end,
            subprocess.Popen(command, stdin=stdin, stdout=theirs, stderr=theirs, env=environment) as process,
        ):
            os.close(theirs)
            if how == "told":
                time.sleep(rng.uniform(0, 0.015))
                process.terminate()
            process.wait(60)
            assert closed(end, 60), "something goes on without its supervisor"


def closed(pipe, seconds):
    """Whether nobody can write to a pipe any more, within so many seconds of the last word."""
    while select.select([pipe], [], [], seconds)[0]:
        if not pipe.read1():
            return True
    return False


def test_a_supervisor_replaces_the_one_before(tmp_path):
    """As after a cut: the one before does not know that nobody wants it any more."""
    file, alive = tmp_path / "worker-0.pid", "import os, time; print(os.getpid()); time.sleep(600)"
    with supervised(alive, "--replace", file) as first:
        command = int(first.stdout.readline())
        assert file.read_text() == f"{first.pid}\n"
        with supervised(alive, "--replace", file) as second:
            second.stdout.readline()
            assert not psutil.pid_exists(command), "the old command is gone before the new one is started"
            assert first.wait(60) == 0
            assert file.read_text() == f"{second.pid}\n"
            second.terminate()


def test_a_supervisor_stops_nothing_but_supervisors_of_the_same_command(tmp_path):
    file, alive = tmp_path / "worker-0.pid", "print(1); import time; time.sleep(600)"
    with supervised(alive, "--replace", tmp_path / "worker-1.pid") as other:
        other.stdout.readline()
        for number in (other.pid, os.getpid(), "nobody"):
            file.write_text(f"{number}\n")
            with supervised(alive, "--replace", file) as process:
                process.stdout.readline()
                process.terminate()
        assert other.poll() is None
        other.terminate()


def test_a_command_that_is_not_there_is_not_tried_again():
    done = run(DEPLOY / "supervise.sh", "no-such-command", timeout=20)
    assert done.returncode == 127
    assert "no-such-command cannot be run" in done.stderr


# Files for other programs


def documents(*folders):
    files = sorted(file for folder in folders for file in (DEPLOY / folder).glob("*.yaml"))
    return [
        pytest.param(each, id=f"{f.name}-{each['kind']}") for f in files for each in yaml.safe_load_all(f.read_text())
    ]


MANIFESTS = documents("kubernetes")
# The DaskCluster of dask-kubernetes 2026.3.0, as its chart defines it in crds/daskcluster.yaml, without fields that are
# unknown; the pods and the service in it are those of Kubernetes, and are checked as such.
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
ROLE = {
    "metadata": {"properties": {"annotations": LABELS, "labels": LABELS}, "additionalProperties": False},
    "spec": {},
}
SCHEDULER = {"properties": ROLE | {"service": {"type": "object"}}, "required": ["spec", "service"]}
WORKER = {"properties": ROLE | {"replicas": {"type": "integer"}}, "required": ["spec"]}
CLOSED = {"type": "object", "additionalProperties": False}
CLUSTER = {"idleTimeout": {"type": "integer"}, "scheduler": SCHEDULER | CLOSED, "worker": WORKER | CLOSED}
DASK_CLUSTER = {
    "properties": {
        "apiVersion": {"const": "kubernetes.dask.org/v1"},
        "kind": {"const": "DaskCluster"},
        "metadata": {"type": "object"},
        "spec": {"properties": CLUSTER, "required": ["scheduler", "worker"]} | CLOSED,
    },
    "required": ["apiVersion", "kind", "metadata", "spec"],
} | CLOSED


@pytest.fixture
def check():
    """A check of a manifest against the newest schemas of Kubernetes."""
    schemas = pytest.importorskip("kubernetes_validate", reason=EXTRA)
    return lambda manifest: schemas.validate(manifest, schemas.latest_version(), strict=True)


def program(name):
    """A program that a package has put beside Python."""
    if not (BIN / name).exists():
        pytest.skip(EXTRA)
    return BIN / name


def pod_specs(manifest):
    """The pods of a manifest, by the way that leads to them."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "DaskCluster":
        return {"scheduler": spec["scheduler"]["spec"], "worker": spec["worker"]["spec"]}
    return {"pod": spec["template"]["spec"]} if "template" in spec else {}


PODS = [
    pytest.param(spec, id=f"{manifest.id}-{way}")
    for manifest in MANIFESTS
    for way, spec in pod_specs(manifest.values[0]).items()
]


@pytest.mark.parametrize("manifest", [m for m in MANIFESTS if m.values[0]["kind"] != "DaskCluster"])
def test_manifests_are_what_kubernetes_takes(manifest, check):
    check(manifest)


@pytest.mark.parametrize("manifest", [m for m in MANIFESTS if m.values[0]["kind"] == "DaskCluster"])
def test_the_cluster_is_what_the_dask_operator_takes(manifest, check):
    validator = pytest.importorskip("jsonschema", reason=EXTRA).Draft202012Validator(DASK_CLUSTER)
    validator.validate(manifest)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
    check(service | {"spec": manifest["spec"]["scheduler"]["service"]})
    scheduler = manifest["spec"]["scheduler"]
    for wrong in ({"image": "x"}, {"scheduler": scheduler | {"replicas": 2}}, {"worker": {"replicas": 2}}):
        assert not validator.is_valid(manifest | {"spec": manifest["spec"] | wrong}), wrong


def test_a_wrong_manifest_is_found(check):
    wrong = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"image": "x"}]}}
    with pytest.raises(Exception, match="'name' is a required property") as caught:
        check(wrong)
    assert type(caught.value).__name__ == "ValidationError"


@pytest.mark.parametrize("spec", PODS)
def test_pods_are_what_kubernetes_takes(spec, check):
    check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})


@pytest.mark.parametrize("spec", PODS)
def test_pods_are_locked_down_and_watched(spec):
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"].keys() >= {"cpu", "memory"}
    assert container["name"] == "job" or "livenessProbe" in container
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize("spec", PODS)
def test_pods_have_the_key_of_their_own_role_only(spec):
    (container,) = spec["containers"]
    role = {"job": "client"}.get(container["name"], container["name"])
    assert [v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v] == [f"rgcss-{role}"]
    assert {"name": "DASK_CONFIG", "value": "/certificates/dask.yaml"} in container["env"]


def commands_of_containers():
    services = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]
    pods = [pytest.param(pod.values[0]["containers"][0]["args"], id=pod.id) for pod in PODS]
    return [*pods, *(pytest.param(service["command"], id=f"compose-{name}") for name, service in services.items())]


@pytest.mark.parametrize("command", commands_of_containers())
def test_commands_in_containers_can_be_parsed(command):
    """Parse all arguments as the program would, and start nothing."""
    known = {"dask scheduler": dask_scheduler.main, "dask worker": dask_worker.main, "rgcss scan": cli.commands["scan"]}
    program, subcommand, *arguments = command
    with known[f"{program} {subcommand}"].make_context(subcommand, arguments) as context:
        given = context.params
    assert given.get("dashboard_address") in (None, "127.0.0.1:8787", "127.0.0.1:8788", "127.0.0.1:0")
    assert subcommand == "scheduler" or "tls://" in f"{given.get('scheduler')}"


def test_the_compose_file_is_one():
    compose, schema = DEPLOY / "docker" / "compose.yaml", "vendor.compose-spec"
    done = run(program("check-jsonschema"), "--builtin-schema", schema, compose)
    assert done.returncode == 0, done.stdout


def test_services_are_locked_down_restarted_and_apart():
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        role = {"job": "client"}.get(name, name)
        assert service["secrets"] == ["dask.yaml", "ca.pem", f"{role}.pem", f"{role}-key.pem"]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["restart"] in ("unless-stopped", "on-failure:3")
        assert "ports" not in service  # nothing is open to the outside
        assert "/tmp" in service["volumes"]  # on disk
        assert "tmpfs" not in service  # what is spilled there would count towards mem_limit
    named = {Path(secret["file"]).name for secret in compose["secrets"].values()}
    assert named == set(compose["secrets"])


def test_the_image_is_pinned():
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    (base,) = set(re.findall(r"^FROM (\S+)", text, re.M))
    assert re.fullmatch(r"debian:\d+\.\d+-slim@sha256:[0-9a-f]{64}", base), base
    assert re.findall(r"^USER (\S+)", text, re.M) == ["10001:10001"]
    assert "--require-hashes" in text
    entries = pinned()
    assert len(entries) > 50
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==[\w.]+(?: --hash=sha256:[0-9a-f]{64})+", entry), entry[:60]


def pinned():
    """Return the requirements of the image, each with its hashes in one line."""
    text = (DEPLOY / "docker" / "requirements.txt").read_text()
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_pods_reach_an_object_store_and_not_every_address():
    (policy,) = [
        d
        for d in yaml.safe_load_all((DEPLOY / "kubernetes" / "common.yaml").read_text())
        if d["kind"] == "NetworkPolicy"
    ]
    assert all(rule["to"] for rule in policy["spec"]["egress"])
    blocks = [to["ipBlock"]["cidr"] for rule in policy["spec"]["egress"] for to in rule["to"] if "ipBlock" in to]
    assert blocks == ["192.0.2.0/32"]


def test_the_image_holds_what_the_package_needs():
    """Each requirement of the package is met by a pin, so `--no-deps` leaves nothing out."""
    pins = {canonicalize_name(name): version for name, version in (line.split()[0].split("==") for line in pinned())}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    needed = [*project["project"]["dependencies"], *(one for extra in ("report", "s3") for one in extras[extra])]
    for requirement in map(Requirement, [*needed, *project["build-system"]["requires"]]):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


LINTERS = {
    "Dockerfile": ["hadolint"],
    "*.sh": ["shellcheck", "--external-sources", "--source-path=SCRIPTDIR"],
    "*.conf": ["shellcheck", "--shell=bash", "--exclude=SC2034"],  # variables that are used elsewhere
    "*.yaml": [
        "yamllint",
        "--strict",
        "-d",
        "{extends: default, rules: {line-length: {max: 120}, document-start: disable}}",
    ],
}


@pytest.mark.parametrize("pattern", LINTERS)
def test_linters_have_nothing_to_say(pattern):
    linter, *options = LINTERS[pattern]
    files = sorted(DEPLOY.rglob(pattern))
    assert files
    done = run(program(linter), *options, *files)
    assert done.returncode == 0, done.stdout
