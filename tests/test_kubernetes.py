"""The manifests for Kubernetes against the official schemas, and their commands run on two hosts called like the pods.

No cluster: what a scheduler, a storage class or a registry of images would do is not tested here.
"""

import ast
import copy
import re
import sys

import pytest
from hosts import two_hosts
from support import PACKAGE, ROOT

from ddp_tutorial.history import read_history

yaml = pytest.importorskip("yaml", reason="pip install -r tests/cluster-requirements.txt")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install -r tests/cluster-requirements.txt")
models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install -r tests/cluster-requirements.txt")

pytestmark = pytest.mark.cluster

FOLDER = PACKAGE / "cluster"
VERSIONS = ["1.31", "1.37"]  # the first with podFailurePolicy for good, and the newest with schemas


def documents(name):
    return {part["kind"]: part for part in yaml.safe_load_all((FOLDER / name).read_text())}


JOB, TRAINJOB = documents("job.yaml"), documents("trainjob.yaml")


def check(part, version="1.37"):
    """Raise if ``part`` has a field that its kind does not know, lacks one that it needs, or has a wrong type."""
    if part["kind"] != "TrainJob":
        kubernetes_validate.validate(part, version, strict=True)
        return
    # The models of Kubeflow Trainer drop what they do not know: what comes back must be what went in.
    known = models.TrainerV1alpha1TrainJob.from_dict(copy.deepcopy(part)).to_dict()
    assert known == part


