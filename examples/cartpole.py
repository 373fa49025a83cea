"""Train PPO on CartPole, score it, save it, and load it again."""

import tightrope as tr

agent = tr.PPO("CartPole-v1", seed=1)
agent.learn()
print("trained:", agent.evaluate(episodes=100))

agent.save("runs/example-cartpole")
print("loaded: ", tr.load("runs/example-cartpole").evaluate(episodes=100))
