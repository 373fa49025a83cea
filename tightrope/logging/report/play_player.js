// Plays the games of a page: one policy each, in its environment, with controls that all of them share.
"use strict";
const tightropePlay = (() => {
  const HOLD = 1.4; // seconds for which the end of an episode is shown
  const MOST_STEPS = 400; // in a frame
  const CALM = 0.15; // of the picture's width: a coordinate that moves more in a step jumps
  const SPEEDS = [0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8];

  // Uniform and normal random numbers from a seed (mulberry32).
  function generator(seed) {
    let a = seed >>> 0;
    const uniform = () => {
      a = (a + 0x6d2b79f5) >>> 0;
      let t = Math.imul(a ^ (a >>> 15), a | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 8) / 16777216;
    };
    return { uniform, normal: () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()) };
  }

  class Player {
    constructor(game, settings, seed) {
      this.game = game;
      this.settings = settings;
      this.values = { ...game.attributes };
      const made = (name) => new tightropePrograms.Program(game.programs[name], this.values);
      this.programs = Object.fromEntries(Object.keys(game.programs).map((name) => [name, made(name)]));
      this.picture = game.picture && new tightropePicture.Picture(game.picture, this.values);
      this.random = generator(seed);
      this.human = game.actions.map((part) => (part.choices ? Math.floor(part.choices.length / 2) : this.middle(part)));
      this.episodes = [];
      this.range = [Infinity, -Infinity]; // of values seen
      this.reset();
    }

    middle(part) { return part.low !== null && part.high !== null ? (part.low + part.high) / 2 : 0; }

    get changed() { return Object.entries(this.game.attributes).some(([name, value]) => this.values[name] !== value); }

    setAttribute(name, value) {
      this.values[name] = value;
      for (const program of Object.values(this.programs)) program.update();
      this.look();
    }

    reset() {
      const size = this.programs.initial.ins.noise?.[1].length ?? 0;
      this.clock = [0];
      this.state = this.programs.initial.run({ noise: Array.from({ length: size }, this.random.uniform), clock: this.clock }).state;
      this.memory = new Array(this.programs.policy.ins.memory?.[1].length ?? 0).fill(0);
      this.return = 0;
      this.ended = "";
      this.numbers = null;
      this.look();
      this.before = this.numbers;
    }

    // Observe the state, and let the policy decide.
    look() {
      this.obs = this.programs.observe.run({ state: this.state, clock: this.clock }).obs;
      const noise = this.game.noise.map((kind) => (kind === "normal" ? this.random.normal() : this.random.uniform()));
      this.mind = this.programs.policy.run({ obs: this.obs, noise, memory: this.memory });
      this.before = this.numbers;
      this.show();
      const value = this.mind.value?.[0];
      if (Number.isFinite(value)) this.range = [Math.min(this.range[0], value), Math.max(this.range[1], value)];
    }

    show() {
      if (this.programs.scene) this.numbers = this.programs.scene.run({ obs: this.obs, action: this.action, clock: this.clock }).numbers;
    }

    get action() {
      return this.settings.takeOver ? this.human : this.settings.sample ? this.mind.sampled : this.mind.action;
    }

    step() {
      if (this.ended) return;
      const given = { state: this.state, action: Array.from(this.action), clock: this.clock };
      const next = this.programs.advance.run(given).next;
      this.return += this.programs.reward.run({ ...given, next }).reward[0];
      const over = this.programs.terminated.run({ next, clock: this.clock }).terminated[0];
      this.state = next;
      this.clock = [this.clock[0] + 1];
      this.memory = this.mind.memory ?? this.memory;
      this.look();
      const limit = this.game.limit;
      if (over) this.end("Terminated");
      else if (!this.state.every(Number.isFinite)) this.end("The state is no longer finite");
      else if (limit !== null && this.settings.limit && this.clock[0] >= limit) this.end("Time limit");
    }

    end(reason) {
      this.ended = reason;
      this.episodes.push({ reason, steps: this.clock[0], return: this.return });
      this.episodes.splice(0, Math.max(0, this.episodes.length - 1000));
    }

    push(strength) {
      if (this.ended) return;
      this.state = this.state.map((x, i) => Math.fround(x + strength * (this.game.push[i] ?? 0)));
      this.look();
    }

    // The scene's numbers between the last step and this one.
    between(share) {
      const { numbers, before } = this;
      if (!before || !numbers) return numbers;
      const far = CALM * this.picture.span(numbers);
      if (numbers.some((x, i) => !(Math.abs(x - before[i]) < far))) return numbers;
      return numbers.map((x, i) => before[i] + (x - before[i]) * share);
    }

    // The largest difference from torch at the steps that the page carries, relative to the numbers.
    check() {
      let worst = 0;
      const made = {};
      for (const { program, inputs, outputs } of this.game.checks ?? []) {
        made[program] ??= new tightropePrograms.Program(this.game.programs[program], this.game.attributes);
        const found = made[program].run(inputs);
        for (const [name, wanted] of Object.entries(outputs)) {
          if (name === "sampled") continue;
          const size = Math.max(1, ...wanted.map(Math.abs));
          wanted.forEach((x, i) => { worst = Math.max(worst, Math.abs(found[name][i] - x) / size); });
        }
      }
      return worst;
    }
  }

  return { Player, HOLD, MOST_STEPS, SPEEDS, players: [], frames: 0 };
})();
