"""The page on jobs: its scripts parse, its shards run as they stand."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from graphveil import bench, cli

PAGE = (Path(__file__).parents[1] / "docs" / "jobs.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def run(words):
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    return ended.value.code


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("number", range(4))
def test_scripts_parse(number):
    assert len(blocks("bash")) == 4
    done = subprocess.run(
        ["bash", "-n"], input=blocks("bash")[number], text=True, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manifest_is_an_indexed_job_whose_command_is_ours():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    (manifest,) = map(yaml.safe_load, blocks("yaml"))
    assert (manifest["kind"], manifest["apiVersion"]) == ("Job", "batch/v1")
    spec = manifest["spec"]
    assert spec["completionMode"] == "Indexed"
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    (script,) = container["args"]
    assert f'--shard "$((JOB_COMPLETION_INDEX + 1))/{spec["completions"]}"' in script
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in pod["volumes"]}
    if shutil.which("sh"):
        said = subprocess.run(
            ["sh", "-c", script.replace("exec graphveil", "echo")],
            env={"JOB_COMPLETION_INDEX": "7", "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert said.endswith("--shard 8/8\n")


def test_the_python_is_python():
    for block in blocks("python"):
        compile(block, "jobs.md", "exec")


def commands(block):
    """The commands of a script as words, its variables given."""
    text = block.replace("\\\n", " ").replace("{}", "1")
    text = text.replace("$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT", "1/8")
    lines = [line for line in text.splitlines() if "graphveil " in line]
    words = [shlex.split(line.partition("graphveil ")[2].partition(":::")[0]) for line in lines]
    assert words
    return words


def test_every_option_of_every_script_is_known():
    for block in blocks("bash"):
        for name, *words in commands(block):
            command = cli.cli.get_command(None, name)
            if name == "audit":
                command, words = command.commands[words[0]], words[1:]
            known = {option for one in command.params for option in one.opts}
            assert {word for word in words if word.startswith("--")} <= known


def test_the_shards_run_as_they_stand(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--set", "steps=2", "--set", "sample_rate=0.01", "--set", "hidden_channels=4"]
    first, second, whole = commands(blocks("bash")[0])
    for words in (first, second):
        assert run([*words, *small]) == 0
    counts = [path.read_text().count("\n") for path in Path("grid").glob("*.jsonl")]
    assert counts == [2, 2]
    assert run([*whole, *small]) == 0
    assert "best private" in capsys.readouterr().out
    assert Path("table.json").exists()
    assert len(list(Path("grid").glob("*.jsonl"))) == 2  # nothing was left


def test_a_shard_by_call_writes_where_the_command_reads(tmp_path, monkeypatch):
    (block,) = [block for block in blocks("python") if "call_shard" in block]
    names, calls = {}, []
    exec(compile(block, "jobs.md", "exec"), names)
    monkeypatch.setattr(bench, "compare", lambda *args, **how: calls.append((args, how)))
    assert names["call_shard"](2, 8, str(tmp_path)) == 0
    ((_, how),) = calls
    assert how["memory"].path == tmp_path / "compare.2-of-8.jsonl"
    assert how["shard"] == (2, 8)
