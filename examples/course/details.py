"""Change details of PPO, one at a time, and watch what happens to CartPole.

    python examples/course/details.py              # every switch, five seeds: two minutes
    python examples/course/details.py --seeds 1    # a first look

The numbers are those of docs/details37.md. Returns are greedy, over 50 episodes, after 30,000 steps.
"""

import argparse

import torch

import tightrope as tr

SWITCHES = {
    "as the preset has it": {},
    "5 GAE: one-step advantages": dict(gae_lambda=0.0),
    "5 GAE: whole returns": dict(gae_lambda=1.0),
    "6 one pass over each rollout": dict(update_epochs=1),
    "6 one minibatch": dict(num_minibatches=1),
    "7 advantages as they are": dict(norm_adv=False),
    "8 no clipping of the ratio": dict(clip_coef=1e6, anneal_clip=False),
    "8 a ratio clipped at 1.01": dict(clip_coef=0.01, anneal_clip=False),
    "9 value loss clipped": dict(clip_vloss=True),
    "10 entropy bonus of 0.5": dict(ent_coef=0.5),
    "11 gradient norm not limited": dict(max_grad_norm=None),
    "28 observations normalised": dict(norm_obs=True),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(1, parser.parse_args().seeds + 1)
    torch.set_num_threads(1)
    for name, settings in SWITCHES.items():
        scores = []
        for seed in seeds:
            agent = tr.PPO(
                "CartPole-v1", seed=seed, total_timesteps=30_000, eval_every=0, stop_at_return=None, **settings
            )
            scores.append(agent.learn(quiet=True).evaluate(50).mean)
        print(f"{name:32}  {'  '.join(f'{score:5.0f}' for score in sorted(scores))}")


if __name__ == "__main__":
    main()
