"""The examples run as they are, and the README's code does what it says."""

import re
from pathlib import Path

import pytest
from forks import PythonProcess

ROOT = Path(__file__).parents[1]


def run(script: Path, cwd: Path, *words: str) -> str:
    """What a script prints; a warning is an error."""
    process = PythonProcess(str(script), *words, cwd=cwd, variables={"PYTHONWARNINGS": "error"})
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def means(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"mean (-?[\d.]+),", output)]


def example(name: str, cwd: Path, *words: str) -> str:
    return run(ROOT / "examples" / name, cwd, *words)


def test_cartpole(tmp_path):
    trained, loaded = means(example("cartpole.py", tmp_path))
    assert trained == loaded >= 495


def test_reward_shaping(tmp_path):
    assert all(mean >= 400 for mean in means(example("reward_shaping.py", tmp_path)))


def test_own_env(tmp_path):
    before, after = means(example("own_env.py", tmp_path))
    assert after > before / 2  # returns are negative: at least twice as good


def test_random_env(tmp_path):
    one_here, one_elsewhere, all_here, all_elsewhere = means(example("random_env.py", tmp_path))
    assert one_elsewhere < 5 * one_here
    assert all_elsewhere > one_elsewhere / 2  # at least twice as good
    assert all_here > 2 * one_here


def test_action_masks(tmp_path):
    output = example("action_masks.py", tmp_path)
    without, masked = means(output)
    assert masked >= max(0.93, without - 0.01)  # seeds 1 to 12 gave 0.951 to 0.961, and 0.81 to 0.957 without
    assert "with one box allowed: tensor(2)" in output


def test_privileged_critic(tmp_path):
    output = example("privileged_critic.py", tmp_path)
    blind, seeing = means(output)
    assert seeing > max(-5, blind + 1)
    assert [float(share) for share in re.findall(r"explains (-?[\d.]+)", output)] == [
        pytest.approx(0, abs=0.1), pytest.approx(1, abs=0.02)
    ]  # fmt: skip
    assert "at rest: tensor([1.])" in output


def test_hybrid_actions(tmp_path):
    output = example("hybrid_actions.py", tmp_path)
    before, after = means(output)
    assert before < -4
    assert after > -1.5
    assert "15.0 m from the hole: driver" in output
    assert "0.5 m from the hole: putter" in output


def test_memory(tmp_path):
    output = example("memory.py", tmp_path, "120000")
    without, remembered = means(output)
    assert without < 200
    assert remembered >= 450
    assert output.count("push") == 3


def test_curriculum(tmp_path):
    *levels, at_once = means(example("curriculum.py", tmp_path))
    assert levels == [1.0] * 8
    assert at_once == 0


def test_stop_at_a_score(tmp_path):
    output = example("stop_at_a_score.py", tmp_path)
    steps, planned = (int(n.replace(",", "")) for n in re.findall(r"([\d,]+) of ([\d,]+) steps:", output)[0])
    assert steps < planned
    assert means(output)[-1] >= 450
    assert f"stopped after {steps:,} steps: 20 episodes returned" in output
    assert output.rstrip().endswith(f"saved: PPO('CartPole-v1', steps={steps:,})")


def test_own_logger(tmp_path):
    output = example("own_logger.py", tmp_path)
    kinds = [line.split(",")[0] for line in output.splitlines() if "," in line][1:]
    assert kinds.count("evaluation") == 2
    assert kinds.count("training") > 10


def test_two_players(tmp_path):
    caught = [float(share) for share in re.findall(r"caught ([\d.]+)", example("two_players.py", tmp_path))]
    by_chance, learned_chaser, _, learned_runner = caught
    assert learned_chaser > 0.9 > 0.3 > by_chance > learned_runner


def test_write_the_loop(tmp_path):
    returns = [float(r) for r in re.findall(r"return +([\d.]+)", example("write_the_loop.py", tmp_path))]
    assert returns[-1] > 2 * returns[0]


def test_readme_code(tmp_path):
    """All Python blocks, one after the other, as a reader would type them."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    first, vpg, centered = means(run(script, tmp_path))
    assert first >= 495
    assert vpg >= 450
    assert centered > 300  # out of 500, by its own reward


def test_readme_commands_exist():
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
