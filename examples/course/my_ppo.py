"""Write VPG and PPO yourself, in two afternoons. The page docs/course.md leads through this file.

    python examples/course/my_ppo.py          # says what is right and what is wrong so far
    python examples/course/my_ppo.py vpg      # trains VPG with the functions that are right
    python examples/course/my_ppo.py ppo      # trains PPO with them

Replace each `raise NotImplementedError` by your own lines. T is time, N environments, B the rows of a batch.
"""

import argparse

import torch

import tightrope as tr
from tightrope import exercises

# first afternoon: VPG ---------------------------------------------------------------------------------------------------


def discounted_returns(reward, terminated, done, next_value, gamma):
    """Exercise 1. Return G_t = r_t + gamma G_{t+1} within each episode, (T, N).

    reward, next_value: (T, N) floats. terminated, done: (T, N) bools, `done` marks the last step of an episode for any reason.
    Hints: go backwards through time, keeping one running sum for each environment. The sum is cut where `done`, and in the
    last row. Where it is cut but the task has not ended (not terminated), gamma times next_value stands for what follows.
    """
    raise NotImplementedError


def timestep_mean(x, alive):
    """Exercise 2. Return the mean of x over the environments that are alive at each step, (T, 1); 0 where none is.

    x: (T, N) returns. alive: (T, N) bools. Hints: multiply by alive before the sum; divide by the number alive, but at least 1
    (clamp); keepdim=True keeps the last axis.
    """
    raise NotImplementedError


def policy_gradient(log_prob, advantage, weight, mask):
    """Exercise 3. Return the objective of REINFORCE, one number to be maximised: the mean of weight x log_prob x advantage
    over the rows where the mask is True. All are (B,).

    Hints: only log_prob may get a gradient, so detach the others.
    """
    raise NotImplementedError


def importance_weights(log_prob, old_log_prob, clamp):
    """Exercise 4. Return pi / pi_old for each action, (B,), from logarithms of probabilities, without a gradient.

    Hints: a quotient is the exponential of a difference of logarithms. Clamp it to [1 - clamp, 1 + clamp], unless clamp is
    None.
    """
    raise NotImplementedError


def entropy(logits):
    """Exercise 5a. Return the entropy -sum of p log p of each row of logits (B, A), (B,).

    Hints: log_softmax turns logits into logarithms of probabilities.
    """
    raise NotImplementedError


def entropy_bonus(entropy):
    """Exercise 5b. Return the mean of the entropies (B,): one number, to be maximised."""
    raise NotImplementedError


def learning_rate(progress):
    """Exercise 6. Return a learning rate that falls linearly from 0.01 at progress 0 to 0 at progress 1."""
    raise NotImplementedError


def collect(env, policy, rollout, obs, noise):
    """Exercise 7. Fill a rollout of T steps and return the observations after it, (N, ...).

    policy.act(obs, noise.action[t]) returns (action, given): what to learn from, and what to give to the environment.
    policy(obs) returns (distribution, value); distribution.log_prob(action) is (N,).
    env.step(given, noise.reset[t]) returns obs, reward, terminated, truncated, final_obs as fields.
    Fill rollout.obs[t], action, log_prob, value, reward, terminated, truncated and final_obs, all of step t.
    Hints: rollout.obs[t] is what the policy saw, before the step. len(rollout.reward) is T. Assign with [t] = ...
    """
    raise NotImplementedError


def vpg_phase(state, config, noise):
    """Exercise 8. One phase of VPG: collect, estimate, learn. Return its metrics.

    The steps, in this order:
    1. state.env.reset(noise=noise.start) returns first observations; state.collect(obs, noise) fills state.rollout.
    2. alive = tr.functional.alive_mask(rollout.done): the steps of each first episode.
    3. returns by your discounted_returns, without a critic: next_value is zeros. Advantage: returns less your timestep_mean.
    4. batch = rollout.trajectories(advantage, target=returns, alive=alive).
    5. loss = tr.functional.VPGLoss(config.use_importance_weights, config.weight_clamp, 0.0, config.ent_coef,
       importance_weights, policy_gradient), with your own functions as the last two.
    6. For each minibatch of batch.minibatches(config.num_batches, batch.order(noise.shuffle)):
       terms = state.runtime.backward(loss, state.policy, minibatch, state.optimizer) writes the gradient,
       norm = state.runtime.step(state.optimizer, config.max_grad_norm) takes a step of Adam. Keep (terms, norm) in a list.
    7. state.runtime.update_statistics(state.policy, rollout.obs, alive), for the normalizer of observations.
    8. return exercises.vpg_metrics(state, batch, rows).
    """
    raise NotImplementedError


