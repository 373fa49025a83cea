"""The page of `tightrope play` in a real browser: its arithmetic is that of torch, its policies balance, and it obeys."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from browser import Open, Opened, chromium, opening
from play_cases import CASES, ROW
from test_game import Drawing

import tightrope as tr
from tightrope.logging.report import html
from tightrope.play import page as play_pages
from tightrope.play.agreement import ELEMENTWISE, REDUCED, check_game
from tightrope.play.emitted import record
from tightrope.play.page import play_page
from tightrope.training.reports import write_report

SMALL: dict[str, Any] = dict(num_envs=8, num_steps=16, num_minibatches=4, hidden_sizes=(16,), device="cpu")
QUIET = "tightropePlay.settings.running = false"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def look(browser: Any) -> Iterator[Open]:
    with opening(browser, "#play .game") as look_at:  # each test closes its pages, which would play on
        yield look_at


@pytest.fixture(scope="module", autouse=True)
def few_checks() -> Iterator[None]:
    """Pages are compared with torch here, so that writing them need not take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play_pages, "check_game", partial(check_game, steps=40))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("play")


@pytest.fixture(scope="module")
def trained(folder: Path) -> tr.Agent:
    return tr.PPO("CartPole-v1", seed=1, device="cpu").learn(quiet=True, run_dir=folder / "run")


@pytest.fixture(scope="module")
def balancing(folder: Path, trained: tr.Agent) -> Path:
    return trained.play(folder / "cart.html").path


@pytest.fixture
def cart(look: Open, balancing: Path) -> Opened:
    return look(balancing)


def values(page: Any) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(
        "(({clock, state, ended, episodes, action, numbers}) => "
        "({clock: clock[0], state, ended, episodes, action: Array.from(action), numbers}))(tightropePlay.players[0])"
    )
    return found


# arithmetic -----------------------------------------------------------------------------------------------------------


def test_kernels_compute_what_torch_computes(cart: Opened) -> None:
    names = cart.page.evaluate("tightropePrograms.kernels")
    assert {*names} == {*ELEMENTWISE, *REDUCED, "matmul", "take", "put"}
    programs = {name: record(lambda x, f=f: {"out": f(x)}, {"x": ROW.clone()}).as_json() for name, f in CASES.items()}
    run = """([programs, x]) => Object.entries(programs).map(([name, json]) => {
        const program = new tightropePrograms.Program(json, {});
        program.run({x: x.map((value) => -value)});
        return [name, program.run({x}).out.map(String)];
    })"""
    for name, out in cart.page.evaluate(run, [programs, ROW[0].tolist()]):
        got = torch.tensor([float(x.replace("Infinity", "inf")) for x in out], dtype=torch.float64)
        wanted = CASES[name](ROW.clone()).double().flatten()
        torch.testing.assert_close(
            got, wanted, rtol=3e-6, atol=1e-6, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}"
        )


PLAYED: dict[str, Callable[[], tr.Agent]] = {
    "CartPole": lambda: tr.PPO("CartPole-v1", **SMALL),
    "Pendulum": lambda: tr.PPO("Pendulum-v1", norm_obs=True, **SMALL),
    "swing-up": lambda: tr.PPO("CartDoublePendulum-v0", **SMALL),
    "own": lambda: tr.PPO(Drawing, memory="gru", **SMALL),
}


@pytest.mark.parametrize("name", PLAYED)
def test_a_thousand_steps_agree_with_torch(name: str, look: Open, folder: Path) -> None:
    """From each of torch's own states: what is compared does not depend on how fast two paths part."""
    agent = PLAYED[name]()
    page, complaints, requests = look(path := agent.play(folder / f"{name}.html").path)
    env = agent.score_env.spawn(250, 3)
    assert isinstance(env, tr.envs.TensorEnv)
    env.reset(3)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(4):
        state, low = env.state.clone(), -1.0
        action = (
            torch.rand(250, *env.action.shape, generator=generator) * 2 + low * isinstance(env.action, tr.types.Box)
        ).to(env.action.dtype)
        after = env._apply("advance", state, action)
        wanted = [after, env._apply("reward", state, action, after), env._apply("terminated", after), env._show(after)]
        rows += [[x[i].double().flatten().tolist() for x in (state, action, *wanted)] for i in range(250)]
        env.step(action)
    compare = """rows => {
        const {programs} = tightropePlay.players[0], clock = [0], worst = {};
        for (const [state, action, next, reward, terminated, obs] of rows) {
            const found = {
                next: programs.advance.run({state, action, clock}).next,
                reward: programs.reward.run({state, action, next, clock}).reward,
                terminated: programs.terminated.run({next, clock}).terminated,
                obs: programs.observe.run({state: next, clock}).obs,
            };
            for (const [name, wanted] of Object.entries({next, reward, terminated, obs}))
                wanted.forEach((x, i) => {
                    const error = Math.abs(found[name][i] - x) / Math.max(1, Math.abs(x));
                    worst[name] = Math.max(worst[name] ?? 0, error);
                });
        }
        return worst;
    }"""
    worst = page.evaluate(compare, rows)
    assert worst.keys() == {"next", "reward", "terminated", "obs"}
    assert worst["terminated"] == 0
    assert max(worst.values()) < 2e-5, worst
    assert float(page.get_attribute("[data-worst]", "data-worst")) < 2e-5  # the page's own check
    assert complaints == []
    assert requests == [path.absolute().as_uri()]


