"use strict";
// Links parallel coordinates (parallel.py) to the table of the same points: ranges marked on the axes restrict the
// table's rows, and lines of rows that the table's filter hides are faint.
(() => {
  const tied = new Map();   // By table: its newest drawing, and the names that its filter keeps, as an object or null.

  function tie(table) {
    const found = tied.get(table) ?? { view: null, kept: null };
    if (!tied.has(table)) {
      tied.set(table, found);
      table.addEventListener("shown", ({ detail: names }) => {
        const all = names.size === found.view.data("points").length;
        const next = all ? null : Object.fromEntries([...names].map((name) => [name, true]));
        if (JSON.stringify(next) === JSON.stringify(found.kept)) return;
        found.kept = next;
        found.view.signal("kept", next).runAsync();
      });
    }
    return found;
  }

  function unmark(view) {
    const state = view.getState({ signals: (name) => /^b\d+$/.test(name), data: () => false });
    for (const mark of Object.keys(state.signals)) view.signal(mark, null);
    view.runAsync();
  }

  document.addEventListener("drawn", ({ detail: { view, chart } }) => {
    const identity = chart.spec.usermeta?.table;
    const table = identity && document.getElementById(identity);
    if (!table) return;
    const found = tie(table);
    const button = document.querySelector(`button[data-unmark="${CSS.escape(identity)}"]`);
    let said;

    function tell() {
      const points = view.data("points");
      const marked = points.filter((point) => point.marked).map((point) => point.name);
      const all = marked.length === points.length;
      const now = all ? null : marked.join("\n");
      if (now === said || found.view !== view) return;
      said = now;
      if (button) button.disabled = all;
      table.dispatchEvent(new CustomEvent("restrict", { detail: all ? null : new Set(marked) }));
    }

    found.view = view;
    if (button) button.onclick = () => unmark(view);
    view.addDataListener("points", tell);
    view.signal("kept", found.kept).runAsync().then(tell);
  });
})();
