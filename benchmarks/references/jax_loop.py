"""Reference: PPO on CartPole in JAX, the whole training loop under one jit (the technique of PureJaxRL).

    python benchmarks/references/jax_loop.py --num-envs 1024 --num-steps 32 --precision fp32 --seconds 2
    python benchmarks/references/jax_loop.py --classic     4 x 128, 500,000 steps, from start to end

What it is: an upper reference for the technique, in as little code as shows it, and not a part of the library. Collection,
estimation, shuffling and updates are scans inside one compiled function, from the first weights to the last metrics, so
nothing returns to Python in between. Recipe, rules and diagnostics are those of Tightrope's PPO: a truncated episode
bootstraps from its final observation, a terminated one from nothing, and the trace is cut at both. Prints a line of JSON
for each size and precision; set-up is tracing and compiling. Runs on whatever device JAX finds.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import recipe
from jax import Array, lax
from recipe import (
    FORCE,
    GRAVITY,
    HALF_LENGTH,
    LEAN,
    POLE_MASS,
    POLE_MOMENT,
    TAU,
    TIME_LIMIT,
    TOTAL_MASS,
    TRACK,
    Batch,
    Carts,
    Transition,
)

PRECISION = {"fp32": "highest", "tf32": "tensorfloat32"}
PHASES = 64  # of one training at the sizes that are timed again and again
Layers = list[tuple[Array, Array]]


class Adam(NamedTuple):
    parameters: dict[str, Layers]
    first: dict[str, Layers]
    second: dict[str, Layers]
    step: Array


def mlp(key: Array, outputs: int, gain: float) -> Layers:
    sizes = [(4, recipe.HIDDEN, 2**0.5), (recipe.HIDDEN, recipe.HIDDEN, 2**0.5), (recipe.HIDDEN, outputs, gain)]
    orthogonal = jax.nn.initializers.orthogonal()
    keys = jax.random.split(key, len(sizes))
    return [(g * orthogonal(k, (i, o)), jnp.zeros(o)) for k, (i, o, g) in zip(keys, sizes, strict=True)]


def network(layers: Layers, x: Array) -> Array:
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def start(key: Array, num_envs: int) -> tuple[Adam, Carts]:
    actor_key, critic_key, env_key = jax.random.split(key, 3)
    parameters = {"actor": mlp(actor_key, 2, 0.01), "critic": mlp(critic_key, 1, 1.0)}
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    carts = Carts(fresh_states(env_key, num_envs), jnp.zeros(num_envs, jnp.int32), jnp.zeros(num_envs))
    return Adam(parameters, zeros, zeros, jnp.zeros(())), carts


def fresh_states(key: Array, *shape: int) -> Array:
    return jax.random.uniform(key, (*shape, 4), minval=-0.05, maxval=0.05)


def advance(state: Array, action: Array) -> Array:
    x, v, theta, omega = jnp.moveaxis(state, -1, 0)
    sin, cos = jnp.sin(theta), jnp.cos(theta)
    push = (action * (2 * FORCE) - FORCE + POLE_MOMENT * omega * omega * sin) / TOTAL_MASS
    angular = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS / TOTAL_MASS * cos * cos))
    linear = push - POLE_MOMENT / TOTAL_MASS * angular * cos
    return jnp.stack([x + TAU * v, v + TAU * linear, theta + TAU * omega, omega + TAU * angular], -1)


def act_and_step(actor: Layers, carts: Carts, noise: tuple[Array, Array]) -> tuple[Carts, Transition]:
    """`noise` is uniform numbers (N,) that choose the actions, and states (N, 4) where episodes that end start anew."""
    uniform, fresh = noise
    log_probs = jax.nn.log_softmax(network(actor, carts.state))
    action = (uniform < jnp.exp(log_probs[:, 1])).astype(jnp.int32)
    log_prob = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]

    final_obs, reward = advance(carts.state, action), jnp.ones_like(carts.total)
    clock, total = carts.clock + 1, carts.total + reward
    terminated = (jnp.abs(final_obs[:, 0]) > TRACK) | (jnp.abs(final_obs[:, 2]) > LEAN)
    done = terminated | (clock >= TIME_LIMIT)
    step = Transition(carts.state, action, log_prob, reward, terminated, done & ~terminated, final_obs, clock, total)
    return Carts(jnp.where(done[:, None], fresh, final_obs), clock * ~done, total * ~done), step


def estimate(critic: Layers, rollout: Transition, last_obs: Array) -> tuple[Batch, Array]:
    """Advantages and targets; one pass over the observations, one over the final ones. And the phase's diagnostics."""
    value = network(critic, jnp.concatenate([rollout.obs, last_obs[None]]))[..., 0]  # (T + 1, N)
    value, following = value[:-1], value[1:]
    done = rollout.terminated | rollout.truncated
    next_value = jnp.where(rollout.truncated, network(critic, rollout.final_obs)[..., 0], following)
    delta = rollout.reward + recipe.GAMMA * next_value * ~rollout.terminated - value
    decay = recipe.GAMMA * recipe.LAMBDA * ~done

    def back(running: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        running = row[0] + row[1] * running
        return running, running

    _, advantage = lax.scan(back, jnp.zeros_like(delta[0]), (delta, decay), reverse=True, unroll=8)
    target = advantage + value
    explained = 1 - advantage.var() / target.var()
    episodes = [done.sum(), (rollout.total * done).sum(), (rollout.clock * done).sum()]
    columns = (rollout.obs, rollout.action, rollout.log_prob, advantage, target)
    batch = Batch(*(column.reshape(-1, *column.shape[2:]) for column in columns))
    return batch, jnp.stack([explained, *(x.astype(jnp.float32) for x in episodes)])


def loss(parameters: dict[str, Layers], batch: Batch) -> tuple[Array, Array]:
    """What to minimise, and (policy loss, value loss, entropy, approximate KL, clip fraction)."""
    log_probs = jax.nn.log_softmax(network(parameters["actor"], batch.obs))
    log_ratio = jnp.take_along_axis(log_probs, batch.action[:, None], 1)[:, 0] - batch.log_prob
    ratio = jnp.exp(log_ratio)
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std(ddof=1) + 1e-8)
    clipped = jnp.clip(ratio, 1 - recipe.CLIP, 1 + recipe.CLIP)
    policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    value_loss = 0.5 * jnp.square(network(parameters["critic"], batch.obs)[:, 0] - batch.target).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    approx_kl = (jnp.expm1(log_ratio) - log_ratio).mean()
    clip_fraction = (jnp.abs(ratio - 1) > recipe.CLIP).mean()
    total = policy_loss + recipe.VALUE * value_loss - recipe.ENTROPY * entropy
    return total, jnp.stack([policy_loss, value_loss, entropy, approx_kl, clip_fraction])


