// Tables of a page (table.py): sorting, filtering, and the line of a chosen row.
//
// An element of class "sorted" handles the event "restrict", whose detail is a Set of row names or null for all, and
// sends "shown" with the Set of names that its filter keeps, and "chosen" with a row's name or null.
"use strict";
(() => {
  const OPERATORS = /^(.*?)(<=|>=|!=|=|<|>)(.*)$/;

  /** A cell as a number if it is one, else as text; null if it is unknown. */
  function valueOf(cell) {
    const text = cell.dataset.value ?? cell.textContent;
    if (text === "-") return null;
    const number = Number(text.replaceAll(",", ""));
    return text.trim() === "" || Number.isNaN(number) ? text : number;
  }

  /** Order: numbers by size, then texts alphabetically. */
  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a.localeCompare(b, "en", { numeric: true });
  }

  /** The column that a word names, by its whole key or the last part of one, such as lr for optimizer.lr. */
  function columnOf(keys, word) {
    const name = word.toLowerCase();
    const whole = keys.indexOf(name);
    const ends = keys.map((key, place) => [key, place]).filter(([key]) => key.split(".").at(-1) === name);
    return whole >= 0 ? whole : ends.length === 1 ? ends[0][1] : -1;
  }

  function holds(value, operator, wanted) {
    if (value === null) return wanted === "-" && operator === "=";
    const number = Number(wanted);
    const both = typeof value === "number" && wanted.trim() !== "" && !Number.isNaN(number);
    if (operator === "=" || operator === "!=") {
      const same = both ? value === number : String(value).toLowerCase() === wanted.toLowerCase();
      return same === (operator === "=");
    }
    if (!both) return false;
    return { "<": value < number, "<=": value <= number, ">": value > number, ">=": value >= number }[operator];
  }

  /** A filter as tests of a row, and the words that name no column. */
  function understood(text, keys) {
    const tests = [], unknown = [];
    for (const word of text.split(/\s+/).filter(Boolean)) {
      const found = OPERATORS.exec(word);
      if (found === null) {
        tests.push((row) => row.text.includes(word.toLowerCase()));
        continue;
      }
      const [, name, operator, wanted] = found;
      const place = columnOf(keys, name);
      if (place < 0) unknown.push(name);
      else if (wanted !== "") tests.push((row) => holds(row.values[place], operator, wanted));
    }
    return [tests, unknown];
  }

  function setUp(element) {
    const body = element.querySelector("tbody");
    const heads = [...element.querySelectorAll("thead th")];
    const keys = heads.map((head) => head.dataset.key.toLowerCase());
    const input = element.querySelector("input");
    const count = element.querySelector("output");
    const chosen = element.querySelector(".chosen");
    const rows = [...body.rows].map((line) => ({
      line, name: line.dataset.name, values: [...line.cells].map(valueOf), text: line.textContent.toLowerCase(),
    }));
    let allowed = null;

    /** The Tab key reaches one row's button; the arrow keys move from it to the others. */
    function reach(line) {
      for (const { line: other } of rows) other.cells[0].firstChild.tabIndex = other === line ? 0 : -1;
    }

    function show() {
      const [tests, unknown] = understood(input.value, keys);
      const names = new Set();
      let left = 0, first = null;
      for (const row of rows) {
        const passes = tests.every((test) => test(row));
        const visible = passes && (allowed === null || allowed.has(row.name));
        if (passes) names.add(row.name);
        row.line.hidden = !visible;
        left += visible;
      }
      for (const line of body.rows) if (!line.hidden) { first = line; break; }
      reach(first);
      const all = left === rows.length ? `${left.toLocaleString("en")} rows` :
        `${left.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
      count.textContent = unknown.length ? `${all}; no column is called ${unknown.join(", ")}` : all;
      element.dispatchEvent(new CustomEvent("shown", { detail: names }));
    }

    /** Sort by a column, unknown values last; choosing the same column again reverses the order. */
    function sort(place) {
      const turned = heads[place].getAttribute("aria-sort") === "ascending";
      heads.forEach((head, other) =>
        head.setAttribute("aria-sort", other !== place ? "none" : turned ? "descending" : "ascending"));
      const known = rows.filter((row) => row.values[place] !== null);
      known.sort((a, b) => (turned ? -1 : 1) * compare(a.values[place], b.values[place]));
      body.append(...[...known, ...rows.filter((row) => row.values[place] === null)].map((row) => row.line));
      show();
    }

    function choose(line) {
      const now = line.getAttribute("aria-selected") === "true" ? null : line;
      for (const { line: other } of rows) other.setAttribute("aria-selected", String(other === now));
      chosen.hidden = now === null || !(now.dataset.line || now.dataset.note);
      chosen.querySelector("pre").textContent = now?.dataset.line ?? "";
      chosen.querySelector("pre").hidden = chosen.querySelector("button").hidden = !now?.dataset.line;
      chosen.querySelector(".note").textContent = now?.dataset.note ?? "";
      element.dispatchEvent(new CustomEvent("chosen", { detail: now?.dataset.name ?? null }));
    }

    function move(event) {
      const lines = [...body.rows].filter((line) => !line.hidden);
      const at = lines.indexOf(event.target.closest("tr"));
      const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: lines.length - 1 }[event.key];
      if (to === undefined || lines[to] === undefined) return;
      event.preventDefault();
      reach(lines[to]);
      lines[to].cells[0].firstChild.focus();
    }

    heads.forEach((head, place) => head.firstChild.addEventListener("click", () => sort(place)));
    input.addEventListener("input", show);
    body.addEventListener("click", (event) => {
      if (!getSelection().isCollapsed) return;  // The user is selecting text to copy it.
      choose(event.target.closest("tr"));
    });
    body.addEventListener("keydown", move);
    chosen.querySelector("button").addEventListener("click", (event) => {
      getSelection().selectAllChildren(chosen.querySelector("pre"));
      navigator.clipboard?.writeText(chosen.querySelector("pre").textContent)
        .then(() => { event.target.textContent = "copied"; }, () => undefined);
    });
    element.addEventListener("restrict", (event) => { allowed = event.detail; show(); });
    show();
  }

  document.querySelectorAll(".sorted").forEach(setUp);
})();
