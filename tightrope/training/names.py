"""Names of settings, methods and classes in other libraries, courses and papers, and their names here.

docs/coming-from.md has the same table; a test checks that the two agree.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..errors import UsageError, near_matches

CALLBACKS = ": learn(callbacks=[...]) takes tr.Callback objects; eval_every, save_every and stop_at_return need none"
MINIBATCHES = "num_minibatches (the batch num_envs x num_steps divided by the minibatch size)"
VIDEO = (
    ": training is filmed without a switch, into run_dir; video_every says how often, in phases, and 0 films nothing"
)
EARLY = ": stop_at_return with eval_every, as the preset of CartPole-v1 has them; VPG also has stop_when_solved"
LIVE = ": agent.learn(live=True) plays the last rollout in a notebook; elsewhere report.html in run_dir has videos"
OFF_POLICY = ": there are PPO and VPG, no off-policy methods"
OTHER_ENV = ": tr.load(path, env=...) brings another environment, agent.evaluate(env=...) scores in one"
Method = TypeVar("Method", bound=Callable[..., object])


def foreign_names(table: dict[str, str]) -> dict[str, str]:
    """Invert {our name: "their names"} to {their name: our name}."""
    return {name: here for here, names in table.items() for name in names.split()}


def here_called(name: str, table: dict[str, str]) -> str | None:
    """'here it is called X' for a name of another library. A table entry that starts with a colon is the whole answer."""
    if name not in table:
        return None
    other = table[name]
    return other.removeprefix(": ") if other.startswith(":") else f"here it is called {other}"


SETTINGS = foreign_names({
    "num_steps": "n_steps num_steps_per_env num_steps_per_rollout max_trajectory_len rollout_length rollout_fragment_length",
    "num_envs": "n_envs num_workers num_processes",
    "update_epochs": "n_epochs num_learning_epochs num_epochs ppo_epochs k_epochs num_sgd_iter train_pi_iters",
    "clip_coef": "clip_range clip_eps clip_ratio clip_param",
    "clip_vloss (a switch; its width is clip_coef)": "clip_range_vf use_clipped_value_loss",
    "norm_adv": "normalize_advantage normalize_advantage_per_mini_batch",
    MINIBATCHES: "batch_size minibatch_size sgd_minibatch_size",
    "hidden_sizes, activation, share_trunk and log_std": "policy_kwargs",
    "hidden_sizes": "net_arch hidden_size hidden_dim actor_hidden_dims critic_hidden_dims",
    "activation": "activation_fn",
    "actor_obs and critic_obs": "obs_groups",
    "init_from": "warm_start pretrained",
    "memory (gru, lstm or mingru)": "lstm use_lstm recurrent use_rnn rnn_type",
    "memory_size": "lstm_hidden_size lstm_cell_size rnn_hidden_size hidden_state_size",
    "memory_layers": "n_lstm_layers lstm_layers rnn_layers",
    "share_trunk (actor and critic then share their memory too)": "shared_lstm enable_critic_lstm",
    "num_steps (with memory a minibatch is all steps of some environments)": "sequence_length max_seq_len bptt",
    ": the network is chosen from the spaces; see hidden_sizes and activation": "policy",
    "log (log tensorboard; events are in run_dir)": "tensorboard_log",
    "run_name": "tb_log_name",
    "total_timesteps": "n_timesteps max_timesteps num_timesteps timesteps num_env_steps",
    "eval_every": "eval_freq eval_interval",
    "eval_episodes": "n_eval_episodes",
    "save_every": "save_freq checkpoint_freq checkpoint_every checkpoint_interval save_interval",
    ": with eval_every the best policy is kept in run_dir, as checkpoint best": "best_model_save_path",
    CALLBACKS: "callback",
    ": every phase is logged": "log_interval",
    ": output is on unless quiet is set": "progress_bar verbose",
    "norm_obs and norm_reward": "normalize",
    "norm_obs": "empirical_normalization",
    "log_std_init (the logarithm)": "init_noise_std",
    ": no learning rate follows the KL divergence; anneal_lr decays it, target_kl ends a phase early": "desired_kl schedule",
    "vectorization_mode": "vec_env_cls",
    ": networks always start orthogonal": "ortho_init",
    ": there is no such exploration; log_std and log_std_init set how wide actions are drawn": "use_sde",
    ": the return shown is the mean over all episodes that ended in a phase": "stats_window_size",
    ": give the env first, as in `tightrope train CartPole-v1`": "env_id gym_id",
    "run_dir (trackers show run_name)": "exp_name",
    ": every run is saved in its run_dir while it trains, and `tightrope export` writes one file": "save_model upload_model",
    ": a seed always gives the same numbers": "torch_deterministic",
    "learning_rate": "lr",
    "learning_rate_end": "lr_end",
    "anneal_fraction": "lr_frac",
    "anneal_lr (a linear decay to learning_rate_end)": "use_lr_decay lr_decay",
    "learning_rate (a schedule, as in 'cosine(3e-4, 0)')": "lr_schedule lr_scheduler learning_rate_schedule",
    "clip_coef (a schedule, as in 'linear(0.2, 0)')": "clip_range_schedule",
    "ent_coef (a schedule, as in 'linear(0.01, 0)')": "entropy_coeff_schedule",
    "wrappers": "wrapper_class env_wrapper",
    "env_kwargs": "env_args env_config gym_kwargs make_kwargs",
    "gamma": "discount",
    "gae_lambda": "lam lambda_",
    "ent_coef": "entropy_coef entropy_coeff",
    "vf_coef": "value_coef vf_loss_coeff",
    "vf_coef (twice as large: the value loss here has a factor 1/2)": "value_loss_coef",
    "total_timesteps (phases x num_envs x num_steps)": "total_phases num_updates num_iterations max_iterations",
    "update_epochs x num_minibatches": "batches_per_learning_phase",
    "rollout_uses": "num_updates_per_epoch rollout_use_count",
    "num_batches": "num_batches_per_rollout",
    "use_importance_weights": "use_iw",
    "weight_clamp": "iw_clip",
    "dead_fraction": "frac_dead_rollout",
    "stop_at_return (of an evaluation, so with eval_every)": "reward_threshold",
    EARLY: "early_stop early_stopping",
    ": no run ends for lack of progress; stop_at_return with eval_every ends one that is good enough": "patience",
    ": there is no loss of evaluations; their mean return is the score": "eval_loss",
    ": give the env's id; the network and the settings follow from it": "mode",
    ": see `tightrope probe --show-probs`": "show_probs",
    LIVE: "live_viz",
    "accelerate": "compile",
    "log (log wandb)": "use_wandb track",
    "entity": "wandb_entity",
    VIDEO: "video record_video capture_video",
    "video_every (in phases, not in episodes or steps; a few videos are made without it)": "video_log_freq",
    "video_every (0 films nothing)": "no_video",
    "project": "wandb_project_name",
    "update_epochs (passes over a batch) or total_timesteps (the length of a run)": "epochs",
    "num_minibatches": "num_mini_batch num_mini_batches",
    "num_envs and num_steps (their product)": "train_batch_size steps_per_epoch",
    "num_steps (of a rollout) or max_episode_steps (of an episode)": "horizon",
    "max_episode_steps": "max_ep_len",
    "learning_rate (one for actor and critic)": "pi_lr vf_lr",
    "max_grad_norm": "grad_clip",
    "total_timesteps (training is counted in steps)": "num_episodes",
    "seed": "random_seed",
    "device (device cuda, or device cpu)": "cuda gpu use_gpu use_cuda no_cuda cpu",
    "run_dir": "log_dir logdir save_dir output_dir",
    ": `tightrope resume RUN` continues a run, `tightrope eval RUN` scores it": "load load_model load_path",
    "eval_episodes (of an evaluation) or total_timesteps (training is counted in steps)": "episodes",
    "eval_seconds (of an evaluation)": "seconds",
    ": `tightrope record` films what was trained, video_every the training": "render",
})  # fmt: skip

ENVS = foreign_names({
    "CartPole-v1 (with --device cuda)": "CartPole-gpu",
    "CartPole-v1 (with --max-episode-steps 200)": "CartPole-v0",
    "CartPole-v1": "CartPole",
    "Pendulum-v1": "Pendulum-v0 pendulum",
    ": give one of the ids that `tightrope envs` lists": "classic-control",
    ": give the game's id, such as ALE/Pong-v5": "atari",
    ": give the task's id, such as HalfCheetah-v5": "mujoco",
    ": give an env id; the network is chosen from its spaces": "MultiInputPolicy MlpPolicy CnnPolicy",
    ": give an env id and memory='lstm'": "MlpLstmPolicy CnnLstmPolicy MultiInputLstmPolicy",
    "Probe1-v0 to Probe5-v0": "probe",
})  # fmt: skip

FUNCTIONS = foreign_names({
    "tightrope.algorithms.VPGConfig, or keywords of tightrope.VPG": "VPGArgs",
    "tightrope.algorithms.PPOConfig, or keywords of tightrope.PPO": "PPOArgs",
    "tightrope.VPG": "VPGTrainer VPGAgent",
    "tightrope.PPO": "PPOTrainer PPOAgent",
    "tightrope.PPO: action masks are detected automatically": "MaskablePPO ActionMasker",
    "tightrope.PPO with memory='lstm'": "RecurrentPPO",
    "tightrope.types.Rollout": "Rollout RolloutTensors ReplayMemory",
    "tightrope.types.Batch.minibatches": "get_minibatches",
    "tightrope.functional.discounted_returns": "compute_returns",
    "tightrope.functional.standardize": "normalize_returns",
    "log_prob and entropy of tightrope.models.Categorical or Gaussian": "compute_logprobs_and_entropy",
    "tightrope.models.Hybrid": "TorchMultiActionDistribution CompositeDistribution",
    "tightrope.functional.importance_weights": "compute_importance_weights",
    "tightrope.functional.policy_gradient": "compute_reinforce_loss",
    "tightrope.functional.gae": "compute_gae compute_advantages",
    "tightrope.functional.clipped_surrogate": "calc_clipped_surrogate_objective",
    "tightrope.functional.value_loss": "calc_value_function_loss",
    "tightrope.functional.entropy_bonus": "calc_entropy_bonus",
    "tightrope.functional.linear": "PPOScheduler",
    "tightrope.engine.Optimizer": "make_optimizer",
    "tightrope.engine.Runtime.collect": "rollout_phase rollout_episode",
    "tightrope.algorithms.ppo.learn": "learning_phase",
    "tightrope.envs.ENVS": "ENV_DICT",
    "agent.record(path, grid=True), or tightrope.draw.grid over env.draw(obs)":
        "record_grid_video render_rollout_grid_html rollout_grid_frames",
    "env.finished_episodes()": "get_episode_data_from_infos",
    "tightrope.models.ActorCritic: distribution, value = policy(obs)": "evaluate_actions",
    "tightrope.algorithms.vpg.phase": "train_one_trajectory",
    "agent.evaluate()": "evaluate_policy",
    "tightrope.envs.make": "make_vec_env",
    "norm_obs and norm_reward": "VecNormalize NormalizeObservation NormalizeReward",
    "eval_every and eval_episodes": "EvalCallback",
    "save_every": "CheckpointCallback",
    "stop_at_return (with eval_every)": "StopTrainingOnRewardThreshold",
    "tr.Callback, a list of which goes to learn(callbacks=[...])": "BaseCallback CallbackList",
    ": output is on unless quiet is set": "ProgressBarCallback",
    "tightrope.envs.make (every environment is a vector of num_envs)": "DummyVecEnv",
    "tightrope.envs.make(..., vectorization_mode='async')": "SubprocVecEnv",
    ": every finished episode is counted without a wrapper": "Monitor VecMonitor",
    ": Atari frames are stacked already; stack others with a Gymnasium wrapper": "VecFrameStack",
    "video_every, or agent.record(path)": "VecVideoRecorder RecordVideo",
    "tightrope.envs.checker.check, or `tightrope check`": "check_env",
    "tightrope.functional.linear; as a setting: learning_rate='linear(3e-4, 0)'": "get_linear_fn LinearSchedule",
    ": learning_rate takes a function of progress, from 0 at the start to 1 at the end": "FloatSchedule",
    ": a number is a constant, and learning_rate='constant(3e-4)' a schedule": "get_schedule_fn ConstantSchedule",
    ": everything follows from the setting seed": "set_random_seed",
    ": there are PPO and VPG; PPO with update_epochs 1 and num_minibatches 1 is near it": "A2C",
    OFF_POLICY: "DQN SAC TD3",
    ": the network is chosen from the spaces": "MlpPolicy",
})  # fmt: skip

# attributes and methods of an agent
MEMBERS = foreign_names({
    "tr.load(path), a function": "load restore load_checkpoint load_model load_parameters",
    "tr.load(path), a function; agent.policy.load_state_dict loads the network alone": "load_state_dict set_parameters",
    "agent.policy.state_dict(), or agent.policy.parameters()": "state_dict get_parameters parameters",
    "agent.save(path)": "save_checkpoint save_model",
    OTHER_ENV: "set_env",
    "agent.state.env": "env get_env",
    "agent.state.env.observation": "observation_space",
    "agent.state.env.action": "action_space",
    "agent.config.algorithm.num_envs": "n_envs",
    "agent.steps": "num_timesteps",
    "agent.config.algorithm.learning_rate": "learning_rate",
    "agent.state.env.device": "device",
    "agent.state.rollout": "rollout_buffer",
    "the setting log (tensorboard, wandb, mlflow); metrics.jsonl is always written": "logger set_logger",
    "norm_obs and norm_reward; their statistics are in agent.policy": "get_vec_normalize_env",
    "agent.predict(obs)": "act get_action select_action choose_action compute_action compute_single_action",
    "agent.policy.value(obs)": "predict_values get_value",
    "agent.learn()": "fit",
    "agent.evaluate()": "test eval",
    "agent.record(path), or agent.show() in a notebook": "render",
})  # fmt: skip

# arguments of an agent's methods, besides those that are settings elsewhere
ARGUMENTS = foreign_names({
    ": learn counts all steps of the agent; a new agent starts from 0": "reset_num_timesteps",
    ": evaluations are in fresh copies of the environment; agent.evaluate(env=...) takes another": "eval_env",
    "episodes": "n_eval_episodes num_episodes n_episodes eval_episodes",
    "eval_seconds": "seconds",
    "eval_envs": "num_envs n_envs",
    ": the result of agent.evaluate() has returns and lengths": "return_episode_rewards",
    ": give state=None where an episode starts, or 0 in its row of the state": "episode_start",
    "run_dir": "log_dir save_path",
    "deterministic": "greedy",
    "deterministic, the other way round": "stochastic explore",
    ": agent.record(path) films episodes, and agent.show() does in a notebook": "render",
})  # fmt: skip

# answers ----------------------------------------------------------------------------------------------------------------


def missing_member(owner: str, name: str) -> AttributeError:
    """The error for an unknown attribute of an agent or policy, with its name here if it has one."""
    hint = here_called(name, MEMBERS) or ""
    if owner == "Policy":
        hint = hint.replace("agent.predict", "policy.predict").replace("agent.policy.", "policy.network.")
        hint = hint.replace("tr.load(", "tr.load_policy(")
        hint += "; an agent, with its environment, comes from tr.load(path)" if "agent." in hint else ""
    return AttributeError(f"{owner} has no {name!r}" + (f": {hint}" if hint else ""), name=name)


class AgentType(type):
    """Metaclass of agents: explains unknown class attributes, such as `PPO.load`."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> object:
            raise missing_member(cls.__name__, name)