# playing --------------------------------------------------------------------------------------------------------------


def test_sixty_frames_a_second(cart: Opened) -> None:
    cart.page.wait_for_timeout(300)
    count = "(async () => { const from = [tightropePlay.frames, performance.now()];"
    count += " await new Promise((r) => setTimeout(r, 1500));"
    count += " return (tightropePlay.frames - from[0]) / (performance.now() - from[1]) * 1000; })()"
    rate = max(cart.page.evaluate(count) for _ in range(2))
    assert rate > 45, "60 on an idle machine"
    assert values(cart.page)["clock"] > 50  # in real time, from the start
    assert cart.complaints == []


def test_it_balances_for_a_minute_and_reacts_to_a_push(cart: Opened) -> None:
    page = cart.page
    page.evaluate(QUIET)
    page.uncheck("text=Stop at 500 steps")
    page.evaluate("tightropePlay.forward(60)")
    after = values(page)
    assert after["ended"] == ""
    assert after["clock"] >= 3000
    for strength, button in ((-1, "◀ Push"), (1, "Push ▶")):
        before = values(page)["state"]
        page.click(f"text={button}")
        assert values(page)["state"][1] - before[1] == pytest.approx(0.4 * strength, abs=1e-5)
        page.evaluate("tightropePlay.forward(4)")
        pushed = values(page)
        assert pushed["ended"] == ""
        assert abs(pushed["state"][2]) < 0.1  # upright again
    page.focus("body")
    page.keyboard.press("d")
    page.keyboard.press("ArrowRight")
    assert values(page)["state"][1] > pushed["state"][1] + 0.7
    box = page.query_selector("canvas").bounding_box()
    before = values(page)["state"][1]
    page.mouse.click(box["x"] + 10, box["y"] + 40)
    assert values(page)["state"][1] < before - 0.3
    page.mouse.move(box["x"] + 100, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 180, box["y"] + 40, steps=4)
    page.mouse.up()
    assert values(page)["state"][1] > before


def test_an_episode_says_why_it_ended_and_starts_again(cart: Opened) -> None:
    page = cart.page
    page.evaluate("tightropePlay.forward(20)")
    assert page.inner_text(".over") == "Time limit after 500 steps"
    page.wait_for_function("() => tightropePlay.players[0].ended === ''", timeout=4000)
    assert "Last of 1 episode: time limit after 500 steps, return 500." in page.inner_text(".last")
    page.check("text=Take over")
    page.evaluate("tightropePlay.forward(10)")
    assert page.inner_text(".over").startswith("Terminated after")
    page.click('text="Restart"')
    assert page.is_hidden(".over")


def test_taking_over_pausing_and_stepping(cart: Opened) -> None:
    page = cart.page
    page.keyboard.press("Space")
    assert page.inner_text(".tools button >> nth=0") == "Play"
    page.keyboard.press("r")
    assert values(page)["clock"] == 0
    page.keyboard.press(".")
    page.click('text="Step"')
    assert values(page)["clock"] == 2
    page.keyboard.press("t")
    for key, action in (("ArrowLeft", 0), ("ArrowRight", 1), ("1", 0), ("2", 1)):
        page.keyboard.press(key)
        assert values(page)["action"] == [action]
    page.click(".pad >> text=left")
    assert values(page)["action"] == [0]
    assert page.get_attribute(".pad >> nth=0", "aria-pressed") == "true"
    assert cart.complaints == []


def test_sliders_change_the_physics_and_the_picture(cart: Opened) -> None:
    page = cart.page
    page.evaluate(QUIET)
    assert {x.get_attribute("aria-label") for x in page.query_selector_all(".physics input")} == {
        "gravity", "cart_mass", "pole_mass", "half_length", "force",
    }  # fmt: skip
    state, action = [0.1, 0.2, 0.05, -0.1], torch.tensor([1])
    changed = tr.envs.CartPole(1)
    changed.gravity, changed.half_length = 25.0, 1.25
    for name, value in (("gravity", 25.0), ("half_length", 1.25)):
        page.fill(f"input[aria-label={name}]", str(value))
    used = page.evaluate("tightropePlay.players[0].values")
    changed.gravity, changed.half_length = used["gravity"], used["half_length"]
    assert changed.gravity == pytest.approx(25.0, abs=0.1)
    got = page.evaluate(
        "s => tightropePlay.players[0].programs.advance.run({state: s, action: [1], clock: [0]}).next", state
    )
    assert got == pytest.approx(changed.advance(torch.tensor([state]), action)[0].tolist(), abs=1e-6)
    tip = max(values(page)["numbers"])
    assert tip > 2  # metres: the pole is drawn as long as it is
    page.click("text=As trained")
    assert page.evaluate("tightropePlay.players[0].changed") is False


