"use strict";
// Redraws the page's charts whenever the style, a range or a scale changes. A drawing depends only on the chart's
// specification and this state, so nothing is patched inside a drawing.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const charts = read("charts");
  const looks = read("looks");
  const ranges = {};   // By field of an x axis: [from, to]; a missing field is shown whole.
  const logs = new Set();   // Charts whose y axis is logarithmic.
  const unseen = new Set();   // Names of hidden series, in charts that name their field (usermeta.series).
  const views = {};
  const turns = {};   // By chart: number of requested drawings, so that an older one never replaces a newer one.
  const actions = { export: { svg: true, png: true }, source: false, compiled: false, editor: false };

  const units = (spec) => [spec, ...(spec.layer ?? []).flatMap(units)];
  const rows = (spec) => units(spec).flatMap((unit) => unit.data?.values ?? []);

  function extent(field) {
    let [from, to] = [Infinity, -Infinity];
    for (const chart of charts) {
      if (chart.zoom !== field) continue;
      for (const row of rows(chart.spec)) {
        if (!Number.isFinite(row[field])) continue;
        from = Math.min(from, row[field]);
        to = Math.max(to, row[field]);
      }
    }
    return [from, to];
  }

  function zoomed(unit, field, [from, to]) {
    if (unit.data?.values) {
      const inside = (row) => !(field in row) || (row[field] >= from && row[field] <= to);
      unit.data = { ...unit.data, values: unit.data.values.filter(inside) };
    }
    const x = unit.encoding?.x;
    if (x?.field === field) x.scale = { ...x.scale, domain: [from, to], nice: false };
  }

  function logarithmic(unit) {
    const y = unit.encoding?.y;
    if (y?.scale?.type !== "linear") return;
    const { zero, ...scale } = y.scale;
    y.scale = { ...scale, type: "log", nice: false };
    // A logarithmic scale has no zero or negative values.
    if (y.field) unit.transform = [...(unit.transform ?? []), { filter: { field: y.field, gt: 0 } }];
  }

  function shaped(chart) {
    const spec = structuredClone(chart.spec);
    const series = spec.usermeta?.series;
    for (const unit of units(spec)) {
      if (series && unit.data?.values) unit.data.values = unit.data.values.filter((row) => !unseen.has(row[series]));
      if (chart.zoom && ranges[chart.zoom]) zoomed(unit, chart.zoom, ranges[chart.zoom]);
      if (logs.has(chart.id)) logarithmic(unit);
    }
    return spec;
  }

  // A legend has as many columns as fit next to the axis (some 80 pixels): 6.5 pixels per character, and 45 around a
  // name.
  function folded(spec, width) {
    for (const unit of units(spec)) {
      for (const { legend, scale, field } of Object.values(unit.encoding ?? {})) {
        if (legend?.orient !== "top") continue;
        const names = scale?.domain ?? (unit.data?.values ?? []).map((row) => row[field]);
        const longest = Math.max(1, ...names.map((name) => String(name).length));
        legend.columns = Math.max(1, Math.min(legend.columns ?? names.length, Math.floor((width - 80) / (6.5 * longest + 45))));
      }
    }
  }

  function look() {
    const chosen = document.getElementById("look").value;
    if (chosen !== "auto") return chosen;
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  // The fields of a row, without Vega's own and empty ones.
  function told(row, escaped) {
    if (typeof row !== "object") return escaped(String(row));
    const fields = Object.entries(row).filter(([name, value]) => !name.startsWith("_vg") && value !== null && value !== "");
    const shown = (value) => (typeof value === "number" ? String(Number(value.toPrecision(6))) : value);
    const cells = ([name, value]) => `<tr><td class="key">${escaped(name)}</td><td class="value">${escaped(shown(value))}</td></tr>`;
    return `<table>${fields.map(cells).join("")}</table>`;
  }

  async function draw(chart, drawn = look()) {
    const turn = (turns[chart.id] = (turns[chart.id] ?? 0) + 1);
    const place = document.querySelector(`#${chart.id} .drawing`);
    const spec = shaped(chart);
    if (spec.usermeta?.series && !rows(spec).length) {
      views[chart.id]?.finalize();
      delete views[chart.id];
      place.replaceChildren("Nothing is chosen.");
      return;
    }
    const options = { mode: "vega-lite", renderer: "svg", ast: true, actions, config: looks[drawn], tooltip: { theme: drawn, formatTooltip: told } };
    const apart = document.createElement("div");
    const width = Math.max(place.clientWidth, spec.usermeta?.least ?? 0);
    folded(spec, width);
    apart.style.width = `${width}px`;
    apart.className = "drawing";
    place.append(apart);
    const result = await vegaEmbed(apart, spec, { ...options, ...chart.spec.usermeta?.embedOptions });
    if (turn !== turns[chart.id]) {
      result.finalize();
      apart.remove();
      return;
    }
    views[chart.id]?.finalize();
    views[chart.id] = result;
    place.replaceChildren(apart);
    apart.style.width = "";
    apart.style.minWidth = `${spec.usermeta?.least ?? 0}px`;
    if (chart.zoom) brushed(chart, result.view, place);
    place.dataset.drawn = String(turn);
    place.dispatchEvent(new CustomEvent("drawn", { bubbles: true, detail: { view: result.view, chart } }));
  }

  function brushed(chart, view, place) {
    let marked = null;
    view.addSignalListener("brush", (_, value) => (marked = value?.[chart.zoom] ?? null));
    place.onpointerup = () => window.setTimeout(() => {
      if (marked && marked[1] > marked[0]) show(chart.zoom, marked);
    });
    place.ondblclick = () => show(chart.zoom, null);
  }

  function show(field, range) {
    if (range) ranges[field] = [...range];
    else delete ranges[field];
    for (const chart of charts) if (chart.zoom === field) draw(chart);
  }

  function move(field, how) {
    const [least, most] = extent(field);
    const [from, to] = ranges[field] ?? [least, most];
    const width = to - from;
    const next = {
      in: [from + width / 4, to - width / 4],
      out: [from - width / 2, to + width / 2],
      left: [from - width / 2, to - width / 2],
      right: [from + width / 2, to + width / 2],
    }[how];
    if (!next) return show(field, null);
    const size = Math.min(next[1] - next[0], most - least);
    const start = Math.min(Math.max(next[0], least), most - size);
    return show(field, size >= most - least ? null : [start, start + size]);
  }

  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", Escape: "all" };

  function listen() {
    for (const button of document.querySelectorAll("button[data-zoom]")) {
      const chart = charts.find((each) => each.id === button.dataset.chart);
      button.onclick = () => move(chart.zoom, button.dataset.zoom);
    }
    for (const box of document.querySelectorAll("input[data-log]")) {
      const chart = charts.find((each) => each.id === box.dataset.log);
      box.onchange = () => {
        if (box.checked) logs.add(chart.id);
        else logs.delete(chart.id);
        draw(chart);
      };
    }
    listenToSeries();
    for (const chart of charts.filter((each) => each.zoom)) {
      document.querySelector(`#${chart.id} .drawing`).onkeydown = (event) => {
        if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
        if (event.target.closest("input, select, summary")) return;
        event.preventDefault();
        move(chart.zoom, keys[event.key]);
      };
    }
  }

  // Check boxes outside the charts that hide a series in all of them.
  function listenToSeries() {
    const boxes = [...document.querySelectorAll("input[data-series]")];
    const choose = () => {
      for (const box of boxes) unseen[box.checked ? "delete" : "add"](box.dataset.series);
      for (const chart of charts) if (chart.spec.usermeta?.series) draw(chart);
    };
    for (const box of boxes) box.onchange = choose;
    for (const button of document.querySelectorAll("button[data-all-series]")) {
      button.onclick = () => {
        for (const box of boxes) box.checked = button.dataset.allSeries === "all";
        choose();
      };
    }
  }

  async function drawAll(drawn = look()) {
    document.documentElement.dataset.look = drawn;
    await Promise.all(charts.map((chart) => draw(chart, drawn)));
    document.documentElement.dataset.drawn = "true";   // For programs that wait until the page is ready.
  }

  // A page opened from disk may not be allowed to store a choice.
  function kept(choice) {
    try {
      if (choice) window.localStorage.setItem("look", choice);
      return window.localStorage.getItem("look");
    } catch {
      return null;
    }
  }

  const chooser = document.getElementById("look");
  if (["light", "dark"].includes(kept())) chooser.value = kept();
  chooser.onchange = () => {
    kept(chooser.value);
    drawAll();
  };
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());
  window.addEventListener("beforeprint", () => {
    for (const chart of charts) draw(chart, "light");
  });
  window.addEventListener("afterprint", () => drawAll());
  listen();
  drawAll();
})();