def update(adam: Adam, learning_rate: Array, batch: Batch) -> tuple[Adam, Array]:
    """One gradient step; also (five terms of the loss, gradient norm)."""
    grads, terms = jax.grad(loss, has_aux=True)(adam.parameters, batch)
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, recipe.MAX_NORM / (norm + 1e-6))
    step = adam.step + 1
    correction1, correction2 = 1 - recipe.BETA1**step, 1 - recipe.BETA2**step
    first = jax.tree.map(lambda m, g: recipe.BETA1 * m + (1 - recipe.BETA1) * g * scale, adam.first, grads)
    second = jax.tree.map(
        lambda v, g: recipe.BETA2 * v + (1 - recipe.BETA2) * jnp.square(g * scale), adam.second, grads
    )
    parameters = jax.tree.map(
        lambda p, m, v: p - learning_rate * (m / correction1) / (jnp.sqrt(v / correction2) + recipe.EPS),
        adam.parameters, first, second,
    )  # fmt: skip
    return Adam(parameters, first, second, step), jnp.append(terms, norm)


def make_train(num_envs: int, num_steps: int, phases: int, rate: float) -> Callable[[Array], Array]:
    """A training from a key to the metrics of every phase, (phases, len(recipe.METRICS))."""
    batch_size = num_envs * num_steps

    def collect(actor: Layers, carts: Carts, key: Array) -> tuple[Carts, Transition]:
        action_key, reset_key = jax.random.split(key)
        uniform = jax.random.uniform(action_key, (num_steps, num_envs))
        noise = (uniform, fresh_states(reset_key, num_steps, num_envs))
        return lax.scan(lambda carts, noise: act_and_step(actor, carts, noise), carts, noise)

    def learn(adam: Adam, learning_rate: Array, batch: Batch, key: Array) -> tuple[Adam, Array]:
        def epoch(adam: Adam, key: Array) -> tuple[Adam, Array]:
            order = jnp.argsort(jax.random.bits(key, (batch_size,)))
            parts = jax.tree.map(lambda x: x[order].reshape(recipe.MINIBATCHES, -1, *x.shape[1:]), batch)
            return lax.scan(lambda adam, part: update(adam, learning_rate, part), adam, parts)

        adam, rows = lax.scan(epoch, adam, jax.random.split(key, recipe.EPOCHS))
        return adam, rows.mean((0, 1))

    def phase(carry: tuple[Adam, Carts, Array], done: Array) -> tuple[tuple[Adam, Carts, Array], Array]:
        adam, carts, key = carry
        key, collect_key, learn_key = jax.random.split(key, 3)
        carts, rollout = collect(adam.parameters["actor"], carts, collect_key)
        batch, about_phase = estimate(adam.parameters["critic"], rollout, carts.state)
        adam, about_updates = learn(adam, rate * (1 - done / phases), batch, learn_key)
        return (adam, carts, key), jnp.concatenate([about_updates, about_phase])

    def train(key: Array) -> Array:
        start_key, key = jax.random.split(key)
        return lax.scan(phase, (*start(start_key, num_envs), key), jnp.arange(phases))[1]

    return train


