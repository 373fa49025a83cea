"""Write the page on which trained policies play."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError, printable
from ..files import Place, write_file
from ..logging.report import html
from ..models import ActorCritic
from ..training.reports import PLAY
from ..types import Env
from .agreement import check_game
from .game import Game, game_of


@dataclass(frozen=True)
class PlayPage:
    """A page that was written."""

    path: Path
    size: int  # bytes
    games: list[Game]

    def __str__(self) -> str:
        names = " and ".join(game.title for game in self.games)
        agreement = self.games[0].agreement.removesuffix(".")
        return f"{self.path}: {names}, {self.size / 1e3:,.0f} kB. {agreement}"


def checked_game(policy: ActorCritic, env: Env, seed: int, title: str, steps: int) -> Game:
    """A game that agrees with torch."""
    game = game_of(policy, env, seed, title, steps)
    check_game(game, seed)
    return game


def page_data(games: Sequence[Game], seed: int) -> dict[str, object]:
    return {"games": [game.as_json() for game in games], "seed": seed % (1 << 31)}


def play_page(data: object, titles: Sequence[str]) -> str:
    """The whole page."""
    title = printable(", ".join(dict.fromkeys(title.partition(" · ")[0] for title in titles)))
    header = html.page_header(title, "play", f"{html.PLAY_NOTE} Written {html.now()}.")
    content = f'<main><section aria-label="Player">{html.player(data, "page")}</section></main>'
    footer = html.footer("Sliders and pushes change only this page.")
    return html.whole_page(f"{title} · play", f"{header}\n{content}\n{footer}")


def write_play_page(games: Sequence[Game], path: Path, seed: int) -> PlayPage:
    content = play_page(page_data(games, seed), [game.title for game in games]).encode("utf-8", "replace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError as error:
        raise UsageError(f"path {path} cannot be written: {error.strerror or error}") from None
    return PlayPage(path, len(content), [*games])


def save_game(game: Game, run_dir: Path, seed: int) -> None:
    """Write what the report of a run needs to show its player."""
    (Place(run_dir) / PLAY).write(json.dumps(page_data([game], seed), allow_nan=False).encode())