def pod(part):
    """Return the pod that ``part`` describes, or what it adds to the runtime's pod."""
    if part["kind"] == "Job":
        return part["spec"]["template"]["spec"]
    job = part["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    return job["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("part", [*JOB.values(), *TRAINJOB.values()], ids=lambda part: part["kind"])
def test_a_manifest_follows_the_official_schema(part, version):
    check(part, version)


def breakages():
    """Return manifests with one thing wrong each, and what that is."""
    for kind, path, value in [
        ("Job", "spec.completionmode", "Indexed"),  # a letter of a name
        ("Job", "spec.completions", "2"),
        ("Job", "spec.podFailurePolicy.rules.0.action", None),
        ("Job", "spec.template.spec.containers.0.name", None),
        ("Job", "spec.template.spec.containers.0.env.0.value", 2),
        ("Job", "spec.template.spec.volumes.1.emptyDir.size", "1Gi"),
        ("Service", "spec.clusterIp", "None"),
        ("PersistentVolumeClaim", "spec.accessModes", "ReadWriteMany"),
        ("TrainJob", "spec.runtimeRef", None),
        ("TrainJob", "spec.numNodes", 2),  # a level too high
        ("TrainJob", "spec.trainer.numNodes", "2"),
        ("TrainJob", "spec.podTemplateOverrides", []),  # as it was called before 2.2
        ("TrainJob", "spec.runtimePatches.0.manager", None),
    ]:
        part = copy.deepcopy({**TRAINJOB, **JOB}[kind])
        *way, last = path.split(".")
        place = part
        for step in way:
            place = place[int(step) if step.isdecimal() else step]
        if value is None:
            del place[last]
        else:
            place[last] = value
        yield pytest.param(part, id=f"{kind} {path} {value}")


@pytest.mark.parametrize("part", list(breakages()))
def test_a_manifest_with_a_mistake_does_not_pass(part):
    with pytest.raises((kubernetes_validate.ValidationError, AssertionError, ValueError)):
        check(part)


def test_the_parts_of_a_manifest_fit_each_other():
    job, service = JOB["Job"], JOB["Service"]
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert pod(job)["restartPolicy"] == "Never", "podFailurePolicy goes with no other"
    assert pod(job)["subdomain"] == service["metadata"]["name"]
    container = pod(job)["containers"][0]
    settings = {entry["name"]: entry["value"] for entry in container["env"]}
    assert spec["completions"] == spec["parallelism"] == int(settings["NODES"])
    assert int(settings["RANKS"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--master-addr={name}-0.{service['metadata']['name']} " in container["args"][0]
    trainer = TRAINJOB["TrainJob"]["spec"]["trainer"]
    assert trainer["numProcPerNode"] == trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]
    assert not [entry["name"] for entry in trainer["env"] if entry["name"].startswith("PET_")]


@pytest.mark.parametrize("parts", [JOB, TRAINJOB], ids=["job.yaml", "trainjob.yaml"])
def test_checkpoints_are_on_the_claim_and_shared_memory_is_memory_with_a_limit(parts):
    main = parts.get("Job") or parts["TrainJob"]
    volumes = {volume["name"]: volume for volume in pod(main)["volumes"]}
    container = pod(main)["containers"][0]
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    claim = parts["PersistentVolumeClaim"]
    assert mounts["/checkpoints"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert mounts["/dev/shm"]["emptyDir"]["sizeLimit"].endswith("Gi")
    command = main["spec"].get("trainer", container)["args"]
    assert "--checkpoint=/checkpoints" in " ".join(command)
    text = (FOLDER / ("job.yaml" if main["kind"] == "Job" else "trainjob.yaml")).read_text()
    assert all("# change" in line for line in text.splitlines() if re.search("image:|numNodes:|nvidia.com/gpu:", line))


# The image


def instructions():
    """Return the lines of the Dockerfile as (instruction, rest)."""
    text = re.sub(r"\\\n\s*", " ", (FOLDER / "Dockerfile").read_text())
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_image_is_built_from_what_is_there_for_a_user_who_is_not_root():
    known = dict(instructions())
    assert set(known) == {"FROM", "RUN", "USER", "WORKDIR", "COPY", "ENV", "CMD"}
    assert instructions()[0] == ("FROM", known["FROM"]) and re.fullmatch(
        r"pytorch/pytorch:[\w.-]+-runtime", known["FROM"]
    )
    source, target = known["COPY"].split()[-2:]
    assert (ROOT / source / "__main__.py").exists() and target == "ddp_tutorial"
    uid = int(known["USER"].split(":")[0])
    assert uid >= 1000
    for part in (JOB["Job"], TRAINJOB["TrainJob"]):
        context = pod(part)["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] == context["fsGroup"] == uid
    assert ast.literal_eval(known["CMD"])[0] == "torchrun"


def test_the_image_has_every_package_that_the_code_imports():
    imported = set()
    for file in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.split(".")[0])
    base = {"torch", "torchvision", "numpy"}  # in the image of pytorch/pytorch
    notebook = {"IPython", "ipywidgets"}  # where a notebook is open
    needed = {name for name in imported - base - notebook if name not in sys.stdlib_module_names}
    install = next(rest for name, rest in instructions() if name == "RUN" and "pip install" in rest)
    installed = {word for word in install.split("--no-cache-dir")[1].split()}
    assert {{"sklearn": "scikit-learn"}.get(name, name) for name in needed} == installed
    wanted = (ROOT / "requirements.txt").read_text().split()
    assert installed <= {re.split("[<>=]", line)[0] for line in wanted}


# The commands, for real: two hosts that are called like the pods

SMALL = "--epochs=2 --batch-size=64 --seed=7"


@pytest.mark.parametrize("kind", ["Job", "TrainJob"])
def test_the_command_of_a_manifest_trains_on_two_hosts_that_are_called_like_its_pods(kind, tmp_path):
    domain = "ddp"
    if kind == "Job":
        names = ("ddp-0", "ddp-1")
        container = pod(JOB[kind])["containers"][0]
        command = [*container["command"], *container["args"]]
        variables = {entry["name"]: entry["value"] for entry in container["env"]} | {"RANKS": "1"}
        own = [{"JOB_COMPLETION_INDEX": str(number)} for number in (0, 1)]  # Kubernetes sets it
    else:
        names = ("ddp-node-0-0", "ddp-node-0-1")
        trainer = TRAINJOB[kind]["spec"]["trainer"]
        command = [*trainer["command"], *trainer["args"]]
        variables = {entry["name"]: entry["value"] for entry in trainer["env"]}
        # What Kubeflow Trainer sets for its runtime torch-distributed
        variables |= {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1"}
        variables |= {"PET_MASTER_ADDR": "ddp-node-0-0.ddp", "PET_MASTER_PORT": "29500"}
        own = [{"PET_NODE_RANK": str(number)} for number in (0, 1)]
    command = [here(word, tmp_path) for word in command]
    with two_hosts(tmp_path, names, domain) as hosts:
        logs = [tmp_path / f"{name}.log" for name in names]
        running = [
            host.start(*command, cwd=ROOT, log=log, **variables, **index) for host, log, index in zip(hosts, logs, own)
        ]
        codes = [process.wait(timeout=90) for process in running]
    assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
    history = read_history(tmp_path / "checkpoints" / "history.jsonl")
    assert [len(step["train_loss_by_rank"]) for step in history["steps"]] == [2] * 24
    assert [(host.disk / "data" / "digits.pt").exists() for host in hosts] == [True, True]  # on the disk of each pod


def here(word, folder):
    """Put paths of the pod into ``folder``, and let the training be short."""
    word = word.replace("=/checkpoints", f"={folder}/checkpoints").replace("=/tmp/data", f"={folder}/disk/data")
    return word.replace("--epochs=20", SMALL if " " in word else SMALL.split()[0])
