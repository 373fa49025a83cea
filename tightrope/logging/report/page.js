"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const plots = [...document.querySelectorAll(".plot")];
  const drawn = new Set();
  let range = null; // of steps, if someone has zoomed in
  const onTouch = matchMedia("(pointer: coarse)").matches;

  // colours ------------------------------------------------------------------------------------------------------------

  const dark = () => root.dataset.theme === "dark";
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const color = (i) => css(`--series-${i % 8}`);
  const faded = (hex, alpha) =>
    `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",")},${alpha})`;

  // plotly's traces ----------------------------------------------------------------------------------------------------

  const hover = { hovertemplate: "%{y:,.4~g}" };
  const interval = (t) => ({ customdata: t.interval, hovertemplate: "%{y:,.4~g} (%{customdata[0]:,.4~g} to %{customdata[1]:,.4~g})" });
  const diamond = (t, size) => ({ color: color(t.color), size, symbol: "diamond", line: { color: css("--card"), width: 1.5 } });
  const silent = { hovertemplate: null, hoverinfo: "skip" };
  const styles = {
    raw: (t) => ({ mode: "lines", line: { color: faded(color(t.color), 0.4), width: 1 } }),
    dots: (t) => ({ mode: "markers", marker: { color: faded(color(t.color), 0.4), size: 4 } }),
    gap: (t) => ({ mode: "lines", line: { color: faded(color(t.color), 0.6), width: 1.5, dash: "dot" }, ...silent }),
    smooth: (t) => ({ mode: "lines", connectgaps: false, line: { color: color(t.color), width: 2.25 } }),
    mean: (t) => ({
      mode: "lines", line: { color: color(t.color), width: 2.5 }, showlegend: t.legend, legendgroup: t.name,
      ...(t.interval ? interval(t) : {}),
    }),
    run: (t) => ({ mode: "lines", line: { color: faded(color(t.color), 0.35), width: 1 }, ...silent }),
    low: () => ({ mode: "lines", line: { width: 0 }, ...silent }),
    high: (t) => ({ mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: faded(color(t.color), 0.18), ...silent }),
    points: (t) => ({ mode: "markers", marker: diamond(t, 9) }),
    scores: (t) => ({ mode: "lines+markers", line: { color: faded(color(t.color), 0.5), width: 1.5 }, marker: diamond(t, 8) }),
  };
  const trace = (t) => ({
    type: "scatter", x: t.x, y: t.y, name: t.name, showlegend: false, ...hover,
    ...styles[t.kind](t), ...(t.group ? { legendgroup: t.group } : {}),
  });

  const layout = (chart) => {
    const axis = {
      gridcolor: css("--grid"), zerolinecolor: css("--grid"), linecolor: css("--grid"), tickcolor: css("--grid"),
      tickfont: { color: css("--muted"), size: 11 }, automargin: true,
    };
    const limit = chart.limit === null || chart.limit === undefined ? [] : [{
      type: "line", xref: "paper", x0: 0, x1: 1, y0: chart.limit, y1: chart.limit, layer: "below",
      line: { color: css("--warning"), width: 1, dash: "dash" },
    }];
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css("--font"), color: css("--text"), size: 12 },
      margin: { l: 8, r: 10, t: 8, b: 28, pad: 4 }, hovermode: "x unified", dragmode: onTouch ? false : "zoom",
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--text"), size: 12 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--muted"), activecolor: css("--accent") },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: {
        ...axis, ...(range ? { range: [...range] } : { autorange: true }), tickformat: "~s", hoverformat: ",d",
        unifiedhovertitle: { text: "step %{x:,d}" }, showspikes: false, showgrid: false, nticks: 6,
      },
      yaxis: {
        ...axis, ...(chart.window ? { range: [...chart.window] } : {}),
        type: chart.log ? "log" : "linear", nticks: 6, tickformat: chart.log ? "~g" : "", exponentformat: "SI",
      },
      shapes: limit,
    };
  };

  // a figure that somebody else has made keeps its traces and gets our colours
  const quiet = { title: undefined, template: undefined, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
  const dressed = (figure) => {
    const { font, hoverlabel, modebar, xaxis } = layout({});
    const axis = Object.fromEntries(["gridcolor", "zerolinecolor", "linecolor", "tickcolor"].map((key) => [key, xaxis[key]]));
    const axes = Object.keys(figure.layout).filter((key) => /^[xy]axis/.test(key));
    const small = { font: { color: css("--muted"), size: 11 } };
    const dressedAxis = (key) => {
      const title = figure.layout[key].title;
      return [key, { ...figure.layout[key], ...axis, tickfont: small.font, automargin: true, ticklabeloverflow: "allow", ...(title ? { title: { ...title, ...small } } : {}) }];
    };
    return {
      ...figure.layout, ...quiet, ...Object.fromEntries(axes.map(dressedAxis)), font, hoverlabel, modebar,
      margin: { l: 8, r: 10, t: 12, b: 28, pad: 4, ...figure.layout.margin }, dragmode: onTouch ? false : "zoom",
      annotations: (figure.layout.annotations || []).map((note) => ({ ...note, font: { ...note.font, color: css("--muted") } })),
      width: undefined, height: undefined, autosize: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    };
  };

  const settings = {
    displaylogo: false, responsive: true, doubleClick: "reset", displayModeBar: onTouch ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // none that leads to the network
    toImageButtonOptions: { scale: 2 },
  };

  const draw = (plot) => {
    const chart = data.charts[Number(plot.dataset.chart)];
    const first = !drawn.has(plot);
    drawn.add(plot);
    const made = chart.figure;
    const [traces, frame] = made ? [made.data, dressed(made)] : [chart.traces.map(trace), layout(chart)];
    return Plotly.react(plot, traces, frame, settings).then(() => {
      if (first && !made) plot.on("plotly_relayout", (change) => follow(plot, change));
      plot.dataset.drawn = "yes";
    });
  };
  const redraw = () => drawn.forEach(draw);

  // who zooms into one curve means all of them
  const follow = (source, change) => {
    if (change["xaxis.autorange"]) range = null;
    else if (change["xaxis.range[0]"] !== undefined) range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    else return;
    const axis = range ? { "xaxis.range": [...range] } : { "xaxis.autorange": true };
    drawn.forEach((plot) => {
      if (plot !== source && plot.dataset.part === source.dataset.part && plot.dataset.drawn) {
        const before = plot.layout.xaxis.autorange ? null : plot.layout.xaxis.range;
        if (JSON.stringify(before) !== JSON.stringify(range)) Plotly.relayout(plot, axis);
      }
    });
  };

  // the library ----------------------------------------------------------------------------------------------------------

  const unpack = async () => {
    const packed = atob(document.getElementById("library").textContent);
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.nonce = nonce;
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  };
  const nonce = document.currentScript.nonce;

  const start = async () => {
    if (!plots.length) return;
    if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old to draw curves");
    await unpack();
    const seen = new IntersectionObserver(
      (entries) => entries.filter((e) => e.isIntersecting).forEach((e) => { seen.unobserve(e.target); draw(e.target); }),
      { rootMargin: "400px" },
    );
    plots.forEach((plot) => seen.observe(plot));
    addEventListener("beforeprint", () => plots.forEach(draw));
  };
  start().catch((error) => plots.forEach((plot) => { plot.textContent = `No curves: ${error.message}.`; }));

  // light and dark ---------------------------------------------------------------------------------------------------------

  const toggle = document.getElementById("theme");
  const label = () => {
    toggle.setAttribute("aria-pressed", String(dark()));
    toggle.textContent = dark() ? "Light" : "Dark";
  };
  toggle.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("tightrope-theme", root.dataset.theme); } catch (error) { /* not kept, then */ }
    label();
    redraw();
  });
  prefersDark.addEventListener("change", () => { root.dataset.theme = wanted(); label(); redraw(); });
  label();

  // copying a command --------------------------------------------------------------------------------------------------------

  document.querySelectorAll("button.copy").forEach((button) => button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch (error) {
      getSelection().selectAllChildren(code);
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }));

  // videos play while they are in view, unless less motion is wanted; one that somebody has touched is theirs -----------------

  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const theirs = new Set();
  const inView = new IntersectionObserver((entries) => entries.filter((e) => !theirs.has(e.target)).forEach((e) => {
    if (!e.isIntersecting) e.target.pause();
    else if (!calm.matches) e.target.play().catch(() => {}); // a browser may refuse, and there is a button
  }), { threshold: 0.5 });
  document.querySelectorAll("video").forEach((video) => {
    ["pointerdown", "keydown"].forEach((touch) => video.addEventListener(touch, () => theirs.add(video)));
    inView.observe(video);
  });

  // a run under way: look again, unless someone is looking closely ---------------------------------------------------------

  if (data.live) {
    const age = () => Date.now() / 1000 - data.written;
    const busy = () => range || document.fullscreenElement || [...theirs].some((video) => !video.paused);
    setInterval(() => {
      const note = document.getElementById("age");
      if (note && age() > 180) note.textContent = `not written for ${Math.round(age() / 60)} minutes: it may have been killed`;
      else if (!busy() && age() > data.every) location.reload();
    }, Math.max(5, data.every) * 1000);
  }
})();
