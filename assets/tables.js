// Tables of cells: text, or { text, share (a bar), kind, title }. The first column names the row.
"use strict"; window.Cactus = window.Cactus || {};

Cactus.fillTable = (box, { head, rows, note }) => {
  if (!head.length) return void box.replaceChildren();
  const cell = (tag, given) => {
    const { text, share, kind, title } = given.text === undefined ? { text: given } : given;
    const node = Cactus.node(tag, kind || "", text);
    if (title) node.title = title;
    if (share !== undefined) {
      node.classList.add("bar-cell");
      node.style.setProperty("--share", share);
    }
    return node;
  };
  const line = (cells, tag) => {
    const row = Cactus.node("tr", "", ...cells.map((given, index) => cell(index ? tag : "th", given)));
    row.firstElementChild.scope = "row";
    return row;
  };
  const top = Cactus.node("thead", "", line(head, "th")), body = Cactus.node("tbody", "", ...rows.map((cells) => line(cells, "td")));
  for (const node of top.querySelectorAll("th")) node.scope = "col";
  const kept = box.querySelector(".cells-scroll"), scroll = kept || Cactus.node("div", "cells-scroll");
  scroll.replaceChildren(Cactus.node("table", "cells", top, body));
  if (!kept) {
    scroll.tabIndex = 0; // a wide table is scrolled with the keys
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", box.dataset.label || "Table");
    box.append(scroll, Cactus.node("p", "cells-note"));
  }
  box.querySelector(".cells-note").textContent = note || "";
};

Cactus.table = (element, props, watch) => {
  Cactus.parsed(props, watch, (table) => Cactus.fillTable(element.firstElementChild, table));
};
