// Runs the programs of tightrope/play/program.py: lists of operations over typed arrays. There is no code in the data.
"use strict";
const tightropePrograms = (() => {
  const STORES = {
    float32: Float32Array, float64: Float64Array, int64: Float64Array, int32: Int32Array, uint8: Uint8Array, bool: Uint8Array,
  };
  const even = (a) => { const r = Math.round(a); return Math.abs(a % 1) === 0.5 && r % 2 !== 0 ? r - 1 : r; };
  const erf = (x) => {
    const t = 1 / (1 + 0.3275911 * Math.abs(x));
    const series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return Math.sign(x) * (1 - series * Math.exp(-x * x));
  };
  const remainder = (a, b) => { const rest = a % b; return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest; };
  const ELEMENTWISE = {
    copy: (a) => a, neg: (a) => -a, abs: Math.abs, sign: Math.sign, floor: Math.floor, ceil: Math.ceil, round: even,
    trunc: Math.trunc, sin: Math.sin, cos: Math.cos, tan: Math.tan, asin: Math.asin, acos: Math.acos, atan: Math.atan,
    sinh: Math.sinh, cosh: Math.cosh, tanh: Math.tanh, exp: Math.exp, expm1: Math.expm1, log: Math.log, log1p: Math.log1p,
    log2: Math.log2, log10: Math.log10, sqrt: Math.sqrt, sigmoid: (a) => 1 / (1 + Math.exp(-a)), erf,
    isnan: (a) => a !== a, isinf: (a) => Math.abs(a) === Infinity, not: (a) => a === 0,
    add: (a, b) => a + b, sub: (a, b) => a - b, mul: (a, b) => a * b, div: (a, b) => a / b, floordiv: (a, b) => Math.floor(a / b),
    min: (a, b) => Math.min(a, b), max: (a, b) => Math.max(a, b), atan2: Math.atan2, hypot: (a, b) => Math.hypot(a, b),
    remainder, fmod: (a, b) => a % b, pow: (a, b) => (a === 1 || b === 0 ? 1 : a ** b), eq: (a, b) => a === b, ne: (a, b) => a !== b,
    lt: (a, b) => a < b, le: (a, b) => a <= b, gt: (a, b) => a > b, ge: (a, b) => a >= b,
    and: (a, b) => a !== 0 && b !== 0, or: (a, b) => a !== 0 || b !== 0, where: (c, a, b) => (c !== 0 ? a : b),
  };
  const best = (better) => (values) => values.reduce((found, v, i) => (better(v, values[found]) ? i : found), 0);
  const REDUCED = {
    sum: (v) => v.reduce((a, b) => a + b, 0), prod: (v) => v.reduce((a, b) => a * b, 1), amax: (v) => Math.max(...v),
    amin: (v) => Math.min(...v), any: (v) => v.some((a) => a !== 0), all: (v) => v.every((a) => a !== 0),
    argmax: best((a, b) => a > b), argmin: best((a, b) => a < b),
  };
  const OPERATORS = {
    "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b, "**": (a, b) => a ** b,
    neg: (a) => -a, abs: Math.abs,
  };
  const number = (value) => (typeof value === "string" ? { inf: Infinity, "-inf": -Infinity }[value] ?? NaN : value);
  const own = (table, name) => {
    if (!Object.hasOwn(table, name)) throw new Error(`unknown operation ${name}`);
    return table[name];
  };

  // The value of an expression of attributes.
  function evaluate(expression, values) {
    if (Array.isArray(expression)) {
      const [operator, ...parts] = expression;
      return own(OPERATORS, operator)(...parts.map((part) => evaluate(part, values)));
    }
    return expression !== null && typeof expression === "object" ? own(values, expression.name) : number(expression);
  }

  function decode(text, store) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new store(bytes.buffer);
  }

  // The place in memory of each element of a view, in order.
  function places([, offset, shape, strides]) {
    let found = [offset];
    shape.forEach((size, d) => {
      const wider = [];
      for (const start of found) for (let i = 0; i < size; i++) wider.push(start + i * strides[d]);
      found = wider;
    });
    return Int32Array.from(found);
  }

  class Program {
    constructor(json, values) {
      this.json = json;
      this.values = values; // of attributes; shared, and changed by sliders
      this.types = json.buffers.map((buffer) => buffer[0]);
      this.memory = json.buffers.map(([type, size, content]) =>
        content === undefined ? new (own(STORES, type))(size) : decode(content, own(STORES, type)));
      this.constants = []; // [memory of one number, expression, rounded]
      this.steps = json.operations.map(([kernel, out, ...args]) => this.step(kernel, out, args));
      this.ins = Object.fromEntries(Object.entries(json.inputs).map(([name, view]) => [name, [view[0], places(view)]]));
      this.outs = Object.fromEntries(Object.entries(json.outputs).map(([name, view]) => [name, [view[0], places(view)]]));
      this.update();
    }

    // After a change of attributes.
    update() {
      for (const [memory, expression, rounded] of this.constants) {
        const value = evaluate(expression, this.values);
        memory[0] = rounded ? Math.fround(value) : value;
      }
    }

    // Memory and places of an argument with n elements.
    argument(given, n) {
      if (Array.isArray(given)) return [this.memory[given[0]], places(given)];
      const memory = new Float64Array(1);
      if (given !== null && typeof given === "object") this.constants.push([memory, given.expression, given.rounded]);
      else memory[0] = number(given);
      return [memory, new Int32Array(n)];
    }

    step(kernel, out, args) {
      const target = this.memory[out[0]], at = places(out), n = at.length, type = this.types[out[0]];
      const [given, ...rest] = args.map((each) => this.argument(each, n));
      const stored = type === "bool" ? (v) => Number(Number(v) !== 0) : type === "int64" ? (v) => Math.trunc(Number(v)) : (v) => v;
      if (Object.hasOwn(ELEMENTWISE, kernel)) {
        const f = ELEMENTWISE[kernel], [A, a] = given, [B, b] = rest[0] ?? given, [C, c] = rest[1] ?? given;
        return () => { for (let i = 0; i < n; i++) target[at[i]] = stored(f(A[a[i]], B[b[i]], C[c[i]])); };
      }
      if (Object.hasOwn(REDUCED, kernel)) {
        const f = REDUCED[kernel], [A, a] = given, inner = a.length / n, values = new Array(inner);
        return () => {
          for (let i = 0; i < n; i++) {
            for (let k = 0; k < inner; k++) values[k] = A[a[i * inner + k]];
            target[at[i]] = stored(f(values));
          }
        };
      }
      if (kernel === "matmul") {
        const [A, a] = given, [B, b] = rest[0], inner = args[0][2][1], columns = out[2][1];
        return () => {
          for (let i = 0; i < n; i++) {
            const row = Math.floor(i / columns), column = i % columns;
            let sum = 0;
            for (let k = 0; k < inner; k++) sum += A[a[row * inner + k]] * B[b[k * columns + column]];
            target[at[i]] = stored(sum);
          }
        };
      }
      // Reads or writes at places that are given as numbers.
      const place = (index, count) => Math.min(Math.max(index, 0), count - 1);
      if (kernel === "take") {
        const [A, a] = given, [I, i] = rest[0];
        return () => { for (let k = 0; k < n; k++) target[at[k]] = stored(A[a[place(I[i[k]], a.length)]]); };
      }
      if (kernel !== "put") throw new Error(`unknown operation ${kernel}`);
      const [I, i] = given, [B, b] = rest[0];
      return () => { for (let k = 0; k < i.length; k++) target[at[place(I[i[k]], n)]] = stored(B[b[k]]); };
    }

    run(inputs) {
      for (const [name, [buffer, at]] of Object.entries(this.ins))
        for (let i = 0; i < at.length; i++) this.memory[buffer][at[i]] = inputs[name][i];
      for (const step of this.steps) step();
      const found = {};
      for (const [name, [buffer, at]] of Object.entries(this.outs)) found[name] = Array.from(at, (i) => this.memory[buffer][i]);
      return found;
    }
  }

  return { Program, evaluate, kernels: [...Object.keys(ELEMENTWISE), ...Object.keys(REDUCED), "matmul", "take", "put"] };
})();
