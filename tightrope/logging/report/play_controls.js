// The page around the players: pictures, bars, buttons, sliders and keys. All text is set as textContent.
"use strict";
(() => {
  const { Player, HOLD, MOST_STEPS, SPEEDS, players } = tightropePlay;
  const root = document.getElementById("play");
  const settings = { takeOver: false, sample: false, limit: true, speed: SPEEDS.indexOf(1), running: true };
  const views = [];
  let visible = true;

  function el(tag, props = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(props)) {
      if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
      else if (name === "text") made.textContent = value;
      else if (name === "class") made.className = value;
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }
  const tell = (node, words) => { if (node.textContent !== words) node.textContent = words; };
  const show = (x, digits = 3) => {
    if (!Number.isFinite(x)) return "–";
    return Number.isInteger(x) || Math.abs(x) >= 1000 ? x.toFixed(0) : Math.abs(x) < 1e-3 ? x.toExponential(1) : x.toPrecision(digits);
  };
  const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
  const dark = () => getComputedStyle(root).colorScheme.includes("dark");

  function button(words, title, act) {
    return el("button", { type: "button", title, text: words, on: { click: act } });
  }

  function toggle(words, name, title) {
    const box = el("input", { type: "checkbox", on: { change: () => { settings[name] = box.checked; refresh(); } } });
    box.checked = settings[name];
    return { box, node: el("label", { class: "toggle", title }, box, words) };
  }

  // One policy ----------------------------------------------------------------------------------------------------------

  class GameView {
    constructor(player) {
      this.player = player;
      this.hold = 0;
      this.debt = 0; // steps that are due
      this.score = el("span", { class: "score" });
      this.over = el("div", { class: "over", role: "status", hidden: "" });
      this.last = el("p", { class: "note last" });
      this.canvas = player.picture && el("canvas", { tabindex: "-1", "aria-label": `picture of ${player.game.title}`, role: "img" });
      const stage = this.canvas ? el("div", { class: "stage" }, this.canvas, this.over) : el("div", { class: "stage blank" },
        el("p", { class: "note", text: player.game.noPicture }), this.over);
      this.bars = this.makeBars();
      this.numbers = el("dl", { class: "numbers" });
      const details = el("details", {}, el("summary", { text: "Numbers of the state" }), this.numbers);
      details.open = !this.canvas;
      this.details = details;
      this.node = el("article", { class: "card game" }, el("header", {},
        el("h3", { text: player.game.title }, el("small", { text: ` trained for ${plural(player.game.steps, "step")}` })), this.score), stage,
        this.last, el("div", { class: "bars" }, ...this.bars.map((bar) => bar.node)), details);
      if (this.canvas) {
        this.canvas.style.aspectRatio = String(player.picture.aspect);
        this.listen();
        new ResizeObserver(() => this.resize()).observe(this.canvas);
      }
    }

    resize() {
      const ratio = Math.min(window.devicePixelRatio || 1, 2.5), box = this.canvas.getBoundingClientRect();
      const width = Math.max(2, Math.round(box.width * ratio));
      if (this.canvas.width !== width) {
        this.canvas.width = width;
        this.canvas.height = Math.max(2, Math.round(width / this.player.picture.aspect));
      }
      this.draw(1);
    }

    // A drag pushes along with the pointer, a click towards the half of the picture that it hits.
    listen() {
      let from = null, moved = false;
      const canvas = this.canvas;
      canvas.addEventListener("pointerdown", (event) => {
        from = event.clientX;
        moved = false;
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (from === null || event.clientX === from) return;
        moved ||= Math.abs(event.clientX - from) > 3;
        if (!moved) return;
        const strength = ((event.clientX - from) / canvas.clientWidth) * 12;
        from = event.clientX;
        this.player.push(Math.max(-1, Math.min(1, strength)));
      });
      const release = (event) => {
        if (from !== null && !moved && event.type === "pointerup") {
          const box = canvas.getBoundingClientRect();
          this.player.push(event.clientX < box.left + box.width / 2 ? -1 : 1);
        }
        from = null;
      };
      canvas.addEventListener("pointerup", release);
      canvas.addEventListener("pointercancel", release);
    }

    // Probabilities of choices, means of numbers, and the value.
    makeBars() {
      const { game, mind } = this.player, made = [];
      let chosen = 0;
      const row = (label, read, style = "") => {
        const fill = el("i", { class: "fill" }), mark = el("b", { class: "mark" }), words = el("span", { class: "amount" });
        const track = el("span", { class: "track" }, fill, mark);
        made.push({ node: el("div", { class: `meter ${style}` }, el("span", { class: "label", text: label }), track, words), fill, mark, words, read });
      };
      const probs = Object.keys(mind).filter((name) => name.startsWith("probs")).flatMap((name) => mind[name].map((_, i) => [name, i]));
      const means = Object.keys(mind).filter((name) => name.startsWith("mean")).flatMap((name) => mind[name].map((_, i) => [name, i]));
      const widest = Math.max(0, ...game.actions.map((part) => part.choices?.length ?? 0));
      const padded = game.actions.filter((part) => part.choices).length > 1 && probs.length > 0 && new Set(probs.map(([name]) => name)).size === 1;
      game.actions.forEach((part, slot) => {
        if (part.choices) {
          part.choices.forEach((choice, k) => {
            const [name, i] = probs[chosen + k] ?? [null, 0], label = [part.name, choice].filter(Boolean).join(" ");
            row(label, () => {
              const p = name === null ? NaN : this.player.mind[name][i];
              return { share: p, words: Number.isFinite(p) ? `${(100 * p).toFixed(p > 0.995 || p < 0.005 ? 1 : 0)} %` : "–",
                taken: this.player.action[slot] === k };
            });
          });
          chosen += padded ? widest : part.choices.length;
          return;
        }
        const [name, i] = means.shift() ?? [null, 0], spread = name && name.replace("mean", "std");
        row(part.name || "action", () => {
          const low = part.low ?? -3, high = part.high ?? 3, place = (x) => (x - low) / (high - low);
          const mean = name === null ? NaN : this.player.mind[name][i], std = this.player.mind[spread]?.[i] ?? 0;
          return { from: place(mean - std), share: place(mean + std), words: show(this.player.action[slot]), mark: place(this.player.action[slot]) };
        }, "spread");
      });
      if (mind.value) {
        row("value", () => {
          const [low, high] = this.player.range, value = this.player.mind.value[0], least = Math.min(0, low), most = Math.max(0, high);
          return { from: (Math.min(0, value) - least) / (most - least), share: (Math.max(0, value) - least) / (most - least), words: show(value) };
        }, "value");
      }
      return made;
    }

    advance(seconds) {
      const { player } = this;
      if (player.ended) {
        this.hold += seconds;
        if (this.hold >= HOLD) this.restart();
        return;
      }
      this.debt += seconds * player.game.pace * SPEEDS[settings.speed];
      for (let done = 0; this.debt >= 1 && !player.ended; done++, this.debt--) {
        if (done >= MOST_STEPS) { this.debt = 0; break; }
        player.step();
      }
    }

    restart() {
      this.hold = this.debt = 0;
      this.player.reset();
    }

    draw(share) {
      const { player } = this;
      if (this.canvas && player.numbers) player.picture.draw(this.canvas, player.between(share), dark(), player.changed);
    }

    update() {
      const { player } = this;
      this.draw(settings.running && !player.ended ? Math.min(this.debt, 1) : 1);
      tell(this.score, `step ${player.clock[0].toLocaleString("en")} · return ${show(player.return, 4)}`);
      this.over.hidden = !player.ended;
      if (player.ended) tell(this.over, `${player.ended} after ${plural(player.clock[0], "step")}`);
      const { episodes } = player, last = episodes[episodes.length - 1];
      tell(this.last, last ? `Last of ${plural(episodes.length, "episode")}: ${last.reason.toLowerCase()} after ${plural(last.steps, "step")}, return ${show(last.return, 4)}.`
        : "First episode.");
      const percent = (x) => `${(100 * Math.min(1, Math.max(0, Number.isFinite(x) ? x : 0))).toFixed(1)}%`;
      for (const { node, fill, mark, words, read } of this.bars) {
        const { from = 0, share, words: amount, taken = false, mark: place } = read();
        fill.style.left = percent(from);
        fill.style.right = percent(1 - share);
        mark.style.display = place === undefined ? "none" : "block";
        mark.style.left = percent(place);
        node.classList.toggle("taken", taken);
        tell(words, amount);
      }
      if (this.details.open) this.listNumbers();
    }

    listNumbers() {
      const { state } = this.player;
      while (this.numbers.children.length < 2 * Math.min(state.length, 64)) {
        this.numbers.append(el("dt", { text: String(this.numbers.children.length / 2) }), el("dd"));
      }
      for (let i = 0; 2 * i < this.numbers.children.length; i++) tell(this.numbers.children[2 * i + 1], show(state[i], 4));
    }
  }

  // Controls of all -----------------------------------------------------------------------------------------------------

  const each = (act) => players.forEach(act);
  const playButton = button("Pause", "space", () => { settings.running = !settings.running; refresh(); });
  const speedWords = el("output", {});
  const speed = el("input", { type: "range", min: 0, max: SPEEDS.length - 1, step: 1, "aria-label": "speed",
    on: { input: () => { settings.speed = Number(speed.value); refresh(); } } });
  const takeOver = toggle("Take over", "takeOver", "act yourself (T)");
  const sample = toggle("Sample actions", "sample", "draw actions as in training instead of taking the likeliest (S)");
  const limit = toggle("Stop at the time limit", "limit", "end episodes where training ends them");
  const pads = el("div", { class: "pads", hidden: "" });

  function single() {
    settings.running = false;
    views.forEach((view) => { if (view.player.ended) view.restart(); else view.player.step(); });
    refresh();
  }

  function setHuman(slot, value) {
    each((player) => { if (slot < player.human.length) player.human[slot] = value; });
    each((player) => player.show());
    refresh();
  }

  function buildPads() {
    const { actions } = players[0].game;
    actions.forEach((part, slot) => {
      if (part.choices) {
        part.choices.forEach((choice, k) => pads.append(el("button", { type: "button", class: "pad", "data-slot": slot, "data-choice": k,
          text: [part.name, choice].filter(Boolean).join(" "), on: { click: () => setHuman(slot, k) } })));
        return;
      }
      const low = part.low ?? -3, high = part.high ?? 3;
      const input = el("input", { type: "range", min: low, max: high, step: (high - low) / 200, "data-slot": slot,
        "aria-label": part.name || "action", on: { input: () => setHuman(slot, Number(input.value)) } });
      input.value = 0;
      pads.append(el("label", { class: "slider" }, el("span", { text: part.name || "action" }), input));
    });
  }

  function sliders() {
    const rows = [], named = new Map();
    each((player) => Object.entries(player.game.attributes).forEach(([name, value]) => named.has(name) || named.set(name, value)));
    for (const [name, value] of named) {
      const words = el("output", { text: show(value) });
      const low = value > 0 ? value / 4 : value < 0 ? 3 * value : -1, high = value > 0 ? 3 * value : value < 0 ? value / 4 : 1;
      const set = (x) => {
        each((player) => { if (name in player.values) player.setAttribute(name, x); });
        tell(words, show(x));
        refresh();
      };
      const input = el("input", { type: "range", min: low, max: high, step: (high - low) / 400, "aria-label": name,
        on: { input: () => set(Math.abs(input.value - value) < (high - low) / 300 ? value : Number(input.value)) } });
      input.value = value;
      rows.push({ node: el("label", { class: "slider" }, el("span", { text: name.replaceAll("_", " ") }), input, words),
        reset: () => { input.value = value; set(value); } });
    }
    return rows;
  }

  function refresh() {
    tell(playButton, settings.running ? "Pause" : "Play");
    speed.value = settings.speed;
    tell(speedWords, `${SPEEDS[settings.speed]}×`);
    for (const [name, { box }] of Object.entries({ takeOver, sample, limit })) box.checked = settings[name];
    pads.hidden = !settings.takeOver;
    for (const pad of pads.querySelectorAll(".pad")) {
      pad.setAttribute("aria-pressed", String(players[0].human[pad.dataset.slot] === Number(pad.dataset.choice)));
    }
    for (const input of pads.querySelectorAll("input")) input.value = players[0].human[input.dataset.slot];
    views.forEach((view) => view.update());
  }

  // Keys ----------------------------------------------------------------------------------------------------------------

  const KEYS = [
    ["space", "pause or play"], [".", "one step"], ["R", "start again"], ["← →", "push; with Take over, act"], ["A D", "push"],
    ["T", "take over"], ["1 to 9", "with Take over, choose an action"], ["S", "sample actions"], ["+ −", "faster, slower"],
  ];
  const held = new Set();

  function act(way) { // -1, 0 or 1, of the first part of the action
    const part = players[0].game.actions[0];
    if (!part) return;
    if (!part.choices) setHuman(0, way < 0 ? part.low ?? -1 : way > 0 ? part.high ?? 1 : players[0].middle(part));
    else if (way) setHuman(0, way < 0 ? 0 : part.choices.length - 1);
    else if (part.choices.length % 2) setHuman(0, (part.choices.length - 1) / 2);
  }

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input[type=range], select, textarea")) return;
    const { key } = event, way = { ArrowLeft: -1, ArrowRight: 1 }[key];
    const onButton = event.target.closest?.("button, summary, a, input, video");
    if (key === " " && !onButton) playButton.click();
    else if (key === ".") single();
    else if (/^r$/i.test(key)) restartAll();
    else if (/^t$/i.test(key)) { settings.takeOver = !settings.takeOver; refresh(); }
    else if (/^s$/i.test(key)) { settings.sample = !settings.sample; refresh(); }
    else if (key === "+" || key === "=") { settings.speed = Math.min(settings.speed + 1, SPEEDS.length - 1); refresh(); }
    else if (key === "-") { settings.speed = Math.max(settings.speed - 1, 0); refresh(); }
    else if (way && settings.takeOver) { held.add(key); act(way); }
    else if (way || /^[ad]$/i.test(key)) pushAll(way ?? (/^a$/i.test(key) ? -1 : 1));
    else if (/^[1-9]$/.test(key) && settings.takeOver && players[0].game.actions[0]?.choices?.[key - 1] !== undefined) setHuman(0, key - 1);
    else return;
    if (key === " " || way) event.preventDefault();
  }

  function released(event) {
    if (held.delete(event.key) && settings.takeOver) act(held.has("ArrowLeft") ? -1 : held.has("ArrowRight") ? 1 : 0);
  }

  function pushAll(strength) {
    each((player) => player.push(strength));
    refresh();
  }

  function restartAll() {
    views.forEach((view) => view.restart());
    refresh();
  }

  // Start ---------------------------------------------------------------------------------------------------------------

  function footer() {
    const worst = Math.max(...players.map((player) => player.check()));
    const fine = worst < 1e-3;
    const words = `${players[0].game.agreement} In this browser the largest difference is ${worst.toExponential(0)}.`;
    return el("p", { class: fine ? "note" : "note wrong", "data-worst": worst, text: fine ? words : `${words} That is more than rounding: do not trust this picture.` });
  }

  function build(data) {
    data.games.forEach((game, i) => {
      const player = new Player(game, settings, data.seed + i);
      players.push(player);
      views.push(new GameView(player));
    });
    buildPads();
    const rows = sliders(), physics = el("details", { class: "card physics" }, el("summary", { text: "Change the physics" }), ...rows.map((row) => row.node),
      button("As trained", "set all of them back", () => rows.forEach((row) => row.reset())));
    physics.open = window.innerWidth > 700;
    const keys = el("details", { class: "card keys" }, el("summary", { text: "Keys and mouse" }),
      el("dl", {}, ...KEYS.flatMap(([key, does]) => [el("dt", { text: key }), el("dd", { text: does })])),
      el("p", { class: "note", text: "Drag across a picture to push along with the pointer; a click pushes towards that side." }));
    const limits = new Set(data.games.map((game) => game.limit));
    if (!limits.has(null) && limits.size === 1) limit.node.lastChild.textContent = `Stop at ${[...limits][0].toLocaleString("en")} steps`;
    const pace = el("label", { class: "slider speed" }, el("span", { text: "Speed" }), speed, speedWords);
    const toolbar = el("div", { class: "card tools" }, el("div", { class: "row" }, playButton, button("Step", "one step (.)", single),
      button("Restart", "a new episode (R)", restartAll), button("◀ Push", "push to the left (A)", () => pushAll(-1)),
      button("Push ▶", "push to the right (D)", () => pushAll(1)), pace),
    el("div", { class: "row" }, takeOver.node, sample.node, ...(limits.has(null) && limits.size === 1 ? [] : [limit.node])), pads);
    root.classList.toggle("one", views.length === 1);
    root.replaceChildren(el("div", { class: "games" }, ...views.map((view) => view.node)),
      el("div", { class: "side" }, toolbar, ...(rows.length ? [physics] : []), keys), footer());
  }

  function themeButton() {
    const switcher = document.getElementById("theme");
    const say = () => {
      const now = document.documentElement.dataset.theme;
      switcher.textContent = now === "dark" ? "Light" : "Dark";
      switcher.setAttribute("aria-label", `${switcher.textContent.toLowerCase()} colours`);
    };
    switcher.addEventListener("click", () => {
      const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      document.documentElement.dataset.theme = next;
      try { localStorage.setItem("tightrope-theme", next); } catch (error) { /* a page from disk may have no storage */ }
      say();
    });
    say();
  }

  let before = null;
  function frame(now) {
    const seconds = before === null ? 0 : Math.min((now - before) / 1000, 0.1);
    before = now;
    if (visible) {
      if (settings.running) views.forEach((view) => view.advance(seconds));
      views.forEach((view) => view.update());
      tightropePlay.frames += 1;
    }
    requestAnimationFrame(frame);
  }

  // Plays on without waiting, for tests: that many seconds of the environments' time.
  tightropePlay.forward = (seconds) => {
    each((player) => { for (let i = 0; i < seconds * player.game.pace && !player.ended; i++) player.step(); });
    refresh();
  };
  tightropePlay.settings = settings;
  tightropePlay.refresh = refresh;

  try {
    build(JSON.parse(document.getElementById("play-data").textContent));
  } catch (error) {
    root.textContent = `These policies cannot be played: ${error.message}`;
    return;
  }
  settings.running = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  const whole = root.dataset.keys === "page";
  if (whole) themeButton();
  (whole ? document : root).addEventListener("keydown", pressed);
  document.addEventListener("keyup", released);
  new IntersectionObserver((entries) => { visible = entries[entries.length - 1].isIntersecting; }).observe(root);
  refresh();
  requestAnimationFrame(frame);
})();