def test_bars_show_the_policys_mind(cart: Opened) -> None:
    page = cart.page
    page.evaluate(QUIET)
    page.evaluate("tightropePlay.refresh()")
    labels = [x.inner_text() for x in page.query_selector_all(".meter .label")]
    assert labels == ["left", "right", "value"]
    mind = page.evaluate("tightropePlay.players[0].mind")
    wide = "bar => ['.fill', '.track'].map((part) => bar.querySelector(part).getBoundingClientRect().width)"
    for bar, share in zip(page.query_selector_all(".meter"), mind["probs"], strict=False):
        fill, track = bar.evaluate(wide)
        assert fill / track == pytest.approx(share, abs=0.02)


def test_several_policies_play_side_by_side(look: Open, folder: Path, trained: tr.Agent) -> None:
    other = tr.PPO("Pendulum-v1", **SMALL)
    page, complaints, _ = look(trained.play(folder / "two.html", other).path)
    titles = [x.inner_text() for x in page.query_selector_all(".game h3")]
    assert titles[0].startswith("CartPole-v1 PPO · run trained for")
    assert titles[1] == "Pendulum-v1 PPO trained for 0 steps"
    page.evaluate(QUIET)
    page.evaluate("tightropePlay.forward(2)")
    assert page.evaluate("tightropePlay.players.map((p) => p.clock[0] >= 40)") == [True, True]
    names = {x.get_attribute("aria-label") for x in page.query_selector_all(".physics input")}
    assert {"gravity", "length", "half_length"} <= names
    assert complaints == []


def is_dark(page: Any) -> bool:
    """Whether the picture is."""
    picture = np.frombuffer(page.query_selector("canvas").screenshot(), np.uint8)
    return bool(cv2.imdecode(picture, cv2.IMREAD_COLOR)[3, 20].mean() < 60)


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(look: Open, balancing: Path, dark: bool) -> None:
    page, complaints, _ = look(balancing, 360, 740, dark, touch=True)
    page.tap("text=Change the physics")
    page.tap("text=Keys and mouse")
    page.tap("text=Take over")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert is_dark(page) == dark
    page.tap("#theme")
    page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg="light" if dark else "dark")
    page.wait_for_timeout(100)
    assert is_dark(page) != dark
    assert complaints == []


def test_the_report_plays_too(look: Open, folder: Path, run_command: Callable[..., Any], trained: tr.Agent) -> None:
    assert run_command("report", folder / "run").code == 0
    page, complaints, requests = look(folder / "run" / "report.html")
    page.query_selector("#play").scroll_into_view_if_needed()
    page.wait_for_function("() => tightropePlay.players[0].clock[0] > 5")
    page.click('text="Restart"')
    before = values(page)["state"][1]
    page.keyboard.press("a")  # what was clicked has the focus
    assert values(page)["state"][1] < before
    assert complaints == []
    assert len(requests) == 1


def test_hostile_data_run_nothing(look: Open, folder: Path, trained: tr.Agent) -> None:
    attack = "</script><img src=x onerror=document.title='hacked'><svg onload=document.title='hacked'>"
    run = folder / "stranger"
    shutil.copytree(folder / "run", run)
    content: Any = json.loads(json.dumps(play_pages.page_data([trained.game(0)], 0)))
    (game,) = content["games"]
    game |= {"title": attack, "agreement": attack, "actions": [{"name": attack, "choices": [attack, attack]}]}
    game["attributes"] = {**game["attributes"], attack: 1.0}
    (run / "play.json").write_text(json.dumps(content))
    write_report([run])
    (folder / "hostile.html").write_text(play_page(content, [attack]))
    for path in (run / "report.html", folder / "hostile.html"):
        page, complaints, requests = look(path)
        assert attack in page.inner_text("#play")
        assert "hacked" not in page.title() or attack in page.title()
        assert page.query_selector("#play img, #play svg, h1 img") is None
        assert complaints == []
        assert len(requests) == 1


def test_data_that_are_no_game_say_so(folder: Path, cart: Opened) -> None:
    hostile = {
        "buffers": [["float32", 1]],
        "inputs": {},
        "outputs": {},
        "operations": [["constructor", [0, 0, [1], [1]], 1.0]],
    }
    for data in ({}, {"games": [{"programs": {"initial": hostile}, "attributes": {}, "actions": []}], "seed": 1}):
        (folder / "odd.html").write_text(play_page(data, ["odd"]))
        cart.page.goto((folder / "odd.html").absolute().as_uri())
        assert "cannot be played" in cart.page.inner_text("#play")


def test_the_scripts_have_one_nonce_and_no_code_from_data() -> None:
    content = play_page({"games": []}, ["x"])
    assert content.count("<script") == content.count(f'<script nonce="{html.NONCE}"') + 1  # and the data
    for forbidden in ("innerHTML", "eval(", "new Function", "document.write", "http:", "https:"):
        assert forbidden not in content, forbidden
