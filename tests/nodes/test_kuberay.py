"""The manifest of a run on Kubernetes: what KubeRay's schema allows, and what the job then runs."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from marius_oac.cli.commands import _parser, main
from marius_oac.errors import InputError
from marius_oac.nodes.launch.on_ray.kuberay import RAY, Job, manifest

SCHEMA = json.loads((Path(__file__).parent / "rayjob_schema.json").read_text())
"""Of the keys that are used; all others are refused."""
CONFIG = "# of a graph: 'x' \"y\"\ndata:\n  path: /data/g\nnodes: {parts: 8}\n"
JOB = Job("graph-1", "me/image:1", "claim", "/data", "/data/runs/a b", CONFIG, (2, 4), ("--set", "seed=$(x)"))


def made(job):
    return {each["kind"]: each for each in yaml.safe_load_all(manifest(job))}


@pytest.mark.parametrize("job", [JOB, replace(JOB, gpu=True), replace(JOB, config=None, trainers=(3, 3))])
def test_the_schema_of_kuberay_allows_it(job):
    jsonschema.validate(made(job)["RayJob"], SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        wrong = made(job)["RayJob"]
        wrong["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replica"] = 1
        jsonschema.validate(wrong, SCHEMA)


def test_the_job_trains_with_the_config_on_the_pods_that_it_asks_for():
    documents = made(replace(JOB, gpu=True, cpus=3, memory="7Gi"))
    assert documents["ConfigMap"]["data"] == {"config.yaml": CONFIG}
    text = manifest(JOB)
    assert "    # of a graph: 'x' \"y\"\n    data:\n" in text and "&id" not in text  # for people to read
    job = documents["RayJob"]["spec"]
    words = shlex.split(job["entrypoint"])
    args = _parser().parse_args(words[1:])
    assert words[0] == "marius-oac" and (args.command, args.on, args.trainers) == ("train", "ray", "2..4")
    assert str(args.out) == "/data/runs/a b" and args.set == ["seed=$(x)"]
    cluster = job["rayClusterSpec"]
    (workers,), head = cluster["workerGroupSpecs"], cluster["headGroupSpec"]
    assert [workers[name] for name in ("minReplicas", "replicas", "maxReplicas")] == [2, 4, 4]
    (trainer,) = workers["template"]["spec"]["containers"]
    assert trainer["resources"]["limits"] == {"cpu": "3", "memory": "7Gi", "nvidia.com/gpu": "1"}
    assert trainer["resources"]["requests"] == trainer["resources"]["limits"]
    (first,) = head["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in first["resources"]["limits"] and head["rayStartParams"]["num-cpus"] == "0"
    for pod in (workers["template"]["spec"], head["template"]["spec"]):
        places = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert places.keys() == volumes.keys() and places["data"] == "/data"
        assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "claim"}
        assert f"{places['config']}/config.yaml" == str(args.config)
        assert volumes["config"]["configMap"] == {"name": documents["ConfigMap"]["metadata"]["name"]}
        assert pod["terminationGracePeriodSeconds"] == 120
    assert (cluster["authOptions"], cluster["rayVersion"]) == ({"mode": "token"}, RAY)
    assert (job["shutdownAfterJobFinishes"], job["backoffLimit"]) == (True, 0)
    assert {each["rayStartParams"]["object-store-memory"] for each in (workers, head)} == {str(80 << 20)}
    assert yaml.safe_load(job["runtimeEnvYAML"]) == {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "120"}}


def test_a_run_goes_on_without_a_config():
    documents = made(replace(JOB, config=None, trainers=(3, 3)))
    assert documents.keys() == {"RayJob"}
    args = _parser().parse_args(shlex.split(documents["RayJob"]["spec"]["entrypoint"])[1:])
    assert (args.command, str(args.run), args.trainers) == ("resume", "/data/runs/a b", "3")
    assert "config" not in json.dumps(documents)


def test_the_version_of_ray_is_that_of_the_tests():
    assert f"ray=={RAY}\n" in (Path(__file__).parents[2] / "constraints.txt").read_text()


@pytest.mark.parametrize(
    "wrong, option",
    [
        ({"name": "Graph"}, "--name"),
        ({"name": "a" * 43}, "--name"),
        ({"name": "a-"}, "--name"),
        ({"claim": "a b"}, "--claim"),
        ({"image": ""}, "--image"),
        ({"image": "a\nb"}, "--image"),
        ({"memory": "16 GB"}, "--memory"),
        ({"memory": "0Gi"}, "--memory"),
        ({"cpus": 0}, "--cpus"),
        ({"mount": "data"}, "--mount"),
        ({"mount": "/"}, "--mount"),
        ({"mount": "/data/../x", "out": "/data/../x/a"}, "--mount"),
        ({"out": "/runs/a"}, "--out"),
        ({"out": "/data"}, "--out"),
        ({"out": "/data/../runs"}, "--out"),
    ],
)
def test_what_kubernetes_would_refuse_is_a_line(wrong, option):
    with pytest.raises(InputError, match=f"^{option}: "):
        manifest(replace(JOB, **wrong))


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "kuberay: needs a config, or --resume in place of it"),
        (["CONFIG", "--resume"], "kuberay: needs a config, or --resume in place of it"),
        (["CONFIG", "--trainers", "4..2"], "--trainers: must be at least 1, or a range of such numbers, not '4..2'"),
        (["CONFIG", "--trainers", "0"], "--trainers: must be at least 1"),
        (["CONFIG", "--trainers", "some"], "--trainers: must be a number"),
        (["CONFIG", "--set", "nodes.parts=null"], "--trainers: a range needs nodes.parts"),
        (["CONFIG", "--set", "nodes.part=1"], "nodes.part"),
    ],
)
def test_mistakes_of_the_command(tmp_path, capsys, words, said):
    (tmp_path / "config.yaml").write_text(CONFIG)
    words = [str(tmp_path / "config.yaml") if word == "CONFIG" else word for word in words]
    given = ["--trainers", "2..4"] if "--trainers" not in words else []
    assert main(["kuberay", *words, *given, "--out", "/data/a", "--image", "i", "--claim", "c"]) == 2
    found = capsys.readouterr()
    assert found.out == "" and said in found.err and found.err.count("\n") == 1


def test_the_command_prints_the_manifest(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    given = ["--trainers", "2..4", "--out", "/data/a", "--image", "i", "--claim", "c", "--set", "seed=3"]
    assert main(["kuberay", str(path), *given]) == 0
    documents = {each["kind"]: each for each in yaml.safe_load_all(capsys.readouterr().out)}
    assert documents["ConfigMap"]["data"]["config.yaml"] == CONFIG
    assert documents["RayJob"]["spec"]["entrypoint"].endswith("--set seed=3")
    same = ["--set", "nodes.parts=null", "--trainers", "3"]
    assert main(["kuberay", str(path), *given, *same]) == 0  # one number of trainers needs no parts
    assert main(["kuberay", "--resume", *given[:-2]]) == 0
    assert "RayJob" in capsys.readouterr().out