def known_arguments(method: Method) -> Method:
    """Decorate a method: an unknown argument raises UsageError with its name here, or the place where it belongs."""
    names = [name for name in inspect.signature(method).parameters if name != "self"]

    @functools.wraps(method)
    def call(self: object, *args: object, **given: object) -> object:
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise UsageError(f"{method.__name__} has no argument {unknown!r}{answer(unknown, names, self)}")
        return method(self, *args, **given)

    return call  # type: ignore[return-value]


def answer(name: str, names: list[str], agent: object) -> str:
    """The hint for an unknown argument: another argument of the method, a setting, or the list of arguments."""
    hint, other, owner = here_called(name, ARGUMENTS), ARGUMENTS.get(name, ""), type(agent).__name__
    algo, config = getattr(agent, "algo", None), getattr(agent, "config", None)
    if algo and config and not (other.startswith(":") or other.partition(",")[0] in names):
        if name in config.to_flat_dict():
            return f": it is a setting, give it to {owner}(...)"
        if name in SETTINGS:
            known = SETTINGS[name] in names or SETTINGS[name].startswith(":")
            return f": {here_called(name, SETTINGS)}{'' if known else f', a setting of {owner}(...)'}"
    return f": {hint}" if hint else f".{near_matches(name, names)} It takes {', '.join(names)}"


def one_too_many(env: object, other: object, name: str) -> str:
    """The message for PPO("MlpPolicy", env) and other surplus positional arguments."""
    if isinstance(env, str) and env in ENVS:  # a policy of Stable-Baselines3, or an env of another library
        return f"{env!r} before the env is one argument too many, {name}(env) is enough: {here_called(env, ENVS)}"
    return f"{other!r} is one argument too many: give the env alone and settings by name, {name}(env, seed=1)"


def check_run_dir(run_dir: object) -> None:
    """Raise UsageError if `run_dir` is not a path: Stable-Baselines3 has a callback at this position."""
    if run_dir is not None and not isinstance(run_dir, (str, os.PathLike)):
        hint = f": {CALLBACKS.removeprefix(': ')}" if callable(run_dir) else ": give a path"
        raise UsageError(f"run_dir {run_dir!r} is not a directory{hint}")
