// Draws the shapes of tightrope/scene.py on a canvas.
"use strict";
const tightropePicture = (() => {
  const LIGHT = { background: "#fafaf7", ink: "#262b36", muted: "#c4c7cc", accent: "#2667b3", warm: "#d67a2e", pink: "#ff80ab" };
  const DARK = { background: "#1d2027", ink: "#dfe2e8", muted: "#4a505c", accent: "#6fb0f5", warm: "#f0a35e", pink: "#ff80ab" };
  const WIDEST = 4; // times that the view is widened where a constant was changed

  // A function from the scene's numbers to the value of a coordinate.
  function reader(given, values) {
    if (typeof given === "number") return () => given;
    if (given !== null && typeof given === "object" && "column" in given) return (numbers) => numbers[given.column];
    if (given !== null && typeof given === "object") return () => tightropePrograms.evaluate(given.expression, values);
    return () => (given === true ? 1 : given === false ? 0 : NaN);
  }

  class Picture {
    constructor(json, values) {
      const point = ([x, y]) => [reader(x, values), reader(y, values)];
      const { width, height, span, center } = json;
      Object.assign(this, { aspect: width / height, span: reader(span, values), center: point(center), wide: 1 });
      this.shapes = json.shapes.map((shape) => {
        const points = shape.points ?? (shape.kind === "line" ? [shape.start, shape.end] : [shape.center]);
        const size = (name) => reader(shape[name] ?? 0, values);
        return {
          kind: shape.kind, color: shape.color, shown: reader(shape.shown, values), points: points.map(point),
          width: size("width"), height: size("height"), radius: size("radius"),
        };
      });
    }

    // Widens the view where something would lie outside of it.
    follow(numbers, free) {
      let wanted = 1;
      if (free) {
        const half = this.span(numbers) / 2, [cx, cy] = this.center.map((read) => read(numbers));
        for (const shape of this.shapes) {
          if (!shape.shown(numbers)) continue;
          for (const [x, y] of shape.points) {
            const across = Math.abs(x(numbers) - cx) / half, up = (Math.abs(y(numbers) - cy) / half) * this.aspect;
            if (shape.kind !== "polygon") wanted = Math.max(wanted, 1.08 * across, 1.08 * up);
          }
        }
      }
      this.wide += (Math.min(wanted, WIDEST) - this.wide) * 0.15;
    }

    draw(canvas, numbers, dark, free) {
      const context = canvas.getContext("2d"), palette = dark ? DARK : LIGHT, w = canvas.width, h = canvas.height;
      this.follow(numbers, free);
      const scale = w / this.span(numbers) / this.wide, [cx, cy] = this.center.map((read) => read(numbers));
      const at = ([x, y]) => [w / 2 + (x(numbers) - cx) * scale, h / 2 - (y(numbers) - cy) * scale];
      context.fillStyle = palette.background;
      context.fillRect(0, 0, w, h);
      context.lineJoin = "round";
      for (const shape of this.shapes) {
        if (!shape.shown(numbers)) continue;
        const points = shape.points.map(at), color = palette[shape.color] ?? `rgb(${Array.from(shape.color, Number).join()})`;
        if (!points.flat().every(Number.isFinite)) continue;
        context.fillStyle = context.strokeStyle = color;
        context.lineWidth = Math.max(1, shape.width(numbers) * scale);
        context.beginPath();
        if (shape.kind === "disc") {
          context.arc(...points[0], Math.max(0, shape.radius(numbers) * scale), 0, 2 * Math.PI);
          context.fill();
        } else if (shape.kind === "rectangle") {
          const [x, y] = points[0], a = shape.width(numbers) * scale, b = shape.height(numbers) * scale;
          context.fillRect(x - a / 2, y - b / 2, a, b);
        } else {
          points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
          if (shape.kind === "polygon") context.fill();
          else context.stroke();
        }
      }
    }
  }

  return { Picture };
})();
