"""What the documents say is there: files, links, commands with their flags, symbols, keywords, packages."""

import ast
import contextlib
import inspect
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import tightrope as tr
from tightrope.algorithms import ALGORITHMS
from tightrope.cli import COMMANDS, main
from tightrope.training.build import check_env
from tightrope.training.config import setting_types
from tightrope.training.video import Shot

ROOT = Path(tr.__file__).parents[1]
MEASURED = [ROOT / "docs" / "benchmarks.md", ROOT / "benchmarks" / "results" / "README.md"]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", MEASURED[1]]
FOREIGN = {  # flags of other programs that the text names, by program
    "--track", "--capture-video", "--env-id",  # CleanRL
    "--max-restarts", "--local-addr", "--nproc-per-node",  # torchrun
}  # fmt: skip
ELSEWHERE = {  # names of other projects
    "NoopResetEnv", "MaxAndSkipEnv", "EpisodicLifeEnv", "FireResetEnv", "WarpFrame", "ClipRewardEnv", "FrameStack",  # Baselines
    "legal_actions", "enable_wind", "camera_name", "intra_op_num_threads", "tcp_retries2", "KillWait",
}  # fmt: skip
SETTINGS_OF_TRAIN = ("train", "resume", "sweep", "bench", "clone")  # commands that take them besides flags of their own
PLACEHOLDER = r"[A-Z][A-Z_]*|\.\.\.|.*\$.*"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def blocks(page: Path, language: str = r"\w*") -> list[str]:
    every = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [code for there, code in every if re.fullmatch(language, there)]


def spans(page: Path) -> list[str]:
    """Inline code."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", prose)


def test_a_block_after_a_block_of_another_language_is_found(tmp_path: Path) -> None:
    (page := tmp_path / "page.md").write_text("```python\nx\n```\n\n```bash\ny\n```\n\n```\nz\n```\n")
    assert (blocks(page, "python"), blocks(page, "(?:bash)?")) == (["x\n"], ["y\n", "z\n"])


# files and links ------------------------------------------------------------------------------------------------------


PLACES = (ROOT, ROOT / "tightrope", *(ROOT / folder for folder in ("tests", "docs", "benchmarks", "examples")))


@every_page
def test_files_and_names_in_them(page: Path) -> None:
    text, code = page.read_text(), "\n".join([*blocks(page), *spans(page)])
    named = re.findall(r"`([\w-]+/[\w./-]+\.(?:py|md|yaml))(?:::(\w+))?`", text)
    named += re.findall(r"`([\w./-]+\.py)` ((?:`\w[\w.]*`(?:, )?)+)", text)
    named += [(name, "") for name in re.findall(r"\b(?:benchmarks|examples|tests|docs)/[\w./-]+\w", code)]
    for name, members in named:
        path = next((place / name for place in PLACES if (place / name).exists()), None)
        assert path or re.fullmatch(r"runs/.*\.yaml|sweeps/.*", name), f"{name} is not there"
        for word in re.findall(r"\w+", members) if path else ():
            assert re.search(rf"\b{word}\b", path.read_text()), f"{name} has no {word}"


def anchors(page: Path) -> set[str]:
    """Of the headings, as mkdocs makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@every_page