# second afternoon: PPO ---------------------------------------------------------------------------------------------------


def gae(reward, value, next_value, terminated, done, gamma, gae_lambda):
    """Exercise 9. Return generalised advantage estimates, (T, N).

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t); A_t = delta_t + gamma lambda A_{t+1}.
    Hints: next_value is V(s_{t+1}), already that of the final observation at an episode's end. `terminated` decides whether
    there is a future to add to delta; `done` decides where the trace, the running sum of the A, is cut.
    """
    raise NotImplementedError


def clipped_surrogate(log_prob, old_log_prob, advantage, clip_coef):
    """Exercise 10. Return the mean of min(rho A, clip(rho, 1 - clip_coef, 1 + clip_coef) A), one number to be maximised.

    rho = pi / pi_old. Hints: only log_prob may get a gradient; Tensor.clamp clips; torch.min of two tensors is elementwise.
    """
    raise NotImplementedError


def value_loss(value, target):
    """Exercise 11. Return half the mean squared error, one number. Only value may get a gradient."""
    raise NotImplementedError


def minibatches(batch, count, order):
    """Exercise 12. Yield `count` disjoint minibatches for each row of `order`, (epochs, B), which is a permutation of rows.

    Hints: batch.take(index) returns the rows at an index, all columns alike. len(batch) is B. rows.tensor_split cuts a tensor.
    """
    raise NotImplementedError


def ppo_phase(state, config, noise):
    """Exercise 13. One phase of PPO. Return its metrics.

    The steps, in this order:
    1. state.collect(state.obs, noise) fills state.rollout; state.obs is then what the policy sees next.
    2. Without gradients (torch.no_grad): final_value = state.runtime.final_values(state.policy, rollout), V(final_obs);
       next_value = tr.functional.successor_values(rollout.value, state.policy.value(state.obs), rollout.done, final_value);
       the advantages by your gae.
    3. batch = rollout.batch(advantage, target=...): the target is advantage + rollout.value.
    4. loss = tr.functional.PPOLoss(state.clip_coef, config.vf_coef, config.ent_coef, False, clipped_surrogate, value_loss,
       entropy_bonus), with your own functions as the last three.
    5. For each minibatch of minibatches(batch, config.num_minibatches, batch.order(noise.shuffle)): give minibatch.advantage
       mean 0 and standard deviation 1 (add 1e-8 to the deviation), then backward and step as in exercise 8.
    6. state.runtime.update_statistics(state.policy, rollout.obs, rollout.valid).
    7. return exercises.ppo_metrics(state, batch, rows).
    """
    raise NotImplementedError


# checking and training ----------------------------------------------------------------------------------------------------

EXERCISES = {
    "discounted_returns": discounted_returns, "timestep_mean": timestep_mean, "policy_gradient": policy_gradient,
    "importance_weights": importance_weights, "entropy": entropy, "entropy_bonus": entropy_bonus,
    "learning_rate": learning_rate, "collect": collect, "vpg_phase": vpg_phase, "gae": gae,
    "clipped_surrogate": clipped_surrogate, "value_loss": value_loss, "minibatches": minibatches, "ppo_phase": ppo_phase,
}  # fmt: skip
IN_VPG = ["discounted_returns", "timestep_mean", "policy_gradient", "importance_weights", "learning_rate", "collect"]
IN_PPO = ["gae", "clipped_surrogate", "value_loss", "entropy_bonus", "minibatches", "learning_rate", "collect"]


def train(algo: str, right: set[str]) -> None:
    """Train on CartPole with the functions that are right, and Tightrope's in place of the others."""
    own = {name: EXERCISES[name] for name in (IN_VPG if algo == "vpg" else IN_PPO) if name in right}
    if f"{algo}_phase" in right:
        own["phase"] = EXERCISES[f"{algo}_phase"]
    print(f"{algo} with your own {', '.join(own) or 'nothing yet'}")
    kind, steps = (tr.VPG, 400_000) if algo == "vpg" else (tr.PPO, 60_000)
    agent = kind("CartPole-v1", seed=1, **own).learn(steps)
    print(agent.evaluate(20))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Check the functions of this file, then train with those that are right."
    )
    parser.add_argument("algo", nargs="?", choices=["vpg", "ppo"], help="what to train; nothing: only check")
    algo = parser.parse_args().algo
    torch.set_num_threads(1)
    right = {name for name, function in EXERCISES.items() if getattr(exercises, f"test_{name}")(function)}
    print(f"{len(right)} of {len(EXERCISES)} are right")
    if algo:
        train(algo, right)


if __name__ == "__main__":
    main()