def compiled(train: Callable[[Array], Array], key: Array, precision: str) -> tuple[Any, float]:
    """The whole loop as one program, and the seconds it took to make it."""
    jax.config.update("jax_default_matmul_precision", PRECISION[precision])
    began = time.perf_counter()
    program = jax.jit(train).lower(key).compile()
    return program, time.perf_counter() - began


def measure(
    name: str, size: tuple[int, int], phases: int, rate: float, precision: str, seconds: float
) -> recipe.Result:
    """Whole trainings, one after the other, until about `seconds` have passed; at least one."""
    key = jax.random.PRNGKey(0)
    program, setup = compiled(make_train(*size, phases, rate), key, precision)
    count = max(1, math.ceil(seconds / timed(program, key, 1)))
    per_phase = timed(program, key, count) / (count * phases)
    episodes, _, lengths = program(key)[-recipe.LAST :, -3:].sum(0).tolist()
    return recipe.result(name, size, precision, setup, per_phase, episodes, lengths)


def timed(program: Any, key: Array, count: int) -> float:
    """Seconds for that many trainings, after one that is not counted."""
    program(key).block_until_ready()
    began = time.perf_counter()
    for _ in range(count):
        metrics = program(key)
    metrics.block_until_ready()
    return time.perf_counter() - began


def main() -> None:
    parser = recipe.arguments(__doc__)
    parser.add_argument("--classic", action="store_true", help="the classic recipe once, from start to end")
    args = parser.parse_args()
    if args.classic:
        size = (recipe.CLASSIC_ENVS, recipe.CLASSIC_STEPS)
        phases = recipe.CLASSIC_TOTAL // (size[0] * size[1])
        for precision in args.precision:
            measure("jax_loop classic", size, phases, recipe.CLASSIC_RATE, precision, 0.0).print()
        return
    for num_envs, num_steps, precision in recipe.workloads(args):
        measure("jax_loop", (num_envs, num_steps), PHASES, recipe.WIDE_RATE, precision, args.seconds).print()


if __name__ == "__main__":
    main()
