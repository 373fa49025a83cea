"""Names that people bring from other libraries, courses and papers, and what they are called here.

docs/coming-from.md is the same table for reading; a test holds the two together.
"""

SETTINGS = {
    # Stable-Baselines3
    "n_steps": "num_steps",
    "n_envs": "num_envs",
    "n_epochs": "update_epochs",
    "clip_range": "clip_coef",
    "clip_range_vf": "clip_vloss",
    "normalize_advantage": "norm_adv",
    "batch_size": "num_minibatches (the batch num_envs x num_steps divided by the minibatch size)",
    "policy_kwargs": "hidden_sizes, activation, share_trunk and log_std",
    "net_arch": "hidden_sizes",
    "activation_fn": "activation",
    "policy": "nothing: the network is chosen from the spaces; see hidden_sizes and activation",
    "verbose": "quiet",
    "tensorboard_log": "run_dir (metrics are in its metrics.jsonl)",
    # CleanRL
    "env_id": "the first argument, the env",
    "gym_id": "the first argument, the env",
    "exp_name": "run_dir",
    "cuda": "device",
    "torch_deterministic": "nothing: a seed gives the same numbers",
    "minibatch_size": "num_minibatches (the batch num_envs x num_steps divided by the minibatch size)",
    "num_iterations": "total_timesteps (iterations x num_envs x num_steps)",
    # Courses and papers
    "lr": "learning_rate",
    "lr_end": "learning_rate_end",
    "lr_frac": "anneal_fraction",
    "use_lr_decay": "anneal_lr",
    "discount": "gamma",
    "lam": "gae_lambda",
    "clip_eps": "clip_coef",
    "clip_ratio": "clip_coef",
    "entropy_coef": "ent_coef",
    "value_coef": "vf_coef",
    "num_steps_per_rollout": "num_steps",
    "max_trajectory_len": "num_steps",
    "total_phases": "total_timesteps (phases x num_envs x num_steps)",
    "batches_per_learning_phase": "update_epochs x num_minibatches",
    "num_updates_per_epoch": "rollout_uses",
    "rollout_use_count": "rollout_uses",
    "num_batches_per_rollout": "num_batches",
    "use_iw": "use_importance_weights",
    "iw_clip": "weight_clamp",
    "frac_dead_rollout": "dead_fraction",
    "early_stop": "stop_when_solved",
    "mode": "the env's id: the network and the settings follow from it",
    "show_probs": "`tightrope probe --show-probs`",
    "live_viz": "the progress bar, on unless quiet is set",
    "compile": "nothing yet: every run is eager",
    "video_log_freq": "nothing yet: envs draw themselves with env.draw(obs)",
    "use_wandb": "nothing yet: metrics are in the run directory's metrics.jsonl",
    "wandb_project_name": "nothing yet: metrics are in the run directory's metrics.jsonl",
}

ENVS = {
    "CartPole-gpu": "CartPole-v1 (with --device cuda)",
    "CartPole-v0": "CartPole-v1 (with --max-episode-steps 200)",
    "CartPole": "CartPole-v1",
    "Pendulum-v0": "Pendulum-v1",
    "classic-control": "one of the ids that `tightrope envs` lists",
    "probe": "Probe1-v0 to Probe5-v0",
    "pendulum": "Pendulum-v1",
    "MlpPolicy": "nothing: give an env id; the network is chosen from its spaces",
    "CnnPolicy": "nothing: give an env id; the network is chosen from its spaces",
}

FUNCTIONS = {
    "VPGArgs": "tightrope.algorithms.VPGConfig, or keywords of tightrope.VPG",
    "PPOArgs": "tightrope.algorithms.PPOConfig, or keywords of tightrope.PPO",
    "VPGTrainer": "tightrope.VPG",
    "PPOTrainer": "tightrope.PPO",
    "VPGAgent": "tightrope.VPG",
    "PPOAgent": "tightrope.PPO",
    "Rollout": "tightrope.types.Rollout",
    "RolloutTensors": "tightrope.types.Rollout",
    "ReplayMemory": "tightrope.types.Rollout",
    "get_minibatches": "tightrope.types.Batch.minibatches",
    "compute_returns": "tightrope.functional.discounted_returns",
    "normalize_returns": "tightrope.functional.standardize",
    "compute_logprobs_and_entropy": "log_prob and entropy of tightrope.models.Categorical or Gaussian",
    "compute_importance_weights": "tightrope.functional.importance_weights",
    "compute_reinforce_loss": "tightrope.functional.policy_gradient",
    "compute_gae": "tightrope.functional.gae",
    "compute_advantages": "tightrope.functional.gae",
    "calc_clipped_surrogate_objective": "tightrope.functional.clipped_surrogate",
    "calc_value_function_loss": "tightrope.functional.value_loss",
    "calc_entropy_bonus": "tightrope.functional.entropy_bonus",
    "PPOScheduler": "tightrope.functional.linear",
    "make_optimizer": "tightrope.engine.Optimizer",
    "rollout_phase": "tightrope.engine.collect",
    "learning_phase": "the second half of tightrope.algorithms.ppo.phase",
    "ENV_DICT": "tightrope.envs.ENVS",
    "record_grid_video": "tightrope.draw.grid over env.draw(obs)",
    "render_rollout_grid_html": "tightrope.draw.grid over env.draw(obs)",
    "rollout_grid_frames": "tightrope.draw.grid over env.draw(obs)",
    "get_episode_data_from_infos": "env.finished_episodes()",
    "evaluate_actions": "tightrope.models.ActorCritic: distribution, value = policy(obs)",
    "train_one_trajectory": "tightrope.algorithms.vpg.phase",
    "rollout_episode": "tightrope.engine.collect",
    "evaluate_policy": "agent.evaluate()",
    "make_vec_env": "tightrope.envs.make",
    "MlpPolicy": "nothing: the network is chosen from the spaces",
}


def here_called(name: str, table: dict[str, str]) -> str | None:
    """'here it is called X' for a name known from elsewhere."""
    if name not in table:
        return None
    other = table[name]
    return (
        f"here it is {other.removeprefix('nothing: ')}" if other.startswith("nothing") else f"here it is called {other}"
    )
