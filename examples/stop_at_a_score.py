"""Stop at a score: a callback looks at the metrics of each phase, and at an evaluation where they look good enough.

`stop_at_return` with `eval_every` does the same at fixed steps. What was trained is saved, and can be trained further.
"""

import tightrope as tr


class StopAtScore(tr.Callback):
    """Ends training once 20 greedy episodes return `score` on average.

    An evaluation takes time, so only phases whose training return is at least `promising` get one. Choose it below `score`:
    actions are sampled in training, and return less than greedy ones.
    """

    def __init__(self, agent, score, promising):
        self.agent, self.score, self.promising = agent, score, promising

    def on_phase(self, row):
        if row.get("charts/episodic_return", -float("inf")) < self.promising:  # missing if no episode ended
            return
        mean = self.agent.evaluate(20).mean
        if mean >= self.score:
            raise tr.StopTraining(f"20 episodes returned {mean:.1f} on average")


# with a length given, the preset does not stop by itself
agent = tr.PPO("CartPole-v1", seed=1, total_timesteps=100_000)
agent.learn(run_dir="runs/stopped", callbacks=[StopAtScore(agent, score=475, promising=380)])
print(f"{agent.steps:,} of {agent.config.algorithm.total_timesteps:,} steps:", agent.evaluate(100))
print("saved:", tr.load("runs/stopped"))