def test_links_and_their_anchors(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(((?!https?:)[^)#]*)(?:#([^)]*))?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), f"no {target}"
        assert not anchor or anchor in anchors(path), f"no heading {anchor} in {path.name}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_every_page_is_in_the_site() -> None:
    named = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    there = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert named == there


def test_the_tree_of_packages_is_that_on_the_disk() -> None:
    (tree,) = (block for block in blocks(ROOT / "docs" / "architecture.md") if block.startswith("tightrope/"))
    named = re.findall(r"^[├└]── ([\w./]+)", tree, re.MULTILINE)
    there = [path.name + "/" * path.is_dir() for path in (ROOT / "tightrope").iterdir()]
    assert sorted(named) == sorted(set(there) - {"__init__.py", "__pycache__/", "py.typed"})


# commands -------------------------------------------------------------------------------------------------------------


HELP_ROW = r"^  (--[a-z][a-z-]*)(?:, --no-[a-z-]+)?( (?:\{.*?\}|[A-Z][A-Z|=:]*)(?: \.\.\.)?)?"


@cache
def flags_of(command: str) -> dict[str, str]:
    """The flags that a command's help has and what their values look like; empty for switches."""
    asked = [[command]]
    if command in SETTINGS_OF_TRAIN:
        asked = [["train", "--algo", "vpg"], ["train"], [command]]
    found: dict[str, str] = {}
    for words in asked:
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
            main([*words, "--help"])
        found |= {flag: value.strip() for flag, value in re.findall(HELP_ROW, out.getvalue(), re.MULTILINE)}
    return found | {"--help": ""}


def commands_in(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, its words) of every call of tightrope in a piece of code."""
    text = text.replace("\\\n", " ")
    for command, rest in re.findall(r"(?:^|(?<=[\s\"(]))(?<!import )tightrope ([a-z]+)\b([^\n]*)", text, re.MULTILINE):
        inside_quotes = rest.count('"') % 2
        rest = re.split(r"\s[|>;&]|`|\s#" + '|"' * inside_quotes, rest)[0]
        yield command, shlex.split(rest, comments=True)


def wrong_value(kind: str, value: str) -> bool:
    if re.fullmatch(PLACEHOLDER, value):
        return False
    if kind.startswith("{"):
        return value not in (*kind.strip("{} .").split(","), "none")
    pattern = {"INT": r"\d+|none", "FLOAT": r"[\d.e-]+|none"}.get(kind.removesuffix(" ..."), ".+")
    return not re.fullmatch(pattern, value)


def mistakes(command: str, words: list[str]) -> Iterator[str]:
    """What is wrong with a command line."""
    if command not in COMMANDS:
        yield f"no command {command}"
        return
    flags, plain = flags_of(command), []
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            plain.append(word)
            continue
        flag, _, value = word.partition("=")
        if flag not in flags and flag.replace("--no-", "--", 1) in flags:
            continue
        if flag not in flags:
            yield f"{command} has no {flag}"
            continue
        values = [value] if value else []
        while words and not words[0].startswith("--") and flags[flag] and (flags[flag].endswith("...") or not values):
            values.append(words.pop(0))
        if flags[flag] and not values:
            yield f"{flag} has no value"
        yield from (f"{flag} {value} is not {flags[flag]}" for value in values if wrong_value(flags[flag], value))
    if len(plain) > 1 and command not in ("play", "report"):
        yield f"{command} takes one word, not {plain}"
    for env in plain if command in ("train", "sweep", "bench", "check") else ():
        try:
            check_env("CartPole-v1" if re.fullmatch(rf"\w+:\w+|{PLACEHOLDER}", env) else env)
        except tr.UsageError as error:
            if "not installed" not in str(error):
                yield str(error)


@every_page
def test_commands_and_their_flags(page: Path) -> None:
    for piece in [*blocks(page, "(?:bash)?"), *spans(page)]:
        for command, words in commands_in(piece):
            assert list(mistakes(command, words)) == [], piece


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tightrope trian CartPole-v1", "no command trian"),
        ("tightrope train CartPole-v7", "unknown env"),
        ("tightrope train CartPole-v1 --n-steps 3", "no --n-steps"),
        ("$ torchrun -m tightrope train CartPole-v1 --quiet loud", "takes one word"),
        ("tightrope eval runs/a --num-steps 3  # a setting of train", "no --num-steps"),
        ("tightrope train CartPole-v1 \\\n --num-envs many", "many is not INT"),
        ("tightrope train CartPole-v1 --accelerate fast", "fast is not"),
        ("tightrope record runs/a --out --grid", "no value"),
    ],
)
def test_a_wrong_command_is_found(line: str, words: str) -> None:
    ((command, found),) = commands_in(line)
    assert words in "; ".join(mistakes(command, found))


@every_page
def test_flags_in_the_text(page: Path) -> None:
    ours = {flag for command in COMMANDS for flag in flags_of(command)}
    for script in (ROOT / "benchmarks").rglob("*.py") if page in MEASURED else ():
        ours |= set(re.findall(r"\"(--[a-z][a-z-]*)\"", script.read_text()))
    for span in spans(page):
        if re.match(r"(torchrun|python|sbatch|pip|apt|tensorboard|pytest) ", span):
            continue
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span):
            known = ours | FOREIGN | {"--n-steps"}
            assert flag in known or flag.replace("--no-", "--", 1) in known, span


@every_page
def test_scripts_have_the_flags_that_are_given_to_them(page: Path) -> None:
    for piece in [*blocks(page, "(?:bash)?"), *spans(page)]:
        for name, rest in re.findall(r"(?<!/)\b(benchmarks/[\w/]+\.py)([^\n]*)", piece.replace("\n", " ")):
            script = (ROOT / name).read_text()
            local = re.findall(r"^ *(?:from|import) \.?(\w+)", script, re.MULTILINE)
            beside = [path.read_text() for path in (ROOT / name).parent.glob("*.py") if path.stem in local]
            for flag in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", rest):
                assert any(f'"{flag}"' in text for text in (script, *beside)), f"{name} has no {flag}"


# symbols --------------------------------------------------------------------------------------------------------------


@cache
def agent() -> tr.Agent:
    """One with a network of its own."""
    return tr.PPO("CartPole-v1", network=lambda: torch.nn.Linear(4, 8), device="cpu")


def resolve(dotted: str) -> Any:
    """The object behind tr.x, tightrope.x.y or agent.x, importing as much of it as is a module."""
    first, *names = dotted.split(".")
    if first == "agent":
        return reduce(getattr, names, agent())
    for split in range(len(names), -1, -1):
        with contextlib.suppress(ModuleNotFoundError):
            return reduce(getattr, names[split:], import_module(".".join(["tightrope", *names[:split]])))
    raise AttributeError(dotted)


DOTTED = r"(?<![\w./:-])(?:tr|tightrope|agent(?!\.py))(?:\.[A-Za-z_]\w*)+"


@every_page
def test_symbols(page: Path) -> None:
    named = re.findall(DOTTED, "\n".join([*spans(page), *blocks(page, "python")]))
    named += re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    for dotted in [*named, *listed_members(page)]:
        assert resolve(dotted) is not None


def listed_members(page: Path) -> Iterator[str]:
    """The members that mkdocstrings blocks list: a name that does not exist would be left out of the site silently."""
    block = r"^::: (\S+)\n(?:(?: {2,}.*)?\n)*? +members: \[(.*)\]$"
    for owner, members in re.findall(block, page.read_text(), re.MULTILINE):
        yield from (f"{owner}.{member}" for member in members.split(", "))


@pytest.mark.parametrize("dotted", ["tr.PPOTrainer", "tightrope.functional.compute_gae", "tr.nothing", "agent.fit"])
def test_a_symbol_that_is_not_there_is_found(dotted: str) -> None:
    assert re.fullmatch(DOTTED, dotted)
    with pytest.raises(AttributeError):
        resolve(dotted)


@cache
def words_of_the_package() -> set[str]:
    files = [*(ROOT / "tightrope").rglob("*.py"), *(ROOT / "examples").rglob("*.sbatch"), ROOT / "pyproject.toml"]
    return {word for file in files for word in re.findall(r"\w+", file.read_text())}


@every_page
def test_names_with_an_underscore_or_a_hump_are_in_the_package(page: Path) -> None:
    foreign = r".*" if page.stem == "coming-from" or page in MEASURED else r"\.(py|ipynb)\b|^torch\."
    for span in (span for span in spans(page) if not re.search(foreign, span)):
        for word in re.findall(r"_*[A-Za-z]+(?:_[a-z0-9]+)+_*|\b(?:[A-Z]+[a-z]+){2,}\b", span):
            assert word in words_of_the_package() | ELSEWHERE, span


def keywords_of(name: str) -> set[str] | None:
    """The keywords that something takes; None if it is not ours."""
    method = name.rpartition(".")[2]
    if name in ("tr.PPO", "tr.VPG", "tr.load"):
        algo = "vpg" if name == "tr.VPG" else "ppo"
        own = ALGORITHMS[algo].config.replaceable.split()  # a function of the user's, by the name of what it replaces
        return {*setting_types(algo), *own, *inspect.signature(resolve(name)).parameters}
    if re.fullmatch(r"tr(\.\w+)+", name):
        return None if inspect.isclass(resolve(name)) else set(inspect.signature(resolve(name)).parameters)
    if method in ("learn", "evaluate", "predict", "save", "record", "show", "export") and "model" not in name:
        own = set(inspect.signature(getattr(tr.Agent, method)).parameters)
        return own | set(Shot.__dataclass_fields__) if method in ("record", "show") else own
    return None


def unknown_keywords(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        known = keywords_of(ast.unparse(node.func)) if isinstance(node, ast.Call) else None
        if known is not None:
            yield from (f"{ast.unparse(node.func)} {k.arg}" for k in node.keywords if k.arg and k.arg not in known)


@every_page
def test_python_and_its_keywords(page: Path) -> None:
    for code in blocks(page, "python"):
        assert list(unknown_keywords(code)) == []


def test_an_unknown_keyword_is_found() -> None:
    code = "agent = tr.PPO('CartPole-v1', n_steps=3)\nagent.learn(steps=3)\nagent.record('x', grid=True)"
    assert list(unknown_keywords(code)) == ["tr.PPO n_steps", "agent.learn steps"]
