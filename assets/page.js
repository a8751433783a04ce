// Tiles, notes, errands of the server, and the page's keys.
"use strict"; window.Cactus = window.Cactus || {};

// Calls draw(value) with the parsed value now and whenever it changes.
Cactus.parsed = (props, watch, draw) => {
  const update = () => { if (props.value) draw(JSON.parse(props.value)); };
  watch("value", update);
  update();
};

Cactus.tiles = (element, props, watch) => {
  const box = element.firstElementChild;
  box.className = "tile-row";
  Cactus.parsed(props, watch, (tiles) => {
    tiles.forEach((tile, index) => {
      let node = box.children[index];
      if (!node) {
        const figure = Cactus.node("div", "tile-figure", Cactus.node("span", "tile-value"), Cactus.node("span", "tile-unit"));
        box.append(node = Cactus.node("div", "tile", Cactus.node("div", "tile-label"), figure, Cactus.node("div", "tile-note")));
      }
      node.dataset.tone = tile.tone;
      for (const part of ["label", "value", "unit", "note"]) {
        const place = node.querySelector(".tile-" + part);
        if (place.textContent !== tile[part]) place.textContent = tile[part];
      }
    });
  });
};

Cactus.note = (element, props, watch) => {
  const box = element.firstElementChild;
  Cactus.parsed(props, watch, (note) => {
    box.className = note.bad ? "note bad" : "note";
    box.replaceChildren(...note.lines.map((line, index) => Cactus.node("div", "note-line" + index, line)));
    if (!note.busy) return;
    const bar = Cactus.made("progress", { max: 1, ariaLabel: "Loading the pair" });
    if (note.share !== null) bar.value = note.share;
    box.append(bar);
  });
};

Cactus.copy = (text, button, done, otherwise) => {
  const told = (message) => {
    if (!button) return;
    const before = button.dataset.label || (button.dataset.label = button.textContent);
    button.textContent = message;
    setTimeout(() => { button.textContent = before; }, 1500);
  };
  const write = navigator.clipboard ? navigator.clipboard.writeText(text) : Promise.reject();
  write.then(() => told(done), () => told(otherwise));
};

Cactus.errand = (element, props, watch) => {
  Cactus.parsed(props, watch, (errand) => {
    if (errand.kind === "save") {
      const href = URL.createObjectURL(new Blob([errand.text], { type: "application/octet-stream" }));
      Cactus.made("a", { href, download: errand.name }).click();
      setTimeout(() => URL.revokeObjectURL(href), 10000);
    }
    if (errand.note) Cactus.say(errand.note);
    if (errand.kind === "link") {
      const address = new URL(location.href);
      address.search = errand.query;
      history.replaceState(history.state, "", address);
      Cactus.copy(address.href, document.querySelector("#share"), "Link copied", "See address bar");
    }
  });
};

document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  const run = document.querySelector(event.shiftKey ? "#reply" : "#run");
  if (!run || run.disabled) return;
  event.preventDefault();
  if (document.activeElement) document.activeElement.dispatchEvent(new Event("change", { bubbles: true }));
  run.click();
});

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-toggle-theme]")) document.body.classList.toggle("dark");
});
